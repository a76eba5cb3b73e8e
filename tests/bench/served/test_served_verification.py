"""Servers with correct answers, and with known faults, get the right verdict.

All noise is seeded. A call in which everything is sound reports a fault with a probability of
0.001 at most (docs/verify.md); `test_a_correct_server_is_lossless` is the negative control.
"""

import re
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.bench.planning import plan_run
from specbench.bench.served.verification import collect_served_evidence
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.records import Kind, LossyRule
from specbench.verify.evidence import CONTROL
from specbench.verify.judge import Finding, judge
from specbench.verify.report import answers, divergence_lines, document, exit_code
from specbench.words.answers import text
from tests.bench.fakes import RecordingWatch
from tests.bench.served.lawful_server import Draw, Law, Lawful, greedy, sampled, serving
from tests.cli.calls import specbench
from tests.settings.flat_settings import settings_of
from tests.tiny_pair import make_tokenizer, write_pair

pytestmark = pytest.mark.slow  # thousands of tokens

K, LENGTH, NUM_TOKENS = 2, 6, 1200
NUM_DRAWN = 100
TEMPERATURE = 0.3  # a random model is flat when warm
PROMPTS = [f"prompt number {i}" for i in range(3)]


class Tiny:
    """The tiny target in a folder, and the answers of servers for it."""

    def __init__(self, folder: Path) -> None:
        write_pair(folder, num_prompts=len(PROMPTS))
        self.folder = folder
        self.model = LlamaForCausalLM.from_pretrained(folder / "target").eval()
        best = greedy(self.model, self.ids(PROMPTS[0]), LENGTH, {}).ids[2]
        # The best of two equal ones is the first.
        self.tied, self.other = sorted((best, best + 1))
        self.model.lm_head.weight.data[self.other] = self.model.lm_head.weight.data[best]
        self.model.lm_head.weight.data[self.tied] = self.model.lm_head.weight.data[best]
        self.model.save_pretrained(folder / "target")

    @cache  # noqa: B019 - as long as the tests
    def ids(self, prompt: str) -> list[int]:
        chat = [{"role": "user", "content": prompt}]
        encoded = make_tokenizer().apply_chat_template(chat, add_generation_prompt=True)
        return list(encoded["input_ids"])

    def server(
        self, law: Law, seed: int, swaps: dict[int, int] | None = None, *, has_ids: bool = True
    ) -> Lawful:
        """Answers are drawn beforehand, some for each prompt and temperature."""
        pools: dict[tuple[str, float], list[Draw]] = {}

        def answer(body: dict[str, Any]) -> Draw:
            prompt, temperature = body["messages"][-1]["content"], body["temperature"]
            if not temperature:
                return self._best(prompt, body["max_tokens"], tuple((swaps or {}).items()))
            if (prompt, temperature) not in pools:
                drawn = self._drawn(law, seed, prompt, temperature, body["max_tokens"])
                pools[prompt, temperature] = list(drawn)
            return pools[prompt, temperature].pop()

        made = Lawful(answer, has_ids=has_ids)
        made.num_prompt_tokens = lambda body: len(self.ids(body["messages"][-1]["content"]))
        return made

    @cache  # noqa: B019 - as long as the tests
    def _best(self, prompt: str, length: int, swaps: tuple[tuple[int, int], ...]) -> Draw:
        return greedy(self.model, self.ids(prompt), length, dict(swaps))

    @cache  # noqa: B019 - as long as the tests
    def _drawn(
        self, law: Law, seed: int, prompt: str, temperature: float, length: int
    ) -> tuple[Draw, ...]:
        at = lambda logits, place: law(logits / temperature, place)  # noqa: E731
        return tuple(sampled(self.model, self.ids(prompt), NUM_DRAWN, length, at, seed))


def right(logits: torch.Tensor, at: int) -> torch.Tensor:  # noqa: ARG001
    return logits.softmax(-1)


def wrong_later(logits: torch.Tensor, at: int) -> torch.Tensor:
    """Three tenths of all tokens but the first are random."""
    flat = torch.full_like(logits, 1 / logits.shape[-1])
    return right(logits, at) if at == 0 else 0.7 * right(logits, at) + 0.3 * flat


def warmer(logits: torch.Tensor, at: int) -> torch.Tensor:
    """Another temperature than the requested one."""
    return right(logits / 2, at)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("lawful"))


def findings_of(
    tiny: Tiny,
    without: Lawful,
    with_drafts: Lawful,
    temperatures: tuple[float, ...],
    **changes,
) -> tuple[Finding, ...]:
    watch = RecordingWatch()
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(server)) for server in (without, with_drafts)]
        settings = settings_of(
            pairings=("tiny/ngram",),
            workloads=(str(tiny.folder / "prompts.jsonl"),),
            num_prompts=len(PROMPTS),
            max_new_tokens=24,
            temperatures=temperatures,
            engines=("vllm",),
            base_urls=(f"{urls[0]}#k=0", f"{urls[1]}#k={K}"),
            threads=1,
            device="cpu",
            **changes,
        )
        file = tiny.folder / changes.pop("pairings_file", "pairings.yaml")
        pairings = load_pairings(file).select(("tiny/ngram",))
        return judge(
            collect_served_evidence(
                plan_run(settings, pairings), watch, num_tokens=NUM_TOKENS, concurrency=4
            )
        )


def test_a_correct_server_is_lossless(tiny: Tiny) -> None:
    findings = findings_of(tiny, tiny.server(right, 1), tiny.server(right, 2), (0.0, TEMPERATURE))
    assert [finding.verdict for finding in findings] == [
        "identical",
        "matches_distribution",
        "identical",
        "matches_baseline",
    ]
    assert exit_code(findings) == 0
    of_own, of_drafts = answers(findings)
    assert (of_own.subject, of_own.verdict) == ("tiny on vllm at K=0", "identical")
    assert (of_drafts.subject, of_drafts.words) == ("tiny/ngram on vllm at K=2", "lossless")
    greedy, _ = (setting.figures["because"] for setting in of_own.reasons)
    assert greedy == (Kind.GREEDY_IS_BEST(matching=3, answers=3),)
    sampled, greedy = (setting.figures["because"] for setting in of_drafts.reasons)
    assert greedy == (Kind.GREEDY_EQUALS(matching=3, answers=3),)
    assert [reason.kind for reason in sampled] == [
        Kind.SAMPLED_LIKE_BASELINE,
        Kind.BASELINE_FOLLOWS,
    ]
    assert all(d.total_variation < 1.5 * d.floor for f in findings for d in f.distances)
    assert [d.position for d in findings[1].distances] == list(range(LENGTH))


def test_wrong_sampling_at_later_positions_is_located(tiny: Tiny) -> None:
    findings = findings_of(tiny, tiny.server(right, 1), tiny.server(wrong_later, 2), (TEMPERATURE,))
    assert [finding.verdict for finding in findings] == ["matches_distribution", "mismatch"]
    assert exit_code(findings) == 1
    first, *later = findings[1].distances
    assert first.total_variation < 1.2 * first.floor
    assert all(distance.total_variation > 1.2 * distance.floor for distance in later)
    assert findings[1].farthest in later
    answer = answers(findings)[1]
    assert answer.verdict == "mismatch"
    (setting,) = answer.reasons
    assert setting.figures["setting"] == "at T=0.3"
    kinds = {reason.kind for reason in setting.figures["because"]}
    assert {Kind.FARTHEST, Kind.BASELINE_FOLLOWS} <= kinds


def test_a_mismatch_at_k_0_is_not_blamed_on_speculation(tiny: Tiny) -> None:
    findings = findings_of(tiny, tiny.server(warmer, 1), tiny.server(warmer, 2), (TEMPERATURE,))
    assert [finding.verdict for finding in findings] == ["mismatch", "matches_baseline"]
    assert exit_code(findings) == 1
    _, of_drafts = answers(findings)
    assert Kind.NOT_SPECULATION() in findings[0].reasons
    assert of_drafts.words == "lossless"
    assert Kind.BASELINE_DEPARTS() in of_drafts.reasons[0].figures["because"]


def test_a_fault_of_speculation_is_found_even_if_k_0_is_wrong(tiny: Tiny) -> None:
    findings = findings_of(tiny, tiny.server(warmer, 1), tiny.server(right, 2), (TEMPERATURE,))
    assert [finding.verdict for finding in findings] == ["mismatch", "mismatch"]
    assert findings[1].reasons == (Kind.FREQUENCY_DIFFERS(),)


@pytest.mark.long
@pytest.mark.parametrize("has_ids", [True, False])
def test_a_missing_target_is_replaced_by_k_0_as_the_reference(tiny: Tiny, has_ids: bool) -> None:
    text = (tiny.folder / "pairings.yaml").read_text().replace("./target", "owner/far")
    (tiny.folder / "far.yaml").write_text(text)
    for law, verdict in ((right, "matches_baseline"), (wrong_later, "mismatch")):
        base, other = (
            tiny.server(answer, i, has_ids=has_ids) for i, answer in enumerate((right, law))
        )
        findings = findings_of(tiny, base, other, (0.0, TEMPERATURE), pairings_file="far.yaml")
        assert [finding.verdict for finding in findings] == [
            "matches_baseline",
            "matches_baseline",
            "identical",
            verdict,
        ]
        assert exit_code(findings) == (verdict == "mismatch")
        assert findings[3].not_scored_because.startswith("owner/far ")


def test_a_near_tie_is_not_a_fault_but_is_in_the_document(tiny: Tiny) -> None:
    swaps = {tiny.tied: tiny.other}
    findings = findings_of(tiny, tiny.server(right, 1), tiny.server(right, 2, swaps), (0.0,))
    assert [finding.verdict for finding in findings] == ["identical", "near_tie"]
    assert exit_code(findings) == 0
    (first, *_) = divergence_lines(findings)
    assert re.match(r"tiny/ngram .*vllm .*K=2: prompts\.jsonl/p", first)
    assert first.endswith("; a near-tie")
    assert findings[1].first_divergence.found == tiny.other
    baseline, drafts = document(findings)["results"]
    assert baseline["divergences"] == []
    assert drafts["divergences"][0]["prompt_id"].startswith("prompts.jsonl/p")
    assert drafts["not_looked_at"] is None


def test_a_greedy_divergence_that_rounding_does_not_explain_is_a_fault(tiny: Tiny) -> None:
    swaps = {tiny.tied: 150}
    findings = findings_of(tiny, tiny.server(right, 1), tiny.server(right, 2, swaps), (0.0,))
    assert [finding.verdict for finding in findings] == ["identical", "mismatch"]
    assert exit_code(findings) == 1
    first = divergence_lines(findings)[0]
    assert f": 150 instead of {tiny.tied}, " in first
    assert first.endswith("not explain it")
    assert answers(findings)[1].verdict == "mismatch"


def test_without_logits_a_divergence_is_reported_but_not_judged(tiny: Tiny) -> None:
    """K=0 itself differs from the target on this machine: its logits would prove nothing."""
    baseline = tiny.server(right, 1, {tiny.tied: 150})
    findings = findings_of(tiny, baseline, tiny.server(right, 2), (0.0,))
    assert [finding.verdict for finding in findings] == ["matches_baseline", "inconclusive"]
    assert exit_code(findings) == 3
    assert re.search("not scored, .*K=0 ", divergence_lines(findings)[0])


def test_prompts_of_another_template_are_not_scored(tiny: Tiny) -> None:
    servers = [tiny.server(right, i) for i in (1, 2)]
    for server in servers:
        server.num_prompt_tokens = lambda _: 7
    findings = findings_of(tiny, *servers, (0.0, TEMPERATURE))
    assert " 7 tokens " in findings[0].not_scored_because
    assert [finding.verdict for finding in findings] == [
        "matches_baseline",
        "matches_baseline",
        "identical",
        "matches_baseline",
    ]


def test_verify_on_a_server_prints_the_verdicts_and_exits_1(tiny: Tiny) -> None:
    servers = [tiny.server(right, 1), tiny.server(wrong_later, 2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(server)) for server in servers]
        words = (
            "verify tiny/ngram --engine vllm --num-prompts 3 --num-tokens 1000 -w prompts.jsonl "
            f"--base-url {urls[0]}#k=0 --base-url {urls[1]}#k=2 --temperature 0,0.3 "
            "--max-new-tokens 24 --device cpu --threads 1"
        )
        ran = specbench(*words.split(), cwd=tiny.folder)
    assert ran.code == 1
    *_, of_own, of_drafts = ran.out.splitlines()
    assert re.match("tiny .*vllm .*K=0: sound: ", of_own)
    assert re.match(r"tiny/ngram .*vllm .*K=2: NOT lossless: at T=0\.3: ", of_drafts)


def test_verify_of_servers_needs_one_without_speculation(tiny: Tiny) -> None:
    with serving(tiny.server(right, 1)) as url:
        settings = settings_of(
            pairings=("tiny/ngram",),
            workloads=(str(tiny.folder / "prompts.jsonl"),),
            engines=("vllm",),
            base_urls=(f"{url}#k=4",),
        )
        pairings = load_pairings(tiny.folder / "pairings.yaml").select(("tiny/ngram",))
        with pytest.raises(UsageError, match="one without speculation"):
            collect_served_evidence(
                plan_run(settings, pairings), RecordingWatch(), num_tokens=100, concurrency=1
            )


def test_pairings_with_a_lossy_rule_need_no_server(tiny: Tiny) -> None:
    (pairing,) = load_pairings(tiny.folder / "pairings.yaml").select(("tiny/ngram",))
    rule = LossyRule(name="threshold", parameters={"single": 0.5})
    pairing = replace(pairing, drafter=replace(pairing.drafter, lossy=rule))
    settings = settings_of(
        pairings=("tiny/ngram",),
        workloads=(str(tiny.folder / "prompts.jsonl"),),
        engines=("builtin", "vllm"),
    )
    watch = RecordingWatch()

    plan = plan_run(settings, (pairing,))
    assert collect_served_evidence(plan, watch, num_tokens=100, concurrency=1) == []
    assert "tiny/ngram" in watch.warnings[0]


def test_a_server_that_refuses_is_not_verified_but_the_others_are(tiny: Tiny) -> None:
    broken = tiny.server(right, 2)
    broken.is_broken = True
    findings = findings_of(tiny, tiny.server(right, 1), broken, (0.0,))
    assert [finding.verdict for finding in findings] == ["identical", "failed"]
    assert "0 of 3 requests" in text(findings[1].reasons[0])
    assert exit_code(findings) == 4
    findings = findings_of(tiny, broken, tiny.server(right, 1), (0.0,))
    assert "K=0 " in text(findings[1].reasons[0])


def test_a_server_that_breaks_off_gets_no_verdict_and_no_more_requests(tiny: Tiny) -> None:
    broken = tiny.server(right, 2)
    broken.breaks_off_at = 5
    findings = findings_of(tiny, tiny.server(right, 1), broken, (TEMPERATURE,))
    assert [finding.verdict for finding in findings] == ["matches_distribution", "failed"]
    assert "requests were answered" in text(findings[1].reasons[0])
    assert exit_code(findings) == 4
    assert broken.num_asked < 5 + 4  # the ones in progress


def test_verify_refuses_restart_cycles(tmp_path: Path) -> None:
    ran = specbench(
        "verify", "demo/draft", "--engine", "vllm", "--restart-cycles", "4", cwd=tmp_path
    )
    assert ran.code == 2
    assert "--restart-cycles" in ran.err


def test_a_target_that_does_not_fit_into_the_memory_of_the_container_is_not_scored(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "specbench.bench.served.reference_scorer.host_available_bytes"
    monkeypatch.setattr(name, lambda: 1000)
    findings = findings_of(tiny, tiny.server(right, 1), tiny.server(right, 2), (0.0,))
    assert all(
        "this machine has 0.0 GiB free" in finding.not_scored_because for finding in findings
    )


def test_the_control_has_none_of_the_seeds_of_k_0(tiny: Tiny) -> None:
    """A server that honors them would give both the same noise, but K = 0 and K different noise."""
    seeds: dict[float, set[int]] = {}
    server = tiny.server(right, 1)
    length_of = server.num_prompt_tokens

    def noted(body: dict[str, Any]) -> int:
        seeds.setdefault(body["temperature"], set()).add(body["seed"])
        return length_of(body)

    server.num_prompt_tokens = noted
    findings_of(tiny, server, tiny.server(right, 2), (TEMPERATURE,))
    assert sorted(seeds) == pytest.approx([CONTROL * TEMPERATURE, TEMPERATURE])
    assert not set.intersection(*seeds.values())
