"""Result files of `vllm bench serve`: rounds come from counts, never from chunks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.forecast.engine_costs import read_file
from specbench.records import EngineCost

# 10 requests of 101 tokens: 1,000 after the first ones. At K = 3 600 of them were accepted
# drafts, so there were 400 rounds.
PLAIN = {
    "backend": "vllm",
    "completed": 10,
    "total_output_tokens": 1010,
    "max_concurrency": 1,
    "mean_tpot_ms": 20.0,
}
SPECULATIVE = {
    **PLAIN,
    "mean_tpot_ms": 12.0,
    "spec_decode_num_drafts": 400,
    "spec_decode_draft_tokens": 1200,
    "spec_decode_accepted_tokens": 600,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2],
}


@pytest.fixture
def read(tmp_path) -> Callable[..., list[EngineCost]]:
    def costs(*results: dict[str, Any]) -> list[EngineCost]:
        path = tmp_path / "r.json"
        path.write_text("\n".join(map(json.dumps, results)))
        return read_file(path)

    return costs


def test_step_and_round_times_are_read_from_vllm_results(read):
    step, one_round = read(PLAIN, SPECULATIVE)
    assert (step.num_speculative_tokens, step.cost) == (0, pytest.approx(0.020))
    assert (one_round.num_speculative_tokens, one_round.concurrency) == (3, 1)
    assert one_round.cost == pytest.approx(0.012 * 1000 / 400)
    assert one_round.mean_acceptance_length == 2.5
    assert step.mean_acceptance_length is None


def test_the_engine_is_vllm_unless_another_server_is_named(read):
    assert read({**PLAIN, "backend": "openai-chat"})[0].engine == "vllm"
    assert read({**PLAIN, "backend": "sglang"})[0].engine == "sglang"


def test_rounds_without_a_draft_also_count(read):
    """N-gram: 100 of 800 rounds drafted, and 200 drafts were kept."""
    (entry,) = read(
        {
            **SPECULATIVE,
            "spec_decode_num_drafts": 100,
            "spec_decode_draft_tokens": 300,
            "spec_decode_accepted_tokens": 200,
        }
    )
    assert entry.cost == pytest.approx(0.012 * 1000 / 800)


def test_drafts_accepted_past_an_answers_end_do_not_shorten_rounds(read):
    (entry,) = read({**SPECULATIVE, "spec_decode_accepted_tokens": 650})
    assert entry.cost == pytest.approx(0.012 * 1000 / 400)


def test_detailed_results_give_exact_round_seconds(read):
    gaps = [[0.03] * 40] * 10
    (entry,) = read({**SPECULATIVE, "itls": gaps})
    assert entry.cost == pytest.approx(0.03)


def test_k_falls_back_from_the_file_to_positions_to_the_mean(read):
    bare = {k: v for k, v in SPECULATIVE.items() if "position" not in k}
    assert read(bare)[0].num_speculative_tokens == 3
    assert read({**SPECULATIVE, "num_speculative_tokens": "4"})[0].num_speculative_tokens == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": 0}, "no request was completed"),
        ({"failed": 1}, "failed: requests broke off"),
        ({"max_concurrency": None}, "--max-concurrency"),
        ({"mean_tpot_ms": "fast"}, "mean_tpot_ms: expected a number"),
        ({"total_output_tokens": 10}, "no rounds"),
        ({"num_speculative_tokens": "3"}, "the number of rounds is unknown"),
    ],
)
def test_a_result_without_a_step_time_is_refused(read, changes, reason):
    with pytest.raises(UsageError, match=reason) as wrong:
        read(PLAIN, {**PLAIN, **changes})
    assert "r.json:2: " in str(wrong.value)


def test_an_indented_result_is_one_result(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(PLAIN, indent=2))
    assert [cost.engine for cost in read_file(path)] == ["vllm"]


@pytest.mark.parametrize(("num_seen", "is_refused"), [(101, False), (21, True)])
def test_gaps_of_tokens_that_were_not_streamed_are_no_step_times(read, num_seen, is_refused):
    """80 of 101 tokens were thought before the first event, which came that much later."""
    detailed = {
        **PLAIN,
        "input_lens": [7] * 10,
        "output_lens": [101] * 10,
        "ttfts": [0.02 * (102 - num_seen)] * 10,
        "itls": [[0.02] * (num_seen - 1)] * 10,
    }
    if is_refused:
        with pytest.raises(UsageError, match=r"itls: .*1,010 tokens"):
            read(detailed)
    else:
        assert read(detailed)[0].cost == pytest.approx(0.02)


def test_a_file_nested_beyond_reason_is_refused(tmp_path):
    path = tmp_path / "result.json"
    for text in ("[" * 100_000, json.dumps(PLAIN) + "\n" + '{"a":' * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"result\.json"):
            read_file(path)
