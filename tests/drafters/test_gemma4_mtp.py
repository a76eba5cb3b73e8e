"""Assistants of Gemma 4, compared with transformers' own assisted generation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import candidate_generator
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4_assistant import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
)

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.gemma4_mtp import AssistantHead, Gemma4Mtp
from specbench.errors import ModelError
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import assert_texts, decode, parts_of
from tests.decoding.models import generated, random_prompt

V, F, WINDOW, NUM_NEW = 60, 32, 12, 24
NUM_CHOSEN = 8  # centroids whose tokens get logits
TheirGenerator = candidate_generator.SinglePositionMultiTokenCandidateGenerator
LENGTHS = (5, 9, 17, 21)  # the last two are longer than the window
SHAPE = {
    "vocab_size": V,
    "hidden_size": F,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": WINDOW,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
# The last layers of the target share the keys of layers 2 and 3, which the assistant reads.
KINDS = ("sliding", "full", "sliding", "full", "sliding", "full")
SLIDING, FULL = "sliding_attention", "full_attention"


class Pair(NamedTuple):
    target: Any
    assistant: Any


def kinds(names: Sequence[str]) -> dict[str, Any]:
    return {"layer_types": [f"{n}_attention" for n in names], "num_hidden_layers": len(names)}


@torch.no_grad()
def draw(model: Any, seed: int, layers: float) -> Any:
    """Random weights in float64; those that leave a layer are scaled by `layers`."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        scale = 0.2 if weight.dim() == 1 else weight.shape[-1] ** -0.5
        if "post_" in name and "norm" in name:
            weight.fill_(layers)
        else:
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * scale
            weight.copy_(drawn + (weight.dim() == 1))
    return model.double().eval()


@cache
def pair(num_centroids: int = 0) -> Pair:
    """A target, and an assistant that has its output matrix and often agrees with it."""
    shared = {"num_kv_shared_layers": 2, "tie_word_embeddings": False}
    inputs = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": V}
    config = Gemma4TextConfig(**SHAPE, **kinds(KINDS), **shared, **inputs)
    target = draw(Gemma4ForCausalLM(config), 0, 0.25)
    inputs = dict.fromkeys(inputs, 0)
    text = Gemma4TextConfig(**SHAPE, **kinds(("sliding", "full")), num_kv_shared_layers=2, **inputs)
    centroids = {"use_ordered_embeddings": num_centroids > 0, "num_centroids": num_centroids or 1}
    made = Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=F,
        centroid_intermediate_top_k=NUM_CHOSEN,
        **centroids,
    )
    assistant = draw(Gemma4AssistantForCausalLM(made), 1, 0.25)
    with torch.no_grad():
        assistant.pre_projection.weight.mul_(0.3)
        assistant.pre_projection.weight[:, :F] += torch.eye(F)
        assistant.post_projection.weight.copy_(torch.eye(F))
        assistant.model.norm.weight.copy_(target.model.norm.weight)
        assistant.lm_head.weight.copy_(target.lm_head.weight)
        if num_centroids:
            order = torch.randperm(V, generator=torch.Generator().manual_seed(2))
            assistant.masked_embedding.token_ordering = order
    return Pair(target, assistant)


def checkpoint_of(assistant: Any) -> Checkpoint:
    tensors = {n: t for n, t in assistant.state_dict().items() if n != "lm_head.weight"}
    config = assistant.config.to_dict() | {"architectures": [type(assistant).__name__]}
    return Checkpoint(source="an assistant", config=config, tensors=tensors)


def prompts() -> list[tuple[int, ...]]:
    return [random_prompt(n, seed=n, vocab_size=V) for n in LENGTHS]


class Round(NamedTuple):
    """A round of transformers' assisted generation."""

    drafts: tuple[int, ...]
    num_accepted: int


@contextmanager
def watched(rounds: list[Round], *, trims: bool) -> Iterator[None]:
    """Records transformers' rounds. `trims`: it gets only the keys of committed tokens, the last
    WINDOW of them in layers with a window."""
    propose, note = TheirGenerator.get_candidates, TheirGenerator.update_candidate_strategy
    drafted: list[tuple[int, ...]] = []

    def get_candidates(self: Any, input_ids: Tensor, **arguments: Any) -> Any:
        out = arguments["model_outputs"]
        if len(drafted) == 1:  # after the prompt, whose first state transformers 5.17 would take
            out.hidden_states = (out.hidden_states[-1][:, -1:],)
        if out is not None and trims:
            kept = out.shared_kv_states
            num_rejected = kept[FULL][0].shape[2] - (input_ids.shape[1] - 1)
            for kind in (FULL, SLIDING):
                kv = (x[:, :, : x.shape[2] - num_rejected] for x in kept[kind])
                kept[kind] = tuple(x if kind == FULL else x[:, :, -WINDOW:] for x in kv)
        ids, logits = propose(self, input_ids, **arguments)
        drafted.append(tuple(ids[0, input_ids.shape[1] :].tolist()))
        return ids, logits

    def update(self: Any, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        note(self, input_ids, scores, num_matches)
        rounds.append(Round(drafted[-1], int(num_matches)))

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(TheirGenerator, "get_candidates", get_candidates)
        patched.setattr(TheirGenerator, "update_candidate_strategy", update)
        yield


def assisted(subject: Pair, prompt: Sequence[int], k: int, *, trims: bool) -> list[Round]:
    """The rounds of transformers with K drafts; the first forward, of the prompt, has none."""
    subject.assistant.generation_config = GenerationConfig(
        num_assistant_tokens=k, num_assistant_tokens_schedule="constant"
    )
    rounds: list[Round] = []
    with watched(rounds, trims=trims), torch.no_grad():
        subject.target.generate(
            torch.tensor([prompt]),
            assistant_model=subject.assistant,
            max_new_tokens=NUM_NEW,
            do_sample=False,
        )
    return rounds[1:]


class Noting(Wrapped):
    """A drafter whose proposals are noted."""

    def __init__(self, inner: Gemma4Mtp) -> None:
        super().__init__(inner)
        self.noted: list[tuple[int, ...]] = []

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = self.inner.propose(state, k, span, sampler)
        self.noted.append(tuple(proposal.tokens_BK[0].tolist()))
        return proposal


def ours(subject: Pair) -> tuple[StockRunner, Gemma4Mtp]:
    runner = StockRunner(deepcopy(subject.target))
    return runner, Gemma4Mtp(parts_of(runner, checkpoint=checkpoint_of(subject.assistant)))


def our_rounds(subject: Pair, prompt: tuple[int, ...], k: int) -> list[Round]:
    runner, drafter = ours(subject)
    noting = Noting(drafter)
    request = Request(prompt_ids=prompt, max_new_tokens=NUM_NEW)
    (result,) = decode(runner, noting, [request], k=k)
    return [Round(*of) for of in zip(noting.noted, result.rounds.num_accepted, strict=True)]


@pytest.mark.sampled(one_in=2, every=["num_centroids", "k"])
@pytest.mark.parametrize("num_centroids", [0, 10])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_rounds_are_those_of_transformers_over_committed_tokens(num_centroids: int, k: int) -> None:
    """Drafts and accepted lengths, of transformers without the key of a rejected draft."""
    subject, counts = pair(num_centroids), []
    for prompt in prompts():
        theirs = assisted(subject, prompt, k, trims=True)
        own = our_rounds(subject, prompt, k)
        assert [made.num_accepted for made in own] == [made.num_accepted for made in theirs]
        for mine, yours in zip(own, theirs, strict=True):  # only ours drafts past the output's end
            assert mine.drafts[: len(yours.drafts)] == yours.drafts
        counts += [made.num_accepted for made in own]
    assert {0, min(k, 3)} <= {*counts}, "rounds that reject all drafts, and that accept several"


def test_first_drafts_are_those_of_unchanged_transformers() -> None:
    """In the first round, no draft was rejected before, whose key transformers would show."""
    subject = pair()
    short = [prompt for prompt in prompts() if len(prompt) <= WINDOW]
    for prompt in short:
        theirs = assisted(subject, prompt, 4, trims=False)
        assert our_rounds(subject, prompt, 4)[0].drafts == theirs[0].drafts


@pytest.mark.parametrize("k", [1, 4])
def test_text_is_that_of_generate_in_ragged_rows(k: int) -> None:
    subject = pair()
    texts = [generated(subject.target, prompt, NUM_NEW) for prompt in prompts()]
    runner, drafter = ours(subject)
    requests = [Request(prompt_ids=prompt, max_new_tokens=NUM_NEW) for prompt in prompts()]
    assert_texts(decode(runner, drafter, requests, k=k), texts)


def test_logits_are_those_of_transformers_for_the_same_keys() -> None:
    """Of the best centroids' tokens; others are never drafted."""
    for num_centroids in (0, 10):
        subject = pair(num_centroids)
        runner, _ = ours(subject)
        assistant = AssistantHead(checkpoint_of(subject.assistant), runner)
        generator = torch.Generator().manual_seed(3)

        def random(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        length, tokens_11 = 9, torch.tensor([[7]])
        keys_values = {
            kind: (random(1, of.num, length, of.size), random(1, of.num, length, of.size))
            for kind, of in assistant.style.heads.items()
        }
        states_11F, at_11 = random(1, 1, F), torch.tensor([[length]])
        masks = assistant.masks(at_11, length)
        with torch.no_grad():
            own, state = assistant.step(tokens_11, states_11F, at_11, keys_values, masks)
            embedded = subject.target.get_input_embeddings()(tokens_11)
            theirs = subject.assistant(
                inputs_embeds=torch.cat([embedded, states_11F], -1),
                position_ids=at_11,
                shared_kv_states=keys_values,
            )
        is_drafted = own > -torch.inf
        assert int(is_drafted.sum()) == (NUM_CHOSEN * V // num_centroids if num_centroids else V)
        torch.testing.assert_close(own[is_drafted], theirs.logits[is_drafted])
        torch.testing.assert_close(state, theirs.last_hidden_state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"backbone_hidden_size": 2 * F}, "hidden_size"),
        ({"text_config": {"head_dim": 16}}, "sliding_attention is 2 of size 16"),
        ({"text_config": {"global_head_dim": 8}}, "full_attention is 1 of size 8"),
        ({"text_config": {"num_global_key_value_heads": 4}}, "full_attention is 4 of size 16"),
        ({"text_config": {"layer_types": [FULL, SLIDING]}}, "layer_types"),
        ({"text_config": {"layer_types": ["linear_attention", FULL]}}, "layer_types"),
        (
            {"text_config": {"rope_parameters": {FULL: {"rope_type": "dynamic", "factor": 2}}}},
            "rope",
        ),
        ({"text_config": {"rope_parameters": {FULL: {"rope_type": "default"}}}}, SLIDING),
        (
            {
                "text_config": {
                    "rope_parameters": {
                        FULL: {"rope_type": "proportional", "partial_rotary_factor": 5},
                        SLIDING: {"rope_type": "default"},
                    }
                }
            },
            "partial_rotary_factor",
        ),
        ({"text_config": {"enable_moe_block": True}}, "enable_moe_block"),
        ({"text_config": {"hidden_activation": "x"}}, "hidden_act"),
        ({"text_config": {"intermediate_size": 40}}, "mlp"),
        ({"use_ordered_embeddings": True, "num_centroids": 7}, "num_centroids"),
        ({"use_ordered_embeddings": True, "num_centroids": 6}, "masked_embedding"),
    ],
)
def test_an_assistant_of_another_target_is_refused(change: dict[str, Any], named: str) -> None:
    subject = pair()
    runner = StockRunner(deepcopy(subject.target))
    made = Gemma4Mtp.new_checkpoint(subject.target.config, 0)
    config = {**made.config, **change}
    config["text_config"] = {**made.config["text_config"], **change.get("text_config", {})}
    with pytest.raises(ModelError, match=named):
        AssistantHead(Checkpoint(source="it", config=config, tensors=made.tensors), runner)


def test_an_ordering_of_ids_that_are_no_tokens_is_refused() -> None:
    runner = StockRunner(deepcopy(pair().target))
    made = Gemma4Mtp.new_checkpoint(pair().target.config, 0, num_centroids=10)
    name = "masked_embedding.token_ordering"
    wrong = {**made.tensors, name: made.tensors[name] + 1}
    with pytest.raises(ModelError, match="token_ordering"):
        AssistantHead(Checkpoint(source="it", config=made.config, tensors=wrong), runner)
