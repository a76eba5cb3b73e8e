"""Cost, speedup and gain of the best of two answers, worked out by hand from stored blocks."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.decide.comparisons import BestOf, compare_best_of
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.best_of import best_of_gain, best_of_s, scoring_s
from specbench.metrics.cell import CellData
from specbench.metrics.pairs import paired_cpu, paired_decode
from specbench.metrics.registry import measure
from specbench.metrics.validity import judge_cell
from specbench.records import BlockRecord, CellKey, Kind, PassRecord, RoundTimeline, SamplesRecord
from specbench.stats.machine_noise import MachineKind, assumed_noise
from tests.cell_keys import with_axes
from tests.decide import cells
from tests.made_records import made_block

SAMPLED = with_axes(cells.BASE, temperature=1.0)
BEST_OF_2 = with_axes(SAMPLED, num_samples=2)
KEYS = [
    SAMPLED,
    with_axes(cells.draft(2), temperature=1.0),
    BEST_OF_2,
    with_axes(cells.draft(2), temperature=1.0, num_samples=2),
]
DECODE_S = {0: 1.2, 2: 0.6}
SCORING_S = 0.1
PREFILL_S = 0.1
# By prompt: the first sample's log-probability, and the second's.
LOG_PROBS = [(-1.0, -0.5), (-1.0, -2.0), (-2.0, -1.0), (-1.0, -1.5), (-3.0, -1.5), (-1.0, -1.0)]


def block(keys: Sequence[CellKey], i: int) -> BlockRecord:
    prompt, num_samples = f"p{i}", keys[0].condition.num_samples
    requests, samples = [], []
    for key in keys:
        decode_s = DECODE_S[key.draft.k]
        # The second sample ends sooner than the first, or in a block of one there is none.
        for sample, share in list(enumerate((1.0, 0.5)))[:num_samples]:
            request = cells.request(key, prompt, decode_s * share * num_samples, repeat=0)
            requests.append(replace(request, sample=sample, seed=sample))
        if num_samples > 1:
            samples.append(_samples(key, i, decode_s))
    fields = {"block_id": f"{prompt} {num_samples}", "samples": tuple(samples)}
    return made_block(prompt, *requests, workload=keys[0].condition.workload, **fields)


def _samples(key: CellKey, i: int, decode_s: float) -> SamplesRecord:
    first, second = LOG_PROBS[i]
    log = cells.request(key, "", 1.0, repeat=0).rounds
    assert log is not None
    n = len(log)
    rounds = RoundTimeline(
        at_s=tuple(map(float, range(n))),
        seconds=(2 * decode_s / n,) * n,
        num_speculative_tokens=(key.draft.k,) * n,
        num_live=(2,) * n,
        num_rows=(2,) * n,
        num_emitted=tuple(2 * e for e in log.num_emitted),
    )
    seconds = PREFILL_S + 2 * decode_s
    return SamplesRecord(
        prompt_id=f"p{i}",
        turn=0,
        repeat=0,
        served=PassRecord(cell_id=key.id, seconds=seconds, rounds=rounds),
        log_probs=LOG_PROBS[i],
        picked=int(second > first),
        scoring_s=SCORING_S,
    )


@pytest.fixture
def gathered() -> tuple[CellData, ...]:
    blocks = [block(keys, i) for i in range(6) for keys in (KEYS[:2], KEYS[2:])]
    return aggregate_cells(KEYS, blocks)


@pytest.fixture
def compared(gathered: tuple[CellData, ...]) -> tuple[BestOf, ...]:
    return compare_best_of(gathered)


def test_best_of_is_computed_for_each_k_with_several_samples(compared: tuple[BestOf, ...]) -> None:
    assert [best.key for best in compared] == KEYS[2:]
    assert [best.num_prompts for best in compared] == [6, 6]


def test_the_best_of_speedup_is_over_the_seconds_to_pick_one(compared: tuple[BestOf, ...]) -> None:
    base, speculative = compared
    assert base.speedup is None
    assert speculative.speedup is not None
    # 0.1 s of prefill, twice the decode seconds of one, 0.1 s of scoring.
    assert speculative.speedup.estimate == pytest.approx(2.6 / 1.4)
    assert speculative.speedup.low is not None


def test_decoding_lasts_until_the_last_sample_has_ended(
    gathered: tuple[CellData, ...],
) -> None:
    seconds = paired_decode(gathered[3])
    assert seconds is not None
    assert seconds.base_s.tolist() == pytest.approx([2.4] * 6)
    assert seconds.spec_s.tolist() == pytest.approx([1.2] * 6)
    assert seconds.spec_tokens.tolist() == [24] * 6
    assert paired_cpu(gathered[3]) is None, "nobody can tell whose the CPU seconds were"


def test_turns_are_paired_with_themselves_and_summed_by_prompt() -> None:
    def with_turns(made: BlockRecord, *decoding: float) -> BlockRecord:
        turns = [*enumerate(decoding)]
        requests = (
            replace(r, turn=t, decode_s=x * r.decode_s) for t, x in turns for r in made.requests
        )
        samples = (replace(s, turn=t) for t, _ in turns for s in made.samples)
        return replace(made, requests=tuple(requests), samples=tuple(samples))

    # No sample of the last prompt has a second token, so that it has no decoding time.
    decoding = [(1.0, 3.0), (1.0, 3.0), (0.0, 0.0)]
    blocks = [with_turns(block(KEYS[2:], i), *turns) for i, turns in enumerate(decoding)]
    seconds = paired_decode(aggregate_cells(KEYS, blocks)[1])
    assert seconds is not None
    assert seconds.base_s.tolist() == pytest.approx([2.4 * 4] * 2)
    assert seconds.spec_s.tolist() == pytest.approx([1.2 * 4] * 2)


def test_requests_are_paired_sample_by_sample(gathered: tuple[CellData, ...]) -> None:
    pairs = gathered[3].pairs
    assert len(pairs) == 12
    assert all((b.prompt_id, b.sample) == (s.prompt_id, s.sample) for b, s in pairs)


def test_the_cost_is_over_one_answer_at_the_same_k(compared: tuple[BestOf, ...]) -> None:
    costs = [best.cost for best in compared if best.cost]
    assert [cost.estimate for cost in costs] == pytest.approx([2.6 / 1.3, 1.4 / 0.7])
    # All prompts agree, so that only what is assumed of the machine remains.
    machine = assumed_noise(MachineKind.QUIET_CPU, alike=True).of_run.margin()
    ratios = [cost.high / cost.estimate for cost in costs if cost.high]
    assert ratios == pytest.approx([math.exp(machine)] * 2)
    assert [best.scoring_share for best in compared] == pytest.approx([0.1 / 2.6, 0.1 / 1.4])


def test_best_of_has_no_cost_without_single_answers(gathered: tuple[CellData, ...]) -> None:
    assert [best.cost for best in compare_best_of(gathered[2:])] == [None, None]


def test_the_gain_is_paired_by_prompt(compared: tuple[BestOf, ...]) -> None:
    gains = [0.5, 0.0, 1.0, 0.0, 1.5, 0.0]
    for best in compared:
        assert best.first_log_prob == pytest.approx(-1.5)
        assert best.picked_log_prob == pytest.approx(-1.0)
        assert best.gain.estimate == pytest.approx(sum(gains) / 6)
        # t(5) = 2.5706, and the gains' standard deviation is sqrt(2 / 5).
        assert best.gain.high == pytest.approx(0.5 + 2.5706 * (2 / 5 / 6) ** 0.5, rel=1e-4)


def test_metrics_of_samples_exist_only_for_samples(gathered: tuple[CellData, ...]) -> None:
    single, _, many, _ = gathered
    assert best_of_s(many) == pytest.approx(2.6)
    assert scoring_s(many) == pytest.approx(0.1)
    assert best_of_gain(many) == pytest.approx(0.5)
    assert not {"best_of_s", "scoring_s", "best_of_gain"} & measure(single).keys()


def test_a_pass_whose_tokens_do_not_add_up_is_invalid(gathered: tuple[CellData, ...]) -> None:
    cell = gathered[2]
    assert judge_cell(cell) == ()
    lost = tuple(p._replace(requests=p.requests[:1]) for p in cell.passes)

    broken = replace(cell, passes=lost)

    assert Kind.TIME_LINE_DIFFERS in {reason.kind for reason in judge_cell(broken)}
