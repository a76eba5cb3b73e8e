"""The two checks that a drafter changes speed and never the text.

At temperature 0 the text equals transformers' own; above it, texts have exactly the target's
distribution. The real tests assert both; test_planted_bugs.py asserts that each fails for broken
code.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.gpu_suite.made_up_tokenizers import made_up_tokenizers
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter, NoDrafter, Proposal
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.sampling import Purpose, Sampler, draw
from specbench.decode.scheduler import Policy
from specbench.decode.serving import ServedRequests
from specbench.decode.verifier import verify
from specbench.drafters.registry import Parts, build_drafter, drafter_class
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner
from specbench.methods import find_method
from specbench.models.checkpoint import Checkpoint
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Request, Result, Sampling
from tests.decoding.fakes import CountingClock
from tests.decoding.models import plain_logits, tiny_llama

GREEDY = Sampling()
GREEDY_SAMPLER = Sampler(GREEDY)


def make_decoder(target: Runner, drafter: Drafter, **changes: Any) -> Decoder:
    """A decoder on a clock whose marks are one second apart."""
    return Decoder(target, drafter, **{"eos_ids": (), "clock": CountingClock(), **changes})


def decode(
    target: Runner,
    drafter: Drafter,
    requests: Sequence[Request],
    *,
    k: int,
    sampling: Sampling = GREEDY,
    **changes: Any,
) -> list[Result]:
    """Decode together, with changes to the decoder."""
    return make_decoder(target, drafter, **changes).decode(requests, Sampler(sampling), k=k)


def serve(
    target: Runner,
    drafter: Drafter,
    requests: Sequence[Request],
    policy: Policy,
    num_rows: int,
    sampling: Sampling = GREEDY,
    **changes: Any,
) -> ServedRequests:
    """Decode with this batch size, with changes to the decoder."""
    decoder = make_decoder(target, drafter, **changes)
    return decoder.serve(requests, Sampler(sampling), policy, num_rows=num_rows)


def filled_rows(
    target: Runner,
    drafter: Drafter,
    requests: Sequence[Request],
    sampler: Sampler = GREEDY_SAMPLER,
    *,
    num_rows: int | None = None,
    **changes: Any,
) -> Rows:
    """The first rows after the prefill of the requests."""
    num_rows = num_rows or len(requests)
    given = {"capacity": 64, "eos_ids": (), **changes}
    rows = Rows(target, drafter, num_rows=num_rows, **given)
    rows.begin(num_rows)
    rows.fill([PrefillRequest(row, request) for row, request in enumerate(requests)], sampler)
    return rows


def make_drafter(
    method: str,
    target: Runner,
    draft: Runner | None = None,
    *,
    p_min: float = 0.0,
    **parameters: Any,
) -> Drafter:
    """The named method; `none` is the baseline, which only runs at k = 0."""
    if method == "none":
        return NoDrafter()

    head = new_head(method, target) if find_method(method).is_head else None
    drafter = build_drafter(method, parts_of(target, draft, head), parameters)
    drafter.p_min = p_min
    return drafter


def new_head(method: str, target: Any, seed: int = 0) -> Checkpoint:
    """A head with random weights for the model of a runner, on its device."""
    with target.device:
        head: Checkpoint = drafter_class(method).new_checkpoint(target.model.config, seed)
    return head


def deepest(drafter: Drafter, k: int) -> int:
    """K, or the maximum that the drafter can draft."""
    return min(k, drafter.capabilities.max_k or k)


def parts_of(
    target: Runner, draft: Runner | None = None, checkpoint: Checkpoint | None = None
) -> Parts:
    """The parts that a test has; a drafter that needs another one fails the test."""

    def draft_runner() -> Runner:
        assert draft is not None, "the drafter asked for a draft model and the test has none"
        return draft

    def files() -> Checkpoint:
        assert checkpoint is not None, "the drafter asked for a head and the test has none"
        return checkpoint

    def tokenizers() -> tuple[ChatTokenizer, ChatTokenizer]:
        return made_up_tokenizers(target.vocab_size, draft_runner().vocab_size)

    return Parts(target=target, draft_runner=draft_runner, checkpoint=files, tokenizers=tokenizers)


def must_not_load() -> Any:
    raise AssertionError("nothing may be loaded")


def acceptance_rate(results: Sequence[Result]) -> float:
    """The share of accepted drafts, in rounds and in predicted outputs checked in one forward."""
    checks = [r.answer_check for r in results if r.answer_check]
    drafted = sum(sum(r.rounds.num_drafted) for r in results) + sum(c.num_drafted for c in checks)
    accepted = sum(sum(r.rounds.num_accepted) for r in results)
    return (accepted + sum(c.num_accepted for c in checks)) / drafted


def texts_of(results: Sequence[Result]) -> list[tuple[int, ...]]:
    return [result.output_ids for result in results]


def assert_texts(results: Sequence[Result], expected: Sequence[tuple[int, ...]]) -> None:
    """Every text is the expected one; a difference names its row and first position."""
    for row, (result, text) in enumerate(zip(results, expected, strict=True)):
        pairs = enumerate(itertools.zip_longest(result.output_ids, text))
        where = next((i for i, (got, wanted) in pairs if got != wanted), None)
        assert where is None, f"row {row} differs at {where}: {result.output_ids}, not {text}"


def until_eos(text: tuple[int, ...], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """The text up to and including its first end-of-text token."""
    ends = (i + 1 for i, token in enumerate(text) if token in eos_ids)
    return text[: next(ends, len(text))]


# The distribution: six tokens of a seven-token model, so that all 7**6 texts can be enumerated.
SAMPLED_VOCAB_SIZE = 7
NUM_SAMPLED_TOKENS = 6
NUM_SAMPLES = 10_240
NUM_ROWS = 512
SAMPLED_PROMPT = (1, 5, 2, 3, 1, 5, 2, 6, 4, 1, 5)  # repeats, so that a lookup finds something
SAMPLED_PREDICTION = (0, 2, 1, 5, 0, 2)  # the most likely text
WARM = Sampling(temperature=0.7)
FIRST, LAST = slice(0, 3), slice(3, 6)  # the triples whose joint distributions are tested


def sampled_model(seed: int, num_layers: int = 1) -> Any:
    """A seven-token Llama with flat distributions, so that drafts are accepted and refused."""
    return tiny_llama(
        seed,
        vocab_size=SAMPLED_VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.15,
    )


def exact_probs(model: Any, sampling: Sampling, num_tokens: int = NUM_SAMPLED_TOKENS) -> Tensor:
    """Probability of each text [7, 7, 7, 7, 7, 7] from plain forwards and transformers' warpers."""
    V = model.config.vocab_size
    prefixes = list(itertools.product(range(V), repeat=num_tokens - 1))
    tokens_NT = torch.tensor([[*SAMPLED_PROMPT, *prefix] for prefix in prefixes])
    warpers: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))

    probs = torch.ones((), dtype=torch.float64)
    logits_NTV = plain_logits(model, tokens_NT)[:, len(SAMPLED_PROMPT) - 1 :]
    for i in range(num_tokens):
        scores_NV = logits_NTV[:: V ** (num_tokens - 1 - i), i].double()
        for warper in warpers:
            scores_NV = warper(None, scores_NV)
        probs = probs[..., None] * scores_NV.softmax(-1).view(*probs.shape, V)
    return probs


def sample_texts(
    target: Runner,
    drafter: Drafter,
    *,
    k: int,
    sampling: Sampling,
    first_seed: int = 0,
    num_samples: int = NUM_SAMPLES,
    num_tokens: int = NUM_SAMPLED_TOKENS,
) -> tuple[Tensor, float]:
    """Texts [N, 6], decoded in batches of NUM_ROWS, and the share of drafts accepted."""
    results: list[Result] = []
    all_seeds = range(first_seed, first_seed + num_samples)
    for seeds in (all_seeds[i : i + NUM_ROWS] for i in range(0, num_samples, NUM_ROWS)):
        requests = [
            Request(
                prompt_ids=SAMPLED_PROMPT,
                max_new_tokens=num_tokens,
                seed=s,
                prediction_ids=SAMPLED_PREDICTION,
            )
            for s in seeds
        ]
        results += decode(target, drafter, requests, k=k, sampling=sampling)
    texts = torch.tensor([r.output_ids for r in results])
    return texts, acceptance_rate(results) if k else 0.0


def sampled_p_value(texts_N6: Tensor, probs: Tensor, triple: slice) -> float:
    """Chi-square p-value of three tokens' joint distribution; cells expected below 5 are pooled.

    A text of probability 0 gives p = 0.
    """
    V, places = probs.shape[0], range(probs.ndim)
    other = [i for i in places if i not in places[triple]]
    expected = probs.sum(dim=other).flatten() * len(texts_N6)
    weights_3 = torch.tensor([V**2, V, 1])
    cells_N = (texts_N6[:, triple] * weights_3).sum(1)
    observed = torch.bincount(cells_N, minlength=len(expected)).double()
    if bool((observed[expected == 0] > 0).any()):
        return 0.0

    order = expected.argsort()
    num_pooled = int((expected[order].cumsum(0) < 5).sum()) + 1
    num_pooled = max(num_pooled, int((expected < 5).sum()))
    pooled, kept = order[:num_pooled], order[num_pooled:]
    observed = torch.cat([observed[pooled].sum()[None], observed[kept]])
    expected = torch.cat([expected[pooled].sum()[None], expected[kept]])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, len(expected) - 1))


def one_draft_p_value(num_rows: int = 100_000) -> float:
    """Chi-square p-value of the token that follows one draft drawn from another distribution."""
    generator = torch.Generator().manual_seed(0)
    q_V, p_V = torch.randn(2, SAMPLED_VOCAB_SIZE, generator=generator).softmax(-1)
    seeds_B, place_B1 = torch.arange(num_rows), torch.full((num_rows, 1), 4)
    q_B1V = q_V.expand(num_rows, 1, -1)
    drafts_B1 = draw(q_B1V, seeds_B, place_B1, Purpose.DRAFT)

    verdict = verify(
        Proposal(drafts_B1, torch.ones_like(seeds_B), q_B1V),
        p_V.log().expand(num_rows, 2, -1),
        Sampler(Sampling(temperature=1.0)),
        seeds_B,
        torch.cat([place_B1, place_B1 + 1], 1),
    )

    observed_V = torch.bincount(verdict.tokens_BT[:, 0], minlength=SAMPLED_VOCAB_SIZE)
    expected_V = num_rows * p_V.double()
    statistic = float(((observed_V - expected_V) ** 2 / expected_V).sum())
    return float(chi2.sf(statistic, SAMPLED_VOCAB_SIZE - 1))


class SamplingBench:
    """One target and one draft model of the seven-token language, with the exact distribution."""

    def __init__(self, sampling: Sampling = WARM, num_layers: int = 1) -> None:
        model = sampled_model(seed=0, num_layers=num_layers)
        self.sampling = sampling
        self.probs = exact_probs(model, sampling)
        self.target = FusedRunner(model)
        self.draft = FusedRunner(sampled_model(seed=1))
