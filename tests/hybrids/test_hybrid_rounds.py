"""Hybrids: greedy texts are `generate`'s; also sampled texts, graphs and a whole run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK
from specbench.errors import ModelError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from specbench.forward.scoring import mean_log_probs
from specbench.records import Request
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.decoding import graph_bench
from tests.decoding.fake_rounds import trace_round
from tests.decoding.graph_bench import Bench, Cycle
from tests.decoding.lossless import (
    FIRST,
    LAST,
    SAMPLED_VOCAB_SIZE,
    WARM,
    assert_texts,
    decode,
    exact_probs,
    make_drafter,
    sample_texts,
    sampled_model,
    sampled_p_value,
    serve,
)
from tests.decoding.models import generated, plain_logits, ragged_prompts
from tests.hybrids.checks import (
    EVERY_K,
    NUM_TOKENS,
    check_adaptive_k,
    check_as_draft,
    check_rows_that_come_and_go,
    check_second_turn,
    check_side_by_side,
    checked,
    subject,
    with_noise,
)
from tests.hybrids.models import HYBRIDS, tiny_hybrid
from tests.tiny_models import VOCAB_SIZE
from tests.tiny_pair import WORKLOAD, make_tokenizer

pytestmark = pytest.mark.slow
FALSE_ALARM = 1e-3 / 4  # for the whole file, shared by its p-values


@pytest.mark.long
@pytest.mark.parametrize("family", ["LFM2", "Qwen3.5"])
def test_sampled_texts_have_the_hybrid_targets_distribution(family: str) -> None:
    small = {"vocab_size": SAMPLED_VOCAB_SIZE, "initializer_range": 0.15}
    model = tiny_hybrid(family, **small)
    probs = exact_probs(model, WARM)
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, FusedRunner(sampled_model(seed=1)))

    texts, accepted = sample_texts(target, drafter, k=3, sampling=WARM)

    assert 0.2 < accepted < 0.95
    for triple in (FIRST, LAST):
        assert sampled_p_value(texts, probs, triple) > FALSE_ALARM


def test_captured_rounds_have_the_texts_of_eager_ones() -> None:
    of = subject("LFM2")
    requests = [
        Request(prompt_ids=ragged_prompts()[i % 3], max_new_tokens=n)
        for i, n in enumerate((3, 14, 7, 9))
    ]
    held = graph_bench.Subject(of.target, of.twin, of.stranger)
    bench = Bench(held, make_drafter("draft_model", of.target, of.twin))

    results = bench.serve(requests, Cycle(*EVERY_K), num_rows=3)

    assert bench.graphs.num_replays > 0
    assert_texts(results, [of.texts[i % 3][: r.max_new_tokens] for i, r in enumerate(requests)])


def test_a_predicted_output_of_a_hybrid_is_checked_in_revertible_pieces() -> None:
    of = subject("LFM2")
    right, wrong = of.texts[0], (*of.texts[0][:7], 1, 2, 3, *of.texts[0][10:])
    drafter = make_drafter("previous_turn", of.target, verify_prediction_first=True)
    for prediction in (right, wrong):
        request = Request(
            prompt_ids=ragged_prompts()[0], max_new_tokens=NUM_TOKENS, prediction_ids=prediction
        )

        (result,) = decode(of.target, drafter, [request], k=3)

        assert_texts([result], [of.texts[0]])
        assert result.answer_check is not None
        assert result.answer_check.num_accepted >= 5


def test_a_second_turn_of_a_hybrid_feeds_only_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject("LFM2")
    fed: list[int] = []
    forward = StockRunner.forward

    def recording_forward(runner: Any, tokens_BT: Any, *args: Any, **how: Any) -> Any:
        if how.get("start") is not None:
            fed.append(tokens_BT.shape[1])
        return forward(runner, tokens_BT, *args, **how)

    monkeypatch.setattr(StockRunner, "forward", recording_forward)
    turns = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS, conversation="c") for p in of.turns]
    serve(of.target, NoDrafter(), turns, FixedK(0), 1)

    # The last two tokens of the answer are fed again, as in a row with a KV cache only.
    assert fed == [len(of.turns[0]), len(of.turns[1]) - len(of.turns[0]) - NUM_TOKENS + 2]


@pytest.mark.parametrize(
    ("family", "method", "k"),
    [
        ("LFM2", "draft_model", 3),
        *(
            pytest.param(family, *how, marks=pytest.mark.long)
            for family in ("Qwen3.5", "Falcon-H1", "Bamba", "Zamba2", "Olmo hybrid")
            for how in (("none", 0), ("draft_model", 3))
        ),
    ],
)
def test_a_round_of_a_hybrid_neither_syncs_nor_copies(family: str, method: str, k: int) -> None:
    # Experts are left out, as in test_device_program.py.
    trace_round(method, k, make_runner=lambda: StockRunner(tiny_hybrid(family)))


def test_a_tree_is_refused_by_the_targets_name() -> None:
    of = subject("LFM2")
    drafter = make_drafter("draft_model", of.target, of.twin, tree=(2, 2))
    request = Request(prompt_ids=(1, 2, 3), max_new_tokens=4)

    with pytest.raises(ModelError, match=r"Lfm2ForCausalLM.*tree"):
        decode(of.target, drafter, [request], k=2)


def test_a_hybrid_is_compared_with_its_steps_if_its_scan_differs() -> None:
    # Zamba 2 bounds its time steps only in a scan: so tightly here that the two differ.
    model = tiny_hybrid("Zamba2", time_step_min=1.0)
    prompt = ragged_prompts()[1]
    text = generated(model, prompt, 6)
    target = checked(model)
    request = Request(prompt_ids=prompt, max_new_tokens=6)

    results = decode(target, make_drafter("ngram", target), [request], k=2)

    assert_texts(results, [text])


def test_self_speculation_runs_over_the_targets_own_states() -> None:
    of = subject("Qwen3.5")
    drafter = make_drafter("self_speculation", of.target, num_layers=1)
    requests = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS) for p in ragged_prompts()]

    assert_texts(decode(of.target, drafter, requests, k=3), of.texts)


def test_samples_are_scored_as_by_plain_forwards() -> None:
    model = tiny_hybrid("LFM2")
    prompt, outputs = (3, 1, 4, 1, 5), [(9, 2, 6), (5, 3)]
    rows = [[*prompt, *output] for output in outputs]
    expected = []
    for row, output in zip(rows, outputs, strict=True):
        logits = plain_logits(model, torch.tensor([row]))[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected.append(float(logits.gather(1, torch.tensor(output)[:, None]).mean()))

    assert mean_log_probs(checked(model), prompt, outputs) == pytest.approx(expected, abs=1e-4)


def of_every_family(sample: str) -> pytest.MarkDecorator:
    """One family in make test, the others in make test-long."""
    marks = {name: [] if name == sample else [pytest.mark.long] for name in HYBRIDS}
    return pytest.mark.parametrize(
        "family", [pytest.param(name, marks=marks[name]) for name in HYBRIDS]
    )


@of_every_family("Qwen3.5")
def test_ragged_rows_with_good_and_bad_drafts_have_the_models_own_texts(family: str) -> None:
    check_side_by_side(subject(family), (0, 1, 4))


@of_every_family("Qwen3.5")
def test_hybrid_texts_are_unchanged_by_row_moves_and_changing_k(family: str) -> None:
    check_rows_that_come_and_go(subject(family))


@of_every_family("LFM2")
def test_a_controller_may_pick_k(family: str) -> None:
    check_adaptive_k(subject(family))


@of_every_family("LFM2")
def test_a_second_turn_continues_from_the_state_of_the_first(family: str) -> None:
    of = subject(family)
    check_second_turn(of, of.near)
    check_second_turn(of, of.twin, ks=(4, 0, 0))


@of_every_family("LFM2")
def test_a_chunked_prefill_of_a_hybrid_leaves_the_text_unchanged(family: str) -> None:
    check_side_by_side(subject(family), (1,), prefill_chunk=8)


@of_every_family("LFM2")
def test_a_hybrid_drafts_for_an_attention_only_target(family: str) -> None:
    check_as_draft(subject(family))


PAIRINGS = """\
targets:
  hybrid:
    model: ./target
    drafters:
      draft: {method: draft_model, model: ./draft}
      ngram: {method: ngram}
"""

COUNTS = ("--fail-on", "mean_acceptance_length:1%")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a hybrid target, a hybrid draft that is often right, and prompts."""
    folder = tmp_path_factory.mktemp("hybrid")
    shape = {"vocab_size": VOCAB_SIZE, "eos_token_id": 0, "max_position_embeddings": 256}
    target, draft = (tiny_hybrid("LFM2", **shape) for _ in range(2))
    for name, model in (("target", target), ("draft", with_noise(draft))):
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    (folder / "prompts.jsonl").write_text("".join(WORKLOAD.format(i=i) for i in range(6)))
    (folder / "pairings.yaml").write_text(PAIRINGS)
    return folder


def measured(place: Path, *size: str) -> dict[str, Any]:
    """The document of a run."""
    ran = specbench("run", *SMALL, *size, "-w", "prompts.jsonl", "--json", cwd=place)
    assert ran.code in (0, 3), ran.err
    document: dict[str, Any] = json.loads(ran.out)
    return document


@pytest.mark.parametrize(
    "size",
    [
        (
            *("hybrid/draft", "-k", "0,2", "--concurrency", "2"),
            *("--num-prompts", "5", "--max-new-tokens", "6"),
        ),
        pytest.param(
            ("hybrid/draft", "hybrid/ngram", "-k", "0,2,auto", "--concurrency", "1,2"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_hybrid_is_measured_reported_and_gated(place: Path, size: tuple[str, ...]) -> None:
    first, second = measured(place, *size), measured(place, *size)

    report = specbench("report", first["run_id"], cwd=place)
    assert report.code == 0, report.err
    assert first["run_id"] in report.out
    gated = specbench("check", first["run_id"], second["run_id"], *COUNTS, "--json", cwd=place)
    assert gated.code == 0, gated.out + gated.err
    lengths = [j for j in json.loads(gated.out)["judgments"] if j["metric"] == "output_tokens"]
    assert {judgment["verdict"] for judgment in lengths} == {"pass"}
