"""Tiny heads in layouts of which only the source was read, written to files and run.

Names and configs are those of the sources that docs/heads.md cites, written again here; the
expected outputs are those of the plain heads of this folder, which know nothing of files.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from specbench.files.head_files import layout_of
from specbench.methods import find_method, kind_of
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from tests.drafters import test_dflash, test_medusa
from tests.drafters.feature_cases import PROMPTS, Recorder, assert_chains, run_rounds, subject
from tests.tiny_models import write_files

pytestmark = pytest.mark.slow

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def renamed(head: Checkpoint, names: Mapping[str, str], config: Mapping[str, Any]) -> Checkpoint:
    return replace(head.renamed(names), config=config)


def without_fields(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def safeailab_eagle(head: Checkpoint) -> Checkpoint:
    """cnets1.py: its own table of the target's tokens, and a bias that the config states."""
    table_VF = subject("eagle").target.model.get_input_embeddings().weight
    return replace(
        head,
        config={**head.config, **LLAMA, "bias": True},
        tensors={**head.tensors, "embed_tokens.weight": table_VF},
    )


def speculators_eagle(head: Checkpoint) -> Checkpoint:
    """models/eagle.py: tables are the verifier's; the layer's config is nested."""
    layer = {**without_fields(head.config, "bias", "architectures"), "model_type": "llama"}
    config = {
        "speculators_model_type": "eagle",
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer,
        "layernorms": False,
        "fusion_bias": True,
        "speculators_config": {"algorithm": "eagle", "default_proposal_method": "greedy"},
    }
    return renamed(head, {"fc.": "fusion_fc.", "layers.0.": "transformer."}, config)


def safeailab_eagle3(checkpoint: Checkpoint) -> Checkpoint:
    """cnets.py: one `midlayer`, its vocabulary's tokens, and the states by the paper's rule."""
    config = {**without_fields(checkpoint.config, "eagle_aux_hidden_state_layer_ids"), **LLAMA}
    target_ids = torch.arange(checkpoint.config["draft_vocab_size"]) + checkpoint.tensors["d2t"]
    t2d_V = torch.zeros(checkpoint.config["vocab_size"], dtype=torch.bool).index_fill(
        0, target_ids, True
    )
    head = renamed(checkpoint, {"layers.0.": "midlayer."}, config)
    return replace(head, tensors={**head.tensors, "t2d": t2d_V})


def amazon_peagle(head: Checkpoint) -> Checkpoint:
    """llama_eagle3.py: `mask_hidden` next to an EAGLE-3 head, and another name of the mask."""
    mask = head.config["mask_token_id"]
    config = {**without_fields(head.config, "mask_token_id"), "ptd_token_id": mask}
    return replace(head, config=config)


def z_lab_dflash(head: Checkpoint) -> Checkpoint:
    """model.py: DFlash's own fields are in a section, or next to the layers' fields."""
    ids = head.config["dflash_config"]["target_layer_ids"]
    mask = head.config["dflash_config"]["mask_token_id"]
    config = without_fields(head.config, "num_target_layers", "dflash_config")
    return replace(
        head, config={**config, "mask_token_id": mask, "dflash_config": {"target_layer_ids": ids}}
    )


class Layout(NamedTuple):
    """A layout that was read: its library, its place, and how one of our heads is written in it."""

    method: str
    source: str
    written: Callable[[Checkpoint], Checkpoint]


EAGLE_LAYOUTS = {
    "SafeAILab, EAGLE": Layout("eagle", "SafeAILab/EAGLE at cb7e084", safeailab_eagle),
    "speculators, EAGLE": Layout("eagle", "vllm-project/speculators at 8a49095", speculators_eagle),
    "SafeAILab, EAGLE-3": Layout("eagle3", "SafeAILab/EAGLE at cb7e084", safeailab_eagle3),
    "Amazon, P-EAGLE": Layout("peagle", "vllm-project/vllm at 00bd149", amazon_peagle),
}


def in_files(folder: Path, head: Checkpoint, read: str, method: str) -> Checkpoint:
    """The head as a folder of files, recognized by them and read from them."""
    files = write_files(folder, head.config, head.tensors)
    facts = find_method(method).head
    assert facts is not None
    layout = layout_of(files.head, facts.layouts)
    assert kind_of(files).method == method
    assert layout is not None
    assert f"read in {read}" in layout.note
    assert "never tested" in layout.note
    return read_checkpoint(str(folder))


@pytest.mark.parametrize("name", EAGLE_LAYOUTS)
def test_an_eagle_head_in_every_known_layout_drafts_like_the_reference(
    name: str, tmp_path: Path
) -> None:
    method, source, written = EAGLE_LAYOUTS[name]
    case = subject(method)
    read = in_files(tmp_path / "head", written(case.checkpoint), source, method)

    chains = {} if method == "peagle" else {"tree": "chain"}

    seen, kept = case._replace(checkpoint=read).rounds([4, 0, 4, 1, 4], **chains)

    assert len(kept) > 1
    assert_chains(case.plain, seen)


def test_z_labs_dflash_layout_drafts_like_the_reference(tmp_path: Path) -> None:
    case = test_dflash.subject()
    head = z_lab_dflash(case.checkpoint)
    read = in_files(tmp_path / "head", head, "z-lab/dflash at 1012959", "dflash")

    watched = Recorder(case._replace(checkpoint=read).drafter())
    run_rounds(case.target, watched, PROMPTS, [5, 0, 5, 2])

    test_dflash.assert_blocks(case.plain, watched.seen)


@pytest.mark.parametrize(
    ("source", "is_vllms"),
    [("FasterDecoding/Medusa at e2a5d20", False), ("vllm-project/vllm at 01dbb08", True)],
)
def test_medusa_heads_have_equal_logits_in_either_layout(
    source: str, is_vllms: bool, tmp_path: Path
) -> None:
    head = test_medusa.heads()
    tensors = test_medusa.as_vllm(head.tensors) if is_vllms else head.tensors
    read = in_files(tmp_path / "heads", replace(head, tensors=tensors), source, "medusa")

    wanted = test_medusa.logits_of(head.tensors)

    assert torch.equal(test_medusa.logits_of(read.tensors), wanted)
