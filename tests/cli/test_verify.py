import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specbench.bench import verification
from specbench.bench.verification import with_wrong_tokens
from specbench.decode import verifier
from specbench.decode.sampling import Sampler
from specbench.engines.builtin import BuiltinEngine
from specbench.errors import ModelError
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Message
from tests.cli.calls import CommandResult, specbench
from tests.tiny_models import write_head, write_model

pytestmark = pytest.mark.slow  # whole verifications

SMALL = (
    "-w",
    "prompts.jsonl",
    "--num-prompts",
    "3",
    "--max-new-tokens",
    "24",
    "--num-tokens",
    "1000",
)
SMALL += ("--threads", "1", "--device", "cpu")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def verified(tiny: Path) -> CommandResult:
    return specbench("verify tiny -k 3", *SMALL, cwd=tiny)


@pytest.fixture(scope="session")
def as_json(tiny: Path) -> CommandResult:
    changes = ("--engine", "builtin,transformers", "--num-tokens", "300", "--max-new-tokens", "8")
    return specbench("verify", "tiny/draft", *SMALL, *changes, "--json", cwd=tiny)


def test_a_lossless_pairing_has_one_sentence_in_verify(verified: CommandResult) -> None:
    assert verified.code == 0
    *_, draft, ngram = verified.out.splitlines()
    assert re.match("tiny/draft: lossless: .*K=0 .*3 of 3 ", draft)
    assert re.search(r"1,000 sampled .*\(p = ", draft)
    assert ngram.startswith("tiny/ngram: lossless: ")


def test_the_table_has_a_row_for_each_and_fits_80_columns(verified: CommandResult) -> None:
    table, _, _ = verified.out.partition("\n\n")
    rows = [line.split()[:5] for line in table.splitlines()]
    assert ["tiny", "none", "0", "0", "identical"] in rows
    assert ["tiny/draft", "draft_model", "3", "0.7", "matches"] in rows
    assert ["tiny/ngram", "ngram", "3", "0", "identical"] in rows
    assert max(map(len, table.splitlines())) <= 80
    assert "(Holm)" in table


def test_json_lists_every_result(as_json: CommandResult) -> None:
    document = json.loads(as_json.out)
    assert as_json.code == 0
    assert document["lossless"] is True
    actual = {
        (r["pairing"], r["engine"], r["method"], r["num_speculative_tokens"], r["temperature"])
        for r in document["results"]
    }
    assert actual == {
        (*who, temperature)
        for temperature in (0, 0.7)
        for who in (
            ("tiny", "builtin", "none", 0),
            ("tiny", "transformers", "generate", 0),
            ("tiny/draft", "builtin", "draft_model", 4),
            ("tiny/draft", "transformers", "assisted", 4),
            ("tiny/draft", "transformers", "assisted_default", 20),
        )
    }
    for result in document["results"]:
        assert result["lossless"] is True
        assert (result["match_rate"] is None) == (result["temperature"] > 0)
        assert (result["p_value"] is None) == (result["temperature"] == 0)


def test_a_fault_of_sampling_exits_1(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Sampler.probs

    def colder(self: Sampler, logits):
        squared = replace(self.sampling, temperature=self.sampling.temperature**2)
        return sound(Sampler(squared), logits)

    monkeypatch.setattr(Sampler, "probs", colder)
    ran = specbench("verify", "tiny/draft", *SMALL, "--temperature", "0.7", cwd=tiny)
    assert ran.code == 1
    assert re.search(r"tiny .*K=0: NOT lossless: builtin .*T=0\.7: ", ran.out)
    assert re.search(r"tiny/draft: NOT lossless: builtin draft_model K=4 .*T=0\.7: ", ran.out)


def test_a_fault_of_the_verifier_exits_1(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "_count_leading", lambda kept_BK: kept_BK.sum(1))
    ran = specbench("verify tiny --method draft_model", *SMALL, "--temperature", "0", cwd=tiny)
    assert ran.code == 1
    assert re.search(r"tiny/draft: NOT lossless: .*draft_model K=4 .*T=0: prompts", ran.out)
    assert "tiny/ngram" not in ran.out
    assert "tiny at K=0" not in ran.out


def test_too_few_tokens_exit_3(tiny: Path) -> None:
    few = ("--num-tokens", "100", "--temperature", "40")  # hot enough for all tokens to be alike
    ran = specbench("verify", "tiny/draft", *SMALL, *few, cwd=tiny)
    assert ran.code == 3
    assert "tiny/draft: undecided: " in ran.out


def test_block_heads_are_verified_with_both_temperatures(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    heads = ("dspark", "dflash2")
    for method in heads:
        write_head(tmp_path / method, method, target, num_layers=2)
    drafters = {method: {"method": method, "model": f"./{method}"} for method in heads}
    targets = {"tiny": {"model": "./target", "drafters": drafters}}
    (tmp_path / "pairings.yaml").write_text(json.dumps({"targets": targets}))
    changes = ("-w", "qa", "--num-prompts", "2", "--max-new-tokens", "12")
    ran = specbench("verify -k 4", *SMALL[2:], *changes, cwd=tmp_path)
    assert ran.code == 0, ran.err
    for method in heads:
        assert re.search(rf"tiny/{method}: lossless: .*2 of 2 .*1,000 sampled", ran.out)


def test_verify_exits_4_for_a_drafter_that_cannot_run(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text((tiny / "prompts.jsonl").read_text())
    (tmp_path / "pairings.yaml").write_text((tiny / "pairings.yaml").read_text())
    (tmp_path / "target").symlink_to(tiny / "target")
    shutil.copytree(tiny / "draft", tmp_path / "draft")
    weights = load_file(tmp_path / "draft" / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")  # no header shows that
    save_file(weights, tmp_path / "draft" / "model.safetensors", metadata={"format": "pt"})
    ran = specbench("verify", "tiny/draft", *SMALL, "--temperature", "0", cwd=tmp_path)
    assert ran.code == 4
    assert re.search("tiny/draft: not verified: .*draft_model K=4 .*T=0: ", ran.out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-k auto", "-k auto: verify tests fixed K, and auto only picks among them"),
        ("-k auto", "name them, as in -k 1..8"),
        ("--method nothing", "--method 'nothing': choose from "),
        ("--temperature hot", "--temperature 'hot': expected numbers"),
        ("--top-p 0", "--top-p 0 leaves no token"),
        ("--num-tokens 1", "--num-tokens"),
        ("--concurrency 0", "--concurrency"),
        ("tiny/nobody", "no pairing 'tiny/nobody'"),
    ],
)
def test_a_wrong_value_exits_2(arguments: str, says: str, tiny: Path) -> None:
    ran = specbench(f"verify {arguments}", cwd=tiny)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_verify_gives_predictions_to_drafters_that_use_them(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []
    serve = BuiltinEngine.serve

    def watched(self, requests, work, load):  # type: ignore[no-untyped-def]
        done = serve(self, requests, work, load)
        served.extend(zip(requests, done.results, strict=True))
        return done

    monkeypatch.setattr(BuiltinEngine, "serve", watched)
    specbench("verify tiny/ngram -k 3 --temperature 0", *SMALL, cwd=tiny)
    answers = {request.prompt_ids: result.output_ids for request, result in served}
    foreseen = [request for request, _ in served if request.prediction_ids]
    assert foreseen
    for request in foreseen:
        assert request.prediction_ids == with_wrong_tokens(answers[request.prompt_ids])


def test_the_near_text_differs_in_every_eighth_token() -> None:
    assert with_wrong_tokens(range(10, 28)) == (*range(10, 17), 16, *range(18, 25), 24, 26, 27)
    assert with_wrong_tokens((5,)) == (5,)


def test_ctrl_c_in_verify_prints_no_verdict(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.bench.verification.collect_evidence", interrupted)
    ran = specbench("verify", "tiny", *SMALL, cwd=tiny)
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert ran.out == ""


TALK = ("-w", "talk.jsonl", "--max-new-tokens", "8", "--threads", "1", "--device", "cpu")
GREEDY = ("-k", "2", "--temperature", "0")


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list:
    """The questions of a call, as its collector receives them."""
    seen: list = []
    collector = verification.Collector

    def watched(teacher, questions, *, seed):  # type: ignore[no-untyped-def]
        seen.extend(questions)
        return collector(teacher, questions, seed=seed)

    monkeypatch.setattr(verification, "Collector", watched)
    return seen


def test_verify_asks_a_later_turn_after_the_targets_own_response(
    tiny: Path, questions: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {}
    serve = BuiltinEngine.serve

    def watched(self, requests, work, load):  # type: ignore[no-untyped-def]
        done = serve(self, requests, work, load)
        for request, result in zip(requests, done.results, strict=True):
            answers.setdefault(request.prompt_ids, result.output_ids)
        return done

    monkeypatch.setattr(BuiltinEngine, "serve", watched)
    ran = specbench("verify", "tiny/draft", *GREEDY, *TALK, cwd=tiny)

    assert ran.code == 0, ran.err
    assert "in 3 of 3 answers" in ran.out
    first, second = (question for question in questions if question.conversation)
    (alone,) = (question for question in questions if not question.conversation)
    tokenizer = ChatTokenizer(str(tiny / "target"), revision=None, trust_remote_code=False)
    text = tokenizer.text(answers[first.prompt_ids])
    assert second.id == f"{first.id}, turn 2"
    assert second.conversation == first.conversation
    assert alone.prompt_ids in answers
    talk = (("user", "Hello"), ("assistant", text), ("user", "And then?"))
    history = [Message(role=role, content=text) for role, text in talk]
    assert second.prompt_ids == tokenizer.prompt_ids(history)


def test_sampled_turns_also_follow_the_distribution(tiny: Path) -> None:
    ran = specbench(
        *("verify", "tiny/draft", "-k", "2", "--temperature", "0.7", "--num-tokens", "1000"),
        *TALK,
        cwd=tiny,
    )
    assert ran.code == 0, ran.out


def test_a_later_turn_that_is_too_long_is_omitted_with_a_warning(
    tiny: Path, questions: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = BuiltinEngine.serve

    def refusing(self, requests, work, load):  # type: ignore[no-untyped-def]
        if len(requests[0].prompt_ids) > len(first) > 0:
            raise ModelError("the target's context has 8")
        first.extend(requests[0].prompt_ids)
        return serve(self, requests, work, load)

    first: list[int] = []
    monkeypatch.setattr(BuiltinEngine, "serve", refusing)
    (tiny / "one.jsonl").write_text('{"turns": ["Hello", "And then?"]}\n')
    ran = specbench("verify", "tiny/draft", *GREEDY, "-w", "one.jsonl", *TALK[2:], cwd=tiny)

    assert ran.code == 0, ran.err
    assert len(questions) == 1
    output = " ".join(ran.err.split())
    assert re.search("turn 2 .*context has 8", output)


class FullDisk(io.StringIO):
    """A writer on a full disk."""

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_verdict_that_stdout_cannot_take_is_printed_to_stderr(
    more: tuple[str, ...], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cli.calls.StringIO", iter_of(FullDisk(), io.StringIO()))
    ran = specbench("verify", "tiny/draft", *GREEDY, *TALK, *more, cwd=tiny)

    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert re.search("tiny/draft: lossless: .*K=0 .*3 of 3 ", ran.err)
    assert re.search("error: standard output: .*: No space left .*free space", ran.err)


def iter_of(*streams: io.StringIO):  # type: ignore[no-untyped-def]
    """Yields standard output, then standard error."""
    left = iter(streams)
    return lambda: next(left)
