import math
from dataclasses import replace

import pytest

from specbench.decide.comparisons import may_be_equal, side_by_side
from specbench.metrics.machine import machine_kind
from specbench.records import CellKey, Interval
from specbench.stats.machine_noise import PARTS, assumed_noise
from tests.cell_keys import with_axes
from tests.decide.cells import BASE, NUM_UNITS, cell, draft

SECONDS = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]


def peer(method: str, k: int = 0, drafter: str = "draft") -> CellKey:
    key = with_axes(BASE, engine="transformers", method=method)
    if k == 0:
        return key
    return with_axes(key, pairing=f"demo/{drafter}", drafter=drafter, num_speculative_tokens=k)


OWN = (BASE, draft(4), draft(6), draft(8, adaptive=True))
PEERS = (
    peer("generate"),
    peer("generate_static"),
    peer("assisted", 4),
    peer("assisted", 8),
    peer("assisted_default", 20),
    peer("prompt_lookup", 4, "ngram"),
)
NGRAM = draft(4, pairing="demo/ngram", drafter="ngram", method="ngram")


def names(keys: tuple[CellKey, ...]) -> list[tuple[str, str]]:
    cells = [cell(key, SECONDS) for key in keys]
    return [
        (
            "kauto" if pair.cell.draft.is_adaptive else f"k{pair.cell.draft.k}",
            pair.peer.draft.method,
        )
        for pair in side_by_side(cells)
    ]


def test_cells_that_do_the_same_work_are_compared():
    assert names((*OWN, *PEERS)) == [
        ("k0", "generate"),
        ("k0", "generate_static"),
        ("k4", "assisted"),
        ("k4", "assisted_default"),
        ("k6", "assisted_default"),
        ("kauto", "assisted_default"),
    ]
    assert names((NGRAM, *PEERS)) == [("k4", "prompt_lookup")]


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "chat"},
        {"concurrency": 4},
        {"temperature": 1.0},
        {"dtype": "bfloat16"},
        {"context": 512},
        {"target": "other", "pairing": "other"},
    ],
)
def test_another_setting_is_not_compared(change):
    assert names((BASE, with_axes(peer("generate"), **change))) == []


def test_the_peer_ratio_is_its_seconds_over_ours_on_equal_prompts():
    twice = [2 * s for s in SECONDS]
    (pair,) = side_by_side([cell(BASE, SECONDS), cell(peer("generate"), twice)])
    assert pair.decode.estimate == pytest.approx(2.0)
    # Every prompt and every part of the run agree: what is assumed of the machine remains.
    machine = assumed_noise(machine_kind(cell(BASE, SECONDS)), alike=True).of_parts(
        [math.log(2)] * PARTS
    )
    assert pair.decode.low == pytest.approx(2.0 * math.exp(-machine.of_run.margin()))
    assert pair.end_to_end is not None
    assert pair.end_to_end.estimate == pytest.approx((sum(twice) + 0.6) / (sum(SECONDS) + 0.6))
    assert pair.cpu is not None
    assert pair.cpu.estimate == pytest.approx(2.0)
    assert (pair.num_prompts, pair.equal_text, pair.valid) == (NUM_UNITS, 1.0, True)


def test_prompts_that_one_engine_failed_are_excluded_on_both_sides():
    ours, theirs = cell(BASE, SECONDS), cell(peer("generate"), [9.0, *SECONDS[1:]])
    failed = replace(theirs.requests[0], finish_reason="failed", error="out of memory")
    (pair,) = side_by_side([ours, replace(theirs, requests=(failed, *theirs.requests[1:]))])
    assert pair.decode.estimate == pytest.approx(1.0)
    assert pair.num_prompts == 5
    assert not pair.valid  # shown without a conclusion


def test_texts_that_differ_are_counted():
    ours, theirs = cell(BASE, SECONDS), cell(peer("generate"), SECONDS)
    other = replace(theirs.requests[0], output_ids=tuple(range(100, 113)))
    (pair,) = side_by_side([ours, replace(theirs, requests=(other, *theirs.requests[1:]))])
    assert pair.equal_text == pytest.approx(5 / 6)


def test_equal_texts_are_a_share_of_the_pairs_that_can_be_compared():
    """Token ids are missing of one request on their side only, and of two on both sides."""
    ours, theirs = (list(cell(key, SECONDS).requests) for key in (BASE, peer("generate")))
    mute = {"output_ids": (), "num_tokens": 13}
    theirs[0] = replace(theirs[0], **mute, text="a")
    for i, text in ((1, "a"), (2, "b")):
        ours[i], theirs[i] = (
            replace(r, **mute, text=t) for r, t in ((ours[i], "a"), (theirs[i], text))
        )
    theirs[3] = replace(theirs[3], output_ids=tuple(range(100, 113)))
    cells = (cell(key, SECONDS) for key in (BASE, peer("generate")))
    (pair,) = side_by_side(
        [replace(c, requests=tuple(r)) for c, r in zip(cells, (ours, theirs), strict=True)]
    )
    assert pair.equal_text == pytest.approx(3 / 5)


def test_runs_without_common_cells_are_not_compared():
    assert side_by_side([cell(BASE, SECONDS), cell(peer("generate"), SECONDS, repeat=1)]) == ()


@pytest.mark.parametrize(
    ("low", "high", "is_open"),
    [
        *((0.9, 1.1, True), (1.0, 1.2, True), (0.8, 1.0, True)),
        *((1.01, 1.2, False), (0.8, 0.99, False)),
        *((None, 0.9, False), (None, 1.1, True), (1.1, None, False), (0.9, None, True)),
        (None, None, True),
    ],
)
def test_two_cells_may_be_equal_if_the_bounds_include_1(low, high, is_open):
    assert may_be_equal(Interval(estimate=1.0, low=low, high=high)) is is_open
