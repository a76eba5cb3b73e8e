"""DFlash's blocks against a plain implementation, round after round.

Shape suffixes: K drafts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from specbench.drafters.dflash import DFlash, spread_layers
from specbench.errors import ModelError
from specbench.files.dflash import DFlashStyle
from specbench.files.head_files import HeadFiles
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Sampling
from tests.decoding.lossless import parts_of
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.drafters.changed_heads import with_config
from tests.drafters.feature_cases import (
    Guide,
    Path,
    Recorder,
    num_kept,
    run_rounds,
)
from tests.drafters.plain_dflash import PlainDFlash

VOCAB_SIZE, NUM_LAYERS, BLOCK_SIZE = 11, 2, 6
PROMPTS = [random_prompt(n, n, VOCAB_SIZE) for n in (9, 1, 14)]
WARM = Sampling(temperature=0.7)


def style_of(**config: Any) -> DFlashStyle:
    values = {"mask_token_id": 0, **config}
    return DFlashStyle.of(HeadFiles(source="a head", config=values, tensors={}))


def test_fields_missing_in_a_dflash_config_get_the_library_defaults() -> None:
    style = style_of(target_layer_ids=[0, 2], num_hidden_layers=2)
    assert (style.layer_ids, style.block_size, style.depth) == ((0, 2), 16, 15)
    assert not style.reads_bare_output

    mixed = {
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
    }
    named = {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [1, 3]}
    theirs = style_of(**named, transformer_layer_config=mixed)
    assert (theirs.layer_ids, theirs.block_size, theirs.depth) == ((0, 2), 8, 7)
    assert theirs.reads_bare_output
    assert theirs.is_causal == (True, False)
    options = {"sample_from_anchor": True, "sliding_window_non_causal": True}
    theirs = style_of(**named, transformer_layer_config=mixed, **options)
    assert (theirs.depth, theirs.is_causal) == (8, (False, False))


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
    """Drafts, or their distributions, equal those of the plain implementation."""
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
def test_dflash_blocks_equal_the_reference_for_any_acceptance(
    prefill_chunk: int,
) -> None:
    target, _, plain, texts = case = subject()
    watched = Recorder(case.drafter())
    ks = [5, 5, 0, 3, 0, 0, 5, 1, 5, 5, 5]

    ends = run_rounds(target, Guide(watched, texts), PROMPTS, ks, prefill_chunk=prefill_chunk)

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
def test_dflash_layers_attend_to_what_the_config_allows(name: str) -> None:
    target, checkpoint, plain, texts = subject()
    fields, facts = SEEN[name]
    block_config = {**checkpoint.config["dflash_config"], **fields.get("dflash_config", {})}
    config = {**checkpoint.config, **fields, "dflash_config": block_config}
    if "speculators_model_type" in fields:
        ids = [i + 1 for i in block_config["target_layer_ids"]]
        own_fields = ("layer_types", "sliding_window", "dflash_config", "architectures")
        layer = {n: value for n, value in config.items() if n not in own_fields[2:]}
        config = {
            **{n: config[n] for n in ("speculators_model_type", "block_size")},
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": ids,
            "mask_token_id": block_config["mask_token_id"],
        }
    expected = PlainDFlash(plain.model, checkpoint)
    vars(expected).update(facts)
    watched = Recorder(DFlash(parts_of(target, checkpoint=replace(checkpoint, config=config))))

    run_rounds(target, Guide(watched, texts), PROMPTS, [5, 5, 3, 5])

    assert_blocks(expected, watched.seen)


def test_sampled_dflash_drafts_have_the_distribution_of_their_position() -> None:
    case = subject()
    watched = Recorder(case.drafter())

    run_rounds(case.target, watched, PROMPTS, [4, 4, 4], sampling=WARM)

    assert watched.seen[0].probs is not None
    assert_blocks(case.plain, watched.seen, temperature=0.7)


def test_max_k_of_dflash_is_the_block_size_minus_one() -> None:
    assert subject().drafter().capabilities.max_k == BLOCK_SIZE - 1


def test_scales_and_the_cap_of_logits_are_the_configs() -> None:
    target, checkpoint, plain, _ = subject()
    more = {"output_multiplier": 0.5, "final_logit_softcapping": 2.0, "input_embedding_scale": 3.0}
    config = {**checkpoint.config["dflash_config"], **more}
    scaled = with_config(checkpoint, dflash_config=config)
    watched = Recorder(DFlash(parts_of(target, checkpoint=scaled)))

    run_rounds(target, watched, PROMPTS[:1], [3], sampling=Sampling(temperature=1.0))

    expected = PlainDFlash(plain.model, checkpoint)
    expected.embedding_scale = 3.0
    logits_KV = 2 * torch.tanh(expected.logits(watched.seen[0].text, 3) * 0.5 / 2)
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
    "a relative": ({"architectures": ["DFlashGlm5Model"]}, "architecture DFlashGlm5Model"),
    "a window of no size": ({"layer_types": ["sliding_attention"] * 2}, "sliding_window is None"),
    "a head over its own": (
        {"dflash_config": {**MASK, "projector_type": "domino"}},
        "projector_type is domino",
    ),
    "attention sinks": (
        {"dflash_config": {**MASK, "attention_sink_bias": True}},
        "attention_sink_bias is true",
    ),
    "a relative of speculators": ({"speculators_model_type": "dflare"}, "type is dflare"),
    "no mask": ({"dflash_config": {"target_layer_ids": [1]}}, "config.json has no mask_token_id"),
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
