"""DFlash 2's drafts against a plain implementation: convolutions as sums, candidates one by one.

Shape suffixes: N tokens of a block, K drafts, F hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.drafters.dflash2 import DFlash2
from specbench.errors import ModelError
from specbench.files.dflash import SELECTOR, DFlashStyle
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Sampling
from tests.decoding.lossless import parts_of
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.drafters.changed_heads import with_config
from tests.drafters.feature_cases import Guide, Path, Recorder, num_kept, run_rounds
from tests.drafters.plain_dflash import PlainDFlash
from tests.drafters.test_dspark import assert_chains

V, F, NUM_LAYERS, BLOCK_SIZE = 11, 32, 2, 6
NUM_TAPS, GROUP_SIZE, RANK, NUM_CANDIDATES = 3, 4, 16, 4
PROMPTS = [random_prompt(n, n, V) for n in (9, 1, 14)]
KS = [5, 5, 0, 3, 0, 5, 1, 5, 5]


class PlainDFlash2(PlainDFlash):
    """Every token of a convolution is a sum over taps; the drafts before are given."""

    @property
    def facts(self) -> dict[str, Any]:
        section: dict[str, Any] = self.config["dflash_config"]
        return section

    def around(self, at: str, x_NF: Tensor, module: Callable[[Tensor], Tensor]) -> Tensor:
        weight = self.tensors[f"{at}.kernel_projection.weight"]
        sums = (x_NF @ weight.T).unflatten(-1, (2, self.facts["conv_kernel_size"], -1))
        return self.convolved(at, module(self.convolved(at, x_NF, sums, 0)), sums, 1)

    def convolved(self, at: str, x_NF: Tensor, sums: Tensor, side: int) -> Tensor:
        base, out_NF = self.tensors[f"{at}.base_kernel"], torch.zeros_like(x_NF)
        for n in range(len(x_NF)):
            for tap in range(min(self.facts["conv_kernel_size"], n + 1)):
                sums_F = sums[n, side, tap].repeat_interleave(self.facts["conv_group_size"])
                out_NF[n] += (base[side, tap] + sums_F) * x_NF[n - tap]
        return out_NF

    def logits(self, text: Sequence[int], k: int) -> Tensor:
        """Those that choose the candidates."""
        logits_KV = super().logits(text, k) * self.facts.get("output_multiplier", 1.0)
        cap = self.facts.get("final_logit_softcapping")
        return cap * torch.tanh(logits_KV / cap) if cap else logits_KV

    @torch.no_grad()
    def of_chain(self, text: Sequence[int], chain: Sequence[int]) -> Tensor:
        """Logits [K, V] of each draft, after the drafts before it."""
        before, after, gate = (self.tensors[name] for name in SELECTOR)
        states_KF, logits_KV = self.states(text, len(chain)), self.logits(text, len(chain))
        scores_KV = torch.full_like(logits_KV, -torch.inf)
        for i, token in enumerate((text[-1], *chain[:-1])):
            gates = gate @ states_KF[i]
            for candidate in logits_KV[i].argsort(descending=True)[: self.facts["selector_top_k"]]:
                pair = (before[token] * gates * after[candidate]).sum()
                scores_KV[i, candidate] = logits_KV[i, candidate] + pair
        return scores_KV


class Subject(NamedTuple):
    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainDFlash2
    texts: list[Path]

    def drafter(self) -> DFlash2:
        return DFlash2(parts_of(self.target, checkpoint=self.checkpoint))


@cache
def subject() -> Subject:
    """A head whose convolutions and selector change drafts."""
    model = tiny_llama(vocab_size=V, num_hidden_layers=4)
    texts = [(*prompt, *generated(model, prompt, 50)) for prompt in PROMPTS]
    made = DFlash2.new_checkpoint(model.config, 0, num_layers=NUM_LAYERS, block_size=BLOCK_SIZE)
    sizes = {"conv_kernel_size": NUM_TAPS, "selector_top_k": NUM_CANDIDATES}
    checkpoint = with_config(made, dflash_config={**made.config["dflash_config"], **sizes})
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + torch.rand(tensor.shape, generator=generator) if "norm" in name else tensor
        for name, tensor in made.tensors.items()
    }
    for i in range(NUM_LAYERS):
        for at in (f"layers.{i}.attention_conv", f"layers.{i}.mlp_conv"):
            shape = 2 * NUM_TAPS * F // GROUP_SIZE, F
            tensors[f"{at}.base_kernel"] = torch.randn(2, NUM_TAPS, F, generator=generator)
            tensors[f"{at}.kernel_projection.weight"] = torch.randn(shape, generator=generator) / 4
    for name in SELECTOR:
        tensors[name] = torch.randn(tensors[name].shape, generator=generator) / 4
    checkpoint = replace(checkpoint, tensors=tensors)
    target = StockRunner(tiny_llama(vocab_size=V, num_hidden_layers=4))
    return Subject(target, checkpoint, PlainDFlash2(model, checkpoint), texts)


def test_drafts_are_those_of_the_plain_implementation() -> None:
    target, _, plain, texts = case = subject()
    watched = Recorder(case.drafter())
    ends = run_rounds(target, Guide(watched, texts), PROMPTS, KS)
    assert {0, 5} <= set(num_kept(ends, watched.seen))
    assert assert_chains(plain, watched.seen) > 5


def test_sampled_drafts_have_the_distribution_over_the_candidates() -> None:
    case = subject()
    watched = Recorder(case.drafter())
    run_rounds(case.target, watched, PROMPTS, [5, 5, 5], sampling=Sampling(temperature=0.7))
    assert_chains(case.plain, watched.seen, 0.7)
    num_possible = (watched.seen[0].probs > 0).sum(-1)
    assert num_possible.tolist() == [NUM_CANDIDATES] * 5


SCALES = {"output_multiplier": 0.5, "final_logit_softcapping": 2.0, "input_embedding_scale": 3.0}


@pytest.mark.parametrize(
    "fields", [{}, {"is_causal": False}, SCALES], ids=["causal", "not causal", "scales"]
)
def test_windows_and_scales_are_the_configs(fields: dict[str, Any]) -> None:
    target, checkpoint, plain, texts = subject()
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    section = {**checkpoint.config["dflash_config"], **fields}
    changed = with_config(checkpoint, **windows, dflash_config=section)
    expected = PlainDFlash2(plain.model, changed)
    expected.windows, expected.causal = (6, None), (fields.get("is_causal", True), False)
    expected.embedding_scale = fields.get("input_embedding_scale", 1.0)
    watched = Recorder(DFlash2(parts_of(target, checkpoint=changed)))
    run_rounds(target, Guide(watched, texts), PROMPTS, [5, 5, 3, 5])
    assert_chains(expected, watched.seen)


def test_a_head_of_speculators_is_not_causal_unless_it_says_so() -> None:
    _, checkpoint, _, _ = subject()
    section, windows = checkpoint.config["dflash_config"], {"sliding_window": 6}
    layers = {**checkpoint.config, **windows, "layer_types": ["sliding_attention"] * NUM_LAYERS}
    fields = {
        **section,
        "speculators_model_type": "dflash2",
        "architectures": ["DFlash2DraftModel"],
        "aux_hidden_state_layer_ids": [i + 1 for i in section["target_layer_ids"]],
        "transformer_layer_config": layers,
    }
    style = DFlashStyle.of(replace(checkpoint, config=fields))
    assert (style.method, style.depth) == ("dflash2", BLOCK_SIZE - 1)
    assert style.is_causal == (False, False)
    causal = replace(checkpoint, config={**fields, "sliding_window_non_causal": False})
    assert DFlashStyle.of(causal).is_causal == (True, True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"selector_rank": None}, "selector_rank"),
        ({"selector_rank": RANK + 1}, "hidden_projection"),
        ({"selector_top_k": V + 1}, "selector_top_k"),
        ({"conv_kernel_size": NUM_TAPS + 1}, "base_kernel"),
        ({"conv_group_size": 5}, "conv_group_size is 5; expected a divisor"),
        ({"draft_vocab_size": V - 1}, "draft_vocab_size"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"target_layer_ids": [99]}, "target_layer_ids"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: dict[str, Any], named: str) -> None:
    target, checkpoint, _, _ = subject()
    section = {**checkpoint.config["dflash_config"], **fields}
    with pytest.raises(ModelError, match=named):
        DFlash2(parts_of(target, checkpoint=with_config(checkpoint, dflash_config=section)))


def test_a_block_that_is_shorter_than_a_convolution_is_drafted() -> None:
    target, _, plain, _ = case = subject()
    watched = Recorder(case.drafter())
    run_rounds(target, watched, PROMPTS, [1, 1, 1])
    assert_chains(plain, watched.seen)
