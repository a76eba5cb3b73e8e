"""The bound from a run's own rounds, against that from traces of the same texts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specbench.forecast.adaptive_bound import with_bound
from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.forecast import forecast
from specbench.forecast.run_bound import RunBound, bound_of_run
from specbench.metrics.cell import CellData, against
from specbench.records import CellKey, RoundLog
from tests.cell_keys import with_axes
from tests.decide.cells import BASE, draft
from tests.forecast.traces import trace
from tests.made_records import made_request

AUTO = draft(6, adaptive=True)
KS = (1, 3, 6)
COSTS = {0: 1.0, 1: 1.1, 2: 1.25, 3: 1.4, 5: 1.8, 6: 2.0}


def decoded(key: CellKey, kept: Sequence[bool]) -> RoundLog:
    """The rounds of a text whose token i + 1 is guessed if `kept[i]`."""
    start, rounds = 0, []
    while start < len(kept):
        drafted = min(key.draft.k, len(kept) - 1 - start)
        accepted = 0
        while accepted < drafted and kept[start + accepted]:
            accepted += 1
        rounds.append((drafted, accepted, accepted + 1))
        start += accepted + 1
    drafted, accepted, emitted = zip(*rounds, strict=True)
    return RoundLog(
        num_drafted=drafted,
        num_accepted=accepted,
        num_emitted=emitted,
        round_s=(COSTS[key.draft.k],) * len(rounds),
    )


def measured(key: CellKey, texts: dict[str, list[bool]]) -> CellData:
    requests = []
    for prompt, kept in texts.items():
        made = made_request(key.id, prompt, decoded(key, kept))
        requests.append(replace(made, output_ids=tuple(range(len(kept) + 1))))
    return CellData(key=key, requests=tuple(requests))


def run_of(texts: dict[str, list[bool]], ks: Sequence[int] = KS) -> list[CellData]:
    plain = measured(BASE, texts)
    return [plain, *(against(measured(draft(k), texts), plain) for k in ks)]


@pytest.fixture
def texts() -> dict[str, list[bool]]:
    rng = np.random.default_rng(7)
    rates = (0.3, 0.9)
    return {f"p{i}": (rng.random(80) < rates[i % 2]).tolist() for i in range(10)}


def exact(texts: dict[str, list[bool]], ks: Sequence[int] = KS) -> float:
    traces = [trace(prompt, kept, depth=max(ks)) for prompt, kept in texts.items()]
    curve = CostCurve(costs={k: (COSTS[k],) * len(texts) for k in (0, *ks)})
    record = with_bound(forecast(draft(max(ks)), traces, curve, (0, *ks)), traces, curve)
    assert record.adaptive is not None
    return record.adaptive.hindsight.estimate


def test_tested_tokens_give_the_bound_of_traces_and_untested_ones_bound_it_from_both_sides(texts):
    bound = bound_of_run(run_of(texts), AUTO)
    assert bound is not None
    assert bound.least.estimate <= exact(texts) <= bound.hindsight.estimate
    assert bound.hindsight.estimate < bound.least.estimate + 0.05
    assert bound.hindsight.low is not None
    assert bound.ks == (0, *KS)


def test_untested_tokens_count_as_right_and_as_wrong():
    """Ninety wrong tokens, then thirty of which only every second was drafted, rightly."""
    plain, *rest = run_of({f"p{i}": [False] * 120 for i in range(6)}, (3, 5))
    short = []
    for cell in rest:
        log = RoundLog(
            num_drafted=(cell.k,) * 90 + (1,) * 15,
            num_accepted=(0,) * 90 + (1,) * 15,
            num_emitted=(1,) * 90 + (2,) * 15,
            round_s=(COSTS[cell.k],) * 105,
        )
        short.append(replace(cell, requests=tuple(replace(r, rounds=log) for r in cell.requests)))
    bound = bound_of_run([plain, *short], AUTO)
    assert bound is not None
    # At the end 5 rounds of 6 tokens, or 15 of 2.
    assert bound.best == 0
    assert bound.hindsight.estimate == pytest.approx(120 / (90 + 5 * COSTS[5]))
    assert bound.least.estimate == pytest.approx(120 / (90 + 15 * COSTS[3]))


def test_without_a_wholly_accepted_round_nothing_is_untested():
    """Every third guess is wrong, so that rounds at K = 3 and 6 test all of them."""
    texts = {f"p{i}": [(i + j) % 3 != 2 for j in range(60)] for i in range(6)}
    bound = bound_of_run(run_of(texts), AUTO)
    assert bound is not None
    assert bound.hindsight == bound.least
    assert bound.hindsight.estimate == pytest.approx(exact(texts))


def test_drafts_beyond_the_end_of_a_text_are_not_tested():
    """The last round accepts the last token, and drafts none or two after it."""
    plain, *rest = run_of({f"p{i}": [True] * 25 for i in range(6)}, (3, 5))

    def bound(beyond: int) -> RunBound | None:
        ended = []
        for cell in rest:
            log = cell.requests[0].rounds
            last = log.num_emitted[-1]
            log = replace(
                log,
                num_drafted=(*log.num_drafted[:-1], last + beyond),
                num_accepted=(*log.num_accepted[:-1], last),
            )
            requests = tuple(replace(r, rounds=log) for r in cell.requests)
            ended.append(replace(cell, requests=requests))
        return bound_of_run([plain, *ended], AUTO)

    assert bound(2) is not None
    assert bound(2) == bound(0)


def test_a_text_that_differs_from_that_of_k_0_is_left_out(texts):
    cells = run_of(texts)
    changed = replace(cells[1].requests[0], output_ids=(9,) * 81)
    cells[1] = replace(cells[1], requests=(changed, *cells[1].requests[1:]))
    rest = {prompt: kept for prompt, kept in texts.items() if prompt != "p0"}
    assert bound_of_run(cells, AUTO) == bound_of_run(run_of(rest), AUTO)


@pytest.mark.parametrize(
    "axes",
    [
        {"temperature": 0.7},
        {"concurrency": 4},
        {"engine": "vllm"},
        {"method": "ngram"},
        {"p_min": 0.6},
    ],
)
def test_other_drafts_have_no_bound_by_rounds(texts, axes):
    keys = [with_axes(BASE, **{n: v for n, v in axes.items() if n not in ("method", "p_min")})]
    keys += [draft(k, **axes) for k in KS]
    plain, *rest = (measured(key, texts) for key in keys)
    cells = [plain, *(against(cell, plain) for cell in rest)]
    assert bound_of_run(cells, with_axes(AUTO, **axes)) is None


def test_one_fixed_k_is_nothing_to_choose_from(texts):
    assert bound_of_run(run_of(texts, (3,)), AUTO) is None


def test_trees_have_no_bound_by_rounds(texts):
    plain, *rest = run_of(texts)
    trees = []
    for cell in rest:
        wide = tuple(
            replace(r, rounds=replace(r.rounds, num_drafted=(9,) * len(r.rounds)))
            for r in cell.requests
        )
        trees.append(replace(cell, requests=wide))
    assert bound_of_run([plain, *trees], AUTO) is None
