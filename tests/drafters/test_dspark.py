"""DSpark's drafts against a plain implementation: a DFlash block, then biases token by token.

Shape suffixes: K drafts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.drafters.dspark import DSpark
from specbench.errors import ModelError
from specbench.files.dflash import CONFIDENCE, MARKOV, DFlashStyle
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Sampling
from tests.decoding.lossless import parts_of
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.drafters.feature_cases import Guide, Path, Recorder, run_rounds
from tests.drafters.plain_dflash import PlainDFlash

V, NUM_LAYERS, BLOCK_SIZE, RANK = 11, 2, 5, 4
PROMPTS = [random_prompt(n, n, V) for n in (9, 1, 14)]
KS = [5, 5, 0, 3, 0, 5, 1, 5, 5]


class PlainDSpark(PlainDFlash):
    """The block's logits, biased by the drafts that are given."""

    drafts_first = True

    def of_chain(self, text: Sequence[int], chain: Sequence[int]) -> Tensor:
        """Logits [K, V] of each draft, after the drafts before it."""
        before, after = (self.tensors[f"markov_head.markov_{w}.weight"] for w in ("w1", "w2"))
        biases_KV = [after @ before[token] for token in (text[-1], *chain[:-1])]
        return self.logits(text, len(chain)) + torch.stack(biases_KV)


class Subject(NamedTuple):
    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainDSpark
    texts: list[Path]

    def drafter(self) -> DSpark:
        return DSpark(parts_of(self.target, checkpoint=self.checkpoint))


@cache
def subject() -> Subject:
    model = tiny_llama(vocab_size=V, num_hidden_layers=4)
    texts = [(*prompt, *generated(model, prompt, 50)) for prompt in PROMPTS]
    made = DSpark.new_checkpoint(
        model.config, 0, num_layers=NUM_LAYERS, block_size=BLOCK_SIZE, markov_rank=RANK
    )
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + torch.rand(tensor.shape, generator=generator) if "norm" in name else tensor
        for name, tensor in made.tensors.items()
    }
    tensors[MARKOV[1]] = tensors[MARKOV[1]] * 20  # biases that change drafts
    checkpoint = replace(made, tensors=tensors)
    target = StockRunner(tiny_llama(vocab_size=V, num_hidden_layers=4))
    return Subject(target, checkpoint, PlainDSpark(model, checkpoint), texts)


def assert_chains(plain: PlainDSpark, seen: Sequence[Any], temperature: float = 0) -> int:
    """Drafts, or their distributions, equal the plain ones; how many drafts a bias changed."""
    num_changed = 0
    for drafted in seen:
        chain = drafted.paths[-1]
        logits_KV = plain.of_chain(drafted.text, chain)
        if drafted.probs is None:
            assert list(chain) == logits_KV.argmax(-1).tolist(), f"after {len(drafted.text)} tokens"
            bare_K = plain.logits(drafted.text, len(chain)).argmax(-1).tolist()
            num_changed += sum(a != b for a, b in zip(bare_K, chain, strict=True))
        else:
            probs_KV = logits_KV.div(temperature).softmax(-1)
            torch.testing.assert_close(drafted.probs, probs_KV, atol=1e-4, rtol=1e-3)
    return num_changed


def test_drafts_are_those_of_the_plain_implementation() -> None:
    target, _, plain, texts = case = subject()
    watched = Recorder(case.drafter())
    run_rounds(target, Guide(watched, texts), PROMPTS, KS)
    assert len(watched.seen) > 3 * len(PROMPTS)
    assert assert_chains(plain, watched.seen) > 5


def test_sampled_drafts_have_the_distribution_after_the_draft_before() -> None:
    case = subject()
    watched = Recorder(case.drafter())
    run_rounds(case.target, watched, PROMPTS, [5, 5, 5], sampling=Sampling(temperature=0.7))
    assert_chains(case.plain, watched.seen, 0.7)


def test_a_head_of_speculators_begins_with_its_masks_unless_it_says_otherwise() -> None:
    _, checkpoint, _, _ = subject()
    own = ("block_size", "markov_rank", "mask_token_id")
    fields = {
        **{name: checkpoint.config[name] for name in own},
        "speculators_model_type": "dspark",
        "architectures": ["DSparkDraftModel"],
        "aux_hidden_state_layer_ids": [i + 1 for i in checkpoint.config["target_layer_ids"]],
        "transformer_layer_config": checkpoint.config,
    }
    theirs = replace(checkpoint, config=fields)
    assert DFlashStyle.of(theirs).depth == BLOCK_SIZE - 1
    first = replace(checkpoint, config={**fields, "sample_from_anchor": True})
    assert DFlashStyle.of(first).depth == BLOCK_SIZE == DFlashStyle.of(checkpoint).depth


def test_a_confidence_head_and_copies_of_the_targets_tables_are_taken_and_not_used() -> None:
    target, checkpoint, plain, texts = subject()
    F = target.hidden_size
    tables = {
        "embed_tokens.weight": plain.model.get_input_embeddings().weight.detach(),
        "lm_head.weight": plain.model.get_output_embeddings().weight.detach(),
    }
    confidence = dict(zip(CONFIDENCE, (torch.ones(1, F + RANK), torch.ones(1)), strict=True))
    fields = {"enable_confidence_head": True, "confidence_head_with_markov": True}
    whole = replace(
        checkpoint,
        config={**checkpoint.config, **fields},
        tensors={**checkpoint.tensors, **confidence, **tables},
    )
    watched = Recorder(DSpark(parts_of(target, checkpoint=whole)))
    run_rounds(target, Guide(watched, texts), PROMPTS, [5, 3, 5])
    assert_chains(plain, watched.seen)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"markov_head_type": "gated"}, "markov_head_type is gated"),
        ({"markov_rank": None}, "markov_rank"),
        ({"markov_rank": RANK + 1}, "markov_w1"),
        ({"output_multiplier": 2.0}, "a scale"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"architectures": ["Gemma4DSparkModel"]}, "architecture Gemma4DSparkModel"),
    ],
)
def test_variants_without_a_source_are_refused(fields: dict[str, Any], named: str) -> None:
    target, checkpoint, _, _ = subject()
    changed = replace(checkpoint, config={**checkpoint.config, **fields})
    with pytest.raises(ModelError, match=named):
        DSpark(parts_of(target, checkpoint=changed))
