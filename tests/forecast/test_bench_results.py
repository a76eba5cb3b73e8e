"""Result files of `vllm bench serve`: rounds come from counts, never from chunks."""

import json
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.forecast.engine_costs import read_file, read_results

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


def read(*results: dict[str, Any]) -> Any:
    text = "\n".join(map(json.dumps, results)) if len(results) > 1 else json.dumps(*results)
    return read_results(text, "r.json")


def test_step_and_round_times_are_read_from_vllm_results():
    step, one_round = read(PLAIN, SPECULATIVE)
    assert (step.num_speculative_tokens, step.cost) == (0, pytest.approx(0.020))
    assert (one_round.num_speculative_tokens, one_round.concurrency) == (3, 1)
    assert one_round.cost == pytest.approx(0.012 * 1000 / 400)
    assert one_round.mean_acceptance_length == 2.5
    assert step.mean_acceptance_length is None


def test_the_engine_is_vllm_unless_another_server_is_named():
    assert read({**PLAIN, "backend": "openai-chat"})[0].engine == "vllm"
    assert read({**PLAIN, "backend": "sglang"})[0].engine == "sglang"


def test_rounds_without_a_draft_also_count():
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


def test_drafts_accepted_past_an_answers_end_do_not_shorten_rounds():
    (entry,) = read({**SPECULATIVE, "spec_decode_accepted_tokens": 650})
    assert entry.cost == pytest.approx(0.012 * 1000 / 400)


def test_detailed_results_give_exact_round_seconds():
    gaps = [[0.03] * 40] * 10
    (entry,) = read({**SPECULATIVE, "itls": gaps})
    assert entry.cost == pytest.approx(0.03)


def test_k_falls_back_from_the_file_to_positions_to_the_mean():
    bare = {k: v for k, v in SPECULATIVE.items() if "position" not in k}
    assert read(bare)[0].num_speculative_tokens == 3
    assert read({**SPECULATIVE, "num_speculative_tokens": "4"})[0].num_speculative_tokens == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": 0}, "no request was completed"),
        ({"max_concurrency": None}, "--max-concurrency"),
        ({"mean_tpot_ms": "fast"}, "mean_tpot_ms: expected a number"),
        ({"total_output_tokens": 10}, "no rounds"),
        ({"num_speculative_tokens": "3"}, "the number of rounds is unknown"),
    ],
)
def test_a_result_without_a_step_time_is_refused(changes, reason):
    with pytest.raises(UsageError, match=reason) as wrong:
        read(PLAIN, {**PLAIN, **changes})
    assert str(wrong.value).startswith("r.json:2:")


def test_other_files_are_not_results(tmp_path):
    assert read_results("k,cost\n0,1\n", "costs.csv") is None
    assert read_results('[{"k": 0, "cost": 1}]', "costs.json") is None
    path = tmp_path / "result.json"
    path.write_text(json.dumps(PLAIN, indent=2))
    assert read_file(path)[0].engine == "vllm"


def test_a_file_nested_beyond_reason_is_refused(tmp_path):
    path = tmp_path / "result.json"
    for text in ("[" * 100_000, json.dumps(PLAIN) + "\n" + '{"a":' * 100_000):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"result\.json:1: "):
            read_file(path)
