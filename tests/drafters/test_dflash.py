"""DFlash against its plain facts: the whole context and the block at once, without a cache.

Shape suffixes: T tokens of the context, N of the block, F hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.drafters.dflash import DFlash
from specbench.drafters.heads.dflash import spread_layers
from specbench.errors import ModelError
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Sampling
from specbench.round.round import run_round
from specbench.round.sampling import Sampler
from tests.decoding.lossless import parts_of
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.drafters.changed_heads import with_config
from tests.drafters.feature_cases import (
    SPAN,
    Guided,
    Path,
    Watched,
    num_kept,
    prefilled,
    run_rounds,
)

VOCAB_SIZE, NUM_LAYERS, BLOCK_SIZE = 11, 2, 6
PROMPTS = [random_prompt(n, n, VOCAB_SIZE) for n in (9, 1, 14)]
WARM = Sampling(temperature=0.7)


class PlainDFlash:
    """A head's tensors and what they say, by the facts."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model, self.config, self.tensors = model, checkpoint.config, checkpoint.tensors

    @torch.no_grad()
    def logits(self, text: Path, k: int) -> Tensor:
        """For the k tokens after a text, whose last token the target has not read [K, V]."""
        facts = self.config["dflash_config"]
        block = torch.tensor([text[-1], *[facts["mask_token_id"]] * k])
        states_NF = self.model.get_input_embeddings().weight[block]
        if len(text) > 1:
            ids_1T = torch.tensor([text[:-1]])
            out = self.model.model(input_ids=ids_1T, use_cache=False, output_hidden_states=True)
            chosen = [out.hidden_states[i + 1][0] for i in facts["target_layer_ids"]]
            context_TF = self.norm(
                torch.cat(chosen, -1) @ self.tensors["fc.weight"].T, "hidden_norm"
            )
        else:
            context_TF = states_NF[:0]
        for i in range(self.config["num_hidden_layers"]):
            seen_NS = self.seen(i, len(context_TF), len(block))
            states_NF = self.layer(f"layers.{i}.", context_TF, states_NF, seen_NS)
        return self.norm(states_NF[1:], "norm") @ self.model.get_output_embeddings().weight.T

    def seen(self, i: int, T: int, N: int) -> Tensor:
        """What layer i sees of the context and the block."""
        window = self.windows[i] if self.windows else None
        places_S, places_N1 = torch.arange(T + N), torch.arange(T, T + N)[:, None]
        seen_NS = torch.ones(N, T + N, dtype=torch.bool)
        if self.causal[i]:
            seen_NS &= places_S <= places_N1
        if window is not None:
            since_N1 = places_N1 - window if not self.from_current else T - 1 - window
            seen_NS &= (places_S > since_N1) | (places_S >= T)
        return seen_NS

    windows: Sequence[int | None] = ()
    causal: Sequence[bool] = (False, False)
    from_current = False

    def layer(self, at: str, context_TF: Tensor, states_NF: Tensor, seen_NS: Tensor) -> Tensor:
        normed_NF = self.norm(states_NF, f"{at}input_layernorm")
        both_SF = torch.cat([context_TF, normed_NF])
        places_S = torch.arange(len(both_SF))
        names = {name: self.tensors[f"{at}self_attn.{name}_proj.weight"].T for name in "qkvo"}
        D = self.config["head_dim"]
        places_N = places_S[-len(states_NF) :]
        query = self.turned(normed_NF @ names["q"], f"{at}self_attn.q_norm", places_N)
        keys = self.turned(both_SF @ names["k"], f"{at}self_attn.k_norm", places_S)
        values = (both_SF @ names["v"]).unflatten(-1, (-1, D))
        group = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("nhd,shd->hns", query, keys).div(D**0.5)
        weights = scores.masked_fill(~seen_NS, -torch.inf).softmax(-1)
        mixed = torch.einsum("hns,shd->nhd", weights, values).flatten(1)
        states_NF = states_NF + mixed @ names["o"]
        normed_NF = self.norm(states_NF, f"{at}post_attention_layernorm")
        names = {n: self.tensors[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up", "down")}
        gated = silu(normed_NF @ names["gate"]) * (normed_NF @ names["up"])
        return states_NF + gated @ names["down"]

    def turned(self, x: Tensor, norm: str, places: Tensor) -> Tensor:
        """Heads with their norm, turned by their places."""
        D = self.config["head_dim"]
        heads = self.norm(x.unflatten(-1, (-1, D)), norm)
        rates = self.config["rope_theta"] ** -(torch.arange(0, D, 2) / D)
        angles = (places[:, None] * rates).repeat(1, 2)[:, None]
        swapped = torch.cat([-heads[..., D // 2 :], heads[..., : D // 2]], -1)
        return heads * angles.cos() + swapped * angles.sin()

    def norm(self, x: Tensor, name: str) -> Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return unit * self.tensors[f"{name}.weight"]


class Subject(NamedTuple):
    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainDFlash
    texts: list[Path]

    def drafter(self) -> DFlash:
        return DFlash(parts_of(self.target, checkpoint=self.checkpoint))


@cache
def subject() -> Subject:
    model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=4)
    texts = [(*prompt, *generated(model, prompt, 70)) for prompt in PROMPTS]
    made = DFlash.new_checkpoint(model.config, 0, num_layers=NUM_LAYERS, block_size=BLOCK_SIZE)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + torch.rand(tensor.shape, generator=generator) if "norm" in name else tensor
        for name, tensor in made.tensors.items()
    }
    checkpoint = replace(made, tensors=tensors)
    target = StockRunner(tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=4))
    return Subject(target, checkpoint, PlainDFlash(model, checkpoint), texts)


def assert_blocks(plain: PlainDFlash, seen: Sequence[Any], temperature: float = 0) -> None:
    """Drafts, or their distributions, are those of the plain facts."""
    for drafted in seen:
        chain = drafted.paths[-1]
        logits_KV = plain.logits(drafted.text, len(chain))
        if drafted.probs is None:
            assert list(chain) == logits_KV.argmax(-1).tolist(), f"after {len(drafted.text)} tokens"
        else:
            probs_KV = logits_KV.div(temperature).softmax(-1)
            torch.testing.assert_close(drafted.probs, probs_KV, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("prefill_chunk", [4, 512])
def test_every_block_is_that_of_the_plain_facts_after_any_number_of_drafts_was_kept(
    prefill_chunk: int,
) -> None:
    target, _, plain, texts = case = subject()
    watched = Watched(case.drafter())
    ks = [5, 5, 0, 3, 0, 0, 5, 1, 5, 5, 5]

    ends = run_rounds(target, Guided(watched, texts), PROMPTS, ks, prefill_chunk=prefill_chunk)

    for end, text in zip(ends, texts, strict=True):
        assert end == text[: len(end)]
    assert set(num_kept(ends, watched.seen)) >= set(range(6))
    assert_blocks(plain, watched.seen)


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
SEEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixed": (SLIDING, {"windows": (6, None), "causal": (True, False)}),
    "none causal": ({**SLIDING, "is_causal": False}, {"windows": (6, None)}),
    "all causal": ({"is_causal": True}, {"causal": (True, True)}),
    "modelopt's": (
        {"dflash_config": {"use_swa": True, "swa_window_size": 6, "causal": True}},
        {"windows": (6, 6), "causal": (True, True)},
    ),
    "speculators'": (
        {"speculators_model_type": "dflash", **SLIDING},
        {"windows": (6, None), "causal": (True, False), "from_current": True},
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_layers_see_of_context_and_block_what_the_config_says(name: str) -> None:
    target, checkpoint, plain, texts = subject()
    fields, facts = SEEN[name]
    own = {**checkpoint.config["dflash_config"], **fields.get("dflash_config", {})}
    config = {**checkpoint.config, **fields, "dflash_config": own}
    if "speculators_model_type" in fields:
        ids = [i + 1 for i in own["target_layer_ids"]]
        own_fields = ("layer_types", "sliding_window", "dflash_config", "architectures")
        layer = {n: value for n, value in config.items() if n not in own_fields[2:]}
        config = {
            **{n: config[n] for n in ("speculators_model_type", "block_size")},
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": ids,
            "mask_token_id": own["mask_token_id"],
        }
    expected = PlainDFlash(plain.model, checkpoint)
    vars(expected).update(facts)
    watched = Watched(DFlash(parts_of(target, checkpoint=replace(checkpoint, config=config))))

    run_rounds(target, Guided(watched, texts), PROMPTS, [5, 5, 3, 5])

    assert_blocks(expected, watched.seen)


def test_above_temperature_0_every_draft_has_the_distribution_of_its_place() -> None:
    case = subject()
    watched = Watched(case.drafter())

    run_rounds(case.target, watched, PROMPTS, [4, 4, 4], sampling=WARM)

    assert watched.seen[0].probs is not None
    assert_blocks(case.plain, watched.seen, temperature=0.7)


def test_a_row_that_moves_takes_its_context_along() -> None:
    case = subject()
    watched = Watched(case.drafter())
    rows = prefilled(case.target, watched, PROMPTS)

    with torch.no_grad():
        rows.move_row(2, 0, len(PROMPTS[2]))
        watched.propose(rows.state.rows(0, 1), 5, SPAN, Sampler(Sampling()))

    assert watched.seen[0].text[:-1] == PROMPTS[2]
    assert_blocks(case.plain, watched.seen)


def test_a_row_that_does_not_begin_at_0_sees_its_own_context() -> None:
    case = subject()
    watched = Watched(case.drafter())
    rows = prefilled(case.target, watched, PROMPTS)

    state = rows.state.rows(2, 1)
    with torch.no_grad():
        for k in (5, 3, 5, 5):
            run_round(case.target, watched, state, Sampler(Sampling()), k=k, span=SPAN)

    assert_blocks(case.plain, watched.seen)


def test_it_drafts_one_token_less_than_a_block_has() -> None:
    assert subject().drafter().traits.max_k == BLOCK_SIZE - 1


def test_scales_and_the_cap_of_logits_are_the_configs() -> None:
    target, checkpoint, plain, _ = subject()
    more = {"output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    config = {**checkpoint.config["dflash_config"], **more}
    scaled = with_config(checkpoint, dflash_config=config)
    watched = Watched(DFlash(parts_of(target, checkpoint=scaled)))

    run_rounds(target, watched, PROMPTS[:1], [3], sampling=Sampling(temperature=1.0))

    logits_KV = 2 * torch.tanh(plain.logits(watched.seen[0].text, 3) * 0.5 / 2)
    torch.testing.assert_close(watched.seen[0].probs, logits_KV.softmax(-1), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("num_layers", "count", "chosen"),
    [(36, 5, [1, 9, 17, 25, 33]), (28, 1, [14]), (2, 5, [1]), (1, 2, [0])],
)
def test_the_layers_to_fuse_are_spread_evenly(
    num_layers: int, count: int, chosen: list[int]
) -> None:
    assert spread_layers(num_layers, count) == chosen


MASK = {"target_layer_ids": [1, 2], "mask_token_id": 3}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({"hidden_size": 64}, "hidden_size is 64, the target's is 32"),
    "another vocabulary": ({"vocab_size": 12}, "vocab_size is 12, the target's is 11"),
    "another depth": ({"num_target_layers": 9}, "num_target_layers is 9, the target's is 4"),
    "a relative": ({"architectures": ["DFlash2DraftModel"]}, "architecture DFlash2DraftModel"),
    "a window of no size": ({"layer_types": ["sliding_attention"] * 2}, "sliding_window is None"),
    "a head over its own": (
        {"dflash_config": {**MASK, "projector_type": "domino"}},
        "projector_type is domino",
    ),
    "attention sinks": (
        {"dflash_config": {**MASK, "attention_sink_bias": True}},
        "attention_sink_bias is true",
    ),
    "a relative of speculators": ({"speculators_model_type": "dspark"}, "type is dspark"),
    "no mask": ({"dflash_config": {"target_layer_ids": [1]}}, "lacks mask_token_id"),
    "layers beyond the target's": (
        {"dflash_config": {"target_layer_ids": [1, 4], "mask_token_id": 3}},
        r"target_layer_ids \[1, 4\]",
    ),
    "a mask beyond the vocabulary": (
        {"dflash_config": {"target_layer_ids": [1], "mask_token_id": 11}},
        "mask_token_id 11",
    ),
    "other layers": (
        {"dflash_config": {"target_layer_ids": [1, 2, 3], "mask_token_id": 3}},
        r"fc\.weight is",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_head_that_does_not_fit_is_refused_with_what_differs(fault: str) -> None:
    fields, message = WRONG[fault]
    target, checkpoint, *_ = subject()
    wrong = with_config(checkpoint, **fields)

    with pytest.raises(ModelError, match=message):
        DFlash(parts_of(target, checkpoint=wrong))
