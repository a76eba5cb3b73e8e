"""`verify` passes a sound decoder and fails the same decoder with planted faults."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.decode import verifier
from specbench.decode.sampling import Purpose, Sampler, uniform
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, ServedPass, Work
from specbench.engines.model_pool import ModelPool
from specbench.forward.runner import StockRunner
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.inputs.workloads import load_workload
from specbench.records import Kind, Request, Sampling
from specbench.verify.collect import Collector, EngineUnderTest, KnownOutput, VerificationPrompt
from specbench.verify.judge import Finding
from specbench.verify.reference_model import ReferenceModel
from tests.decoding.lossless import decode, make_drafter, sampled_model
from tests.tiny_pair import make_pair, write_pair
from tests.verify.test_judge import single

WARM = Sampling(temperature=0.7)
NUM_TOKENS = 3072
NUM_ROWS = 16  # prompts that are decoded together
DEMO = """\
targets:
  demo:
    model: demo:target
    workloads: demo
    drafters:
      draft: {method: draft_model, model: demo:draft}
"""
K = 4


class Bench:
    """One pairing with everything that examines it."""

    def __init__(self, pairing: Pairing, workload: str, num_prompts: int, length: int) -> None:
        pool = ModelPool(torch.device("cpu"))
        self.engine = BuiltinEngine(pairing.target, pool)
        self.engine.add_drafter(pairing.drafter)
        self.pairing = pairing
        reference = ReferenceModel(pool.load(pairing.target.model).model)
        prompts = load_workload(workload, folder=pairing.target.workloads).take(num_prompts, 0)
        questions = [
            VerificationPrompt(
                id=prompt.id,
                prompt_ids=self.engine.tokenizer.prompt_ids(prompt.turns[0]),
                max_new_tokens=length,
            )
            for prompt in prompts
        ]
        self.num_rows = num_prompts
        self.make = lambda seed: Collector(reference, questions, seed=seed)

    def case(self, k: int = K) -> EngineUnderTest:
        drafter = self.pairing.drafter
        work = Work(drafter=drafter.name, method=drafter.method, k=k)
        return EngineUnderTest(
            self.pairing.name, self.engine, work if k else self.engine.baseline, self.num_rows
        )

    def sampled(self, seed: int = 0, num_tokens: int = NUM_TOKENS, **sampling: float) -> Finding:
        return single(self.make(seed).sampled(self.case(), replace(WARM, **sampling), num_tokens))

    def greedy(self) -> Finding:
        collector = self.make(0)
        baseline, texts = (collector.greedy_texts(self.case(k)) for k in (0, K))
        return single(collector.greedy(self.case(), texts, baseline))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("tiny"), num_prompts=NUM_ROWS).parent


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Bench:
    (pairing,) = load_pairings(folder / "pairings.yaml").select(["tiny/draft"])
    return Bench(pairing, str(folder / "prompts.jsonl"), num_prompts=NUM_ROWS, length=64)


@pytest.fixture(scope="module")
def unlike_draft(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A draft model that seldom agrees with its target."""
    folder = write_pair(tmp_path_factory.mktemp("stranger"), num_prompts=NUM_ROWS).parent
    _, draft = make_pair(agreement=1.0)
    for parameter in draft.parameters():
        parameter.data.mul_(1.5)
    draft.save_pretrained(folder / "draft")
    (pairing,) = load_pairings(folder / "pairings.yaml").select(["tiny/draft"])
    return Bench(pairing, str(folder / "prompts.jsonl"), num_prompts=NUM_ROWS, length=64)


@pytest.fixture(scope="module")
def lookup(folder: Path) -> Bench:
    (pairing,) = load_pairings(folder / "pairings.yaml").select(["tiny/ngram"])
    return Bench(pairing, str(folder / "prompts.jsonl"), num_prompts=NUM_ROWS, length=64)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def plant(fault: str) -> None:
        monkeypatch.setattr(*FAULTS[fault])

    return plant


_probs, _pick = Sampler.probs, Sampler.pick


def _twice_as_cold(self: Sampler, logits: Tensor) -> Tensor:
    """Temperature applied twice."""
    if self.is_greedy:
        return _probs(self, logits)
    squared = replace(self.sampling, temperature=self.sampling.temperature**2)
    return _probs(Sampler(squared), logits)


def _one_in_fifty(seed_B: Tensor, positions_BT: Tensor, purpose: Purpose) -> Tensor:
    """Numbers that accept a draft one time in fifty, whatever the target's probability."""
    chance_BT = uniform(seed_B, positions_BT, purpose)
    is_blind_BT = uniform(seed_B, positions_BT, Purpose.SYNTHETIC) < 1 / 50
    return torch.where(is_blind_BT, 0.0, chance_BT)


def _favoring_some(self: Sampler, logits: Tensor) -> Tensor:
    """A third more probability for every token with a small id."""
    weights_V = torch.where(torch.arange(logits.shape[-1]) < 136, 4 / 3, 1.0)
    weighted = _probs(self, logits) * weights_V
    return weighted / weighted.sum(-1, keepdim=True)


def _noise_used_twice(self: Sampler, logits: Tensor, seeds: Tensor, places: Tensor) -> Tensor:
    return _pick(self, logits, seeds, places // 2)


FAULTS = {
    "temperature applied twice": (Sampler, "probs", _twice_as_cold),
    "one draft in fifty too many": (verifier, "uniform", _one_in_fifty),
    "favored tokens": (Sampler, "probs", _favoring_some),
    "noise used twice": (Sampler, "pick", _noise_used_twice),
}


@pytest.mark.slow
def test_the_unmodified_decoder_is_lossless(tiny: Bench, lookup: Bench) -> None:
    for bench in (tiny, lookup):
        finding = bench.sampled(num_tokens=NUM_TOKENS // 2)
        print(finding.p_values, finding.control_p_value)
        assert (finding.verdict, bench.greedy().verdict) == ("matches_distribution", "identical")
    assert (
        tiny.sampled(num_tokens=NUM_TOKENS // 2, top_k=20, top_p=0.9).verdict
        == "matches_distribution"
    )


@pytest.mark.slow
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("temperature", [0.2, 0.7])
def test_low_acceptance_keeps_the_distribution(temperature: float, unlike_draft: Bench) -> None:
    assert unlike_draft.sampled(temperature=temperature).verdict == "matches_distribution"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "seen_by", "temperature"),
    [
        ("temperature applied twice", "temperature", 0.7),
        ("one draft in fifty too many", "surprise", 0.2),  # a random target is flat when warm
        ("favored tokens", "identity", 0.7),
    ],
)
def test_a_planted_sampling_fault_is_detected(
    fault: str,
    seen_by: str,
    temperature: float,
    unlike_draft: Bench,
    plant: Callable[[str], None],
) -> None:
    plant(fault)
    finding = unlike_draft.sampled(temperature=temperature, num_tokens=NUM_TOKENS)
    print(fault, finding.p_values)
    assert (finding.verdict, finding.lossless) == ("mismatch", False)
    assert finding.p_values[seen_by] < 1e-4


class SevenTokens:
    """An engine that returns only tokens: the decoder over a tiny vocabulary."""

    name = "seven"
    eos_ids = ()
    baseline = Work(drafter="none", method="none", k=0)

    def __init__(self) -> None:
        self.target, self.draft = (StockRunner(sampled_model(seed)) for seed in (0, 1))

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        drafter = make_drafter(work.method, self.target, self.draft)
        results = []
        for first in range(0, len(requests), load.concurrency):
            sent = [
                Request(prompt_ids=r.prompt_ids, max_new_tokens=r.max_new_tokens, seed=r.seed)
                for r in requests[first : first + load.concurrency]
            ]
            results += decode(self.target, drafter, sent, k=work.k, sampling=requests[0].sampling)
        return ServedPass(results=tuple(results), seconds=0.0, rounds=None, cpu_s=0.0)


def of_seven_tokens(method: str) -> Finding:
    question = VerificationPrompt(
        id="p0", prompt_ids=(1, 5, 2, 3, 1, 5, 2, 6, 4, 1, 5), max_new_tokens=32
    )
    collector = Collector(ReferenceModel(sampled_model(0)), [question] * 64, seed=0)
    work = Work(drafter="d", method=method, k=3)
    case = EngineUnderTest("seven/d", SevenTokens(), work, num_rows=256)
    return single(collector.sampled(case, WARM, 8192))


@pytest.mark.slow
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_a_small_vocabulary_is_enumerated(method: str) -> None:
    finding = of_seven_tokens(method)
    assert finding.verdict == "matches_distribution"
    assert finding.p_values["joint"] > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["temperature applied twice", "noise used twice"])
def test_faults_of_a_small_vocabulary_are_found(fault: str, plant: Callable[[str], None]) -> None:
    plant(fault)
    finding = of_seven_tokens("ngram")
    print(fault, finding.p_values)
    assert finding.verdict == "mismatch"
    assert finding.p_values["joint"] < 1e-6


def test_tokens_that_top_k_excludes_are_found(tiny: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    uncut = lambda self, logits: _probs(Sampler(replace(self.sampling, top_k=0)), logits)  # noqa: E731
    monkeypatch.setattr(Sampler, "probs", uncut)
    finding = tiny.sampled(num_tokens=512, top_k=5)
    assert finding.verdict == "mismatch"
    assert finding.reasons[0].kind is Kind.OUTSIDE


def test_a_planted_greedy_fault_is_located(tiny: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "_count_leading", lambda kept_BK: kept_BK.sum(1))
    finding = tiny.greedy()
    assert (finding.verdict, finding.lossless) == ("mismatch", False)
    first = finding.first_divergence
    assert first is not None
    assert first.prompt_id.startswith("p")
    assert first.steps is not None
    assert first.steps > first.tie_steps
    assert first.gap > 0


def test_too_few_tokens_are_inconclusive(tiny: Bench) -> None:
    finding = tiny.sampled(num_tokens=20)
    assert (finding.verdict, finding.lossless) == ("inconclusive", None)


def test_evidence_has_the_requested_number_of_tokens(tiny: Bench) -> None:
    evidence = tiny.make(0).sampled(tiny.case(), WARM, 777)
    assert len(evidence.surprise_N) == len(evidence.identity_N) == 777
    assert evidence.num_texts >= 777 // 64


def test_the_tokens_needed_do_not_depend_on_the_sampler(
    tiny: Bench, plant: Callable[[str], None]
) -> None:
    """No sampled token enters: the number cannot prefer a verdict."""

    def needed(seed: int) -> float:
        collector, case = tiny.make(seed), tiny.case(0)
        texts = zip(collector._prompts, collector.greedy_texts(case), strict=True)
        collector._prompts = [replace(q, answer=KnownOutput("builtin", ids)) for q, ids in texts]
        return collector.tokens_for_control(case, WARM, 1e-4)

    sound = needed(0)
    plant("temperature applied twice")
    assert needed(0) == needed(1) == sound
    assert 100 < sound < 100_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "temperature"),
    # At these temperatures the demo pair shows it in the fewest tokens: p < 1e-14, three seeds.
    [("temperature applied twice", 1.4), ("one draft in fifty too many", 0.4)],
)
def test_faults_in_the_demo_pair_are_detected(
    fault: str, temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairings.yaml").write_text(DEMO)
    (pairing,) = load_pairings(tmp_path / "pairings.yaml").all
    demo = Bench(pairing, "chat", num_prompts=32, length=128)
    sound = demo.sampled(temperature=temperature, num_tokens=2048)
    monkeypatch.setattr(*FAULTS[fault])
    broken = demo.sampled(temperature=temperature, num_tokens=2048)
    print(fault, sound.p_values, broken.p_values)
    assert sound.lossless is not False
    assert broken.verdict == "mismatch"
    # The demo target is too certain at 0.4 to show its own temperature so soon.
    assert temperature < 1 or sound.verdict == "matches_distribution"
