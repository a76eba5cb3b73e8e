"""The largest K known from the files is that of the loaded drafter."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.bench.planning import ReadHead, deepest, headers_on_this_machine
from specbench.bench.this_process import read_shapes
from specbench.drafters.registry import build_drafter, drafter_class
from specbench.files.medusa import ACCURACIES
from specbench.files.model_spec import ModelSpec
from specbench.forward.runner import StockRunner
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.methods import find_method
from specbench.models.checkpoint import Checkpoint
from tests.decoding.lossless import parts_of, sampled_model
from tests.decoding.models import tiny_llama
from tests.drafters.variants import VARIANTS, Variant
from tests.tiny_models import write_files

RATES = {ACCURACIES: [[0.6, 0.2], [0.5, 0.1]]}
SIZES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("medusa", {"num_heads": n}, {}) for n in (1, 3, 6)),
    *(("medusa", {"num_heads": n}, {"tree": "chain"}) for n in (1, 6)),
    ("medusa", {"num_heads": 5}, {"tree": "stage2"}),
    ("medusa", {"num_heads": 5}, {"max_drafts": 1}),
    ("medusa", {"num_heads": 5, "num_layers": 2}, {"max_drafts": 2}),
    ("dflash", {"block_size": 2}, {}),
    ("dflash", {"block_size": 7}, {}),
    ("dspark", {"block_size": 7}, {}),
    ("mtp", {"num_layers": 2}, {}),
]


@cache
def target(vocab_size: int) -> StockRunner:
    small = vocab_size == 7
    return StockRunner(sampled_model(seed=0, num_layers=2) if small else tiny_llama(vocab_size=96))


def pairing(
    folder: Path, runner: StockRunner, method: str, parameters: dict[str, Any], head: Any
) -> Pairing:
    """A pairing of a target and a head, whose files are written into the folder."""
    write_files(folder / "target", runner.model.config.to_dict())
    spec = None
    if head is not None:
        write_files(folder / "head", head.config, head.tensors)
        spec = ModelSpec(source="./head", folder=folder / "head")
    drafter = DrafterSpec(name="one", method=method, model=spec, parameters=parameters)
    model = ModelSpec(source="./target", folder=folder / "target")
    return Pairing(target=Target(name="big", model=model, drafters=(drafter,)), drafter=drafter)


def of_drafter(
    runner: StockRunner, method: str, parameters: dict[str, Any], head: Checkpoint | None
) -> int | None:
    drafter = build_drafter(method, parts_of(runner, runner, head), parameters)
    return drafter.capabilities.max_k


def new_head(method: str, runner: StockRunner, **size: Any) -> Checkpoint | None:
    if not find_method(method).is_head:
        return None
    head: Checkpoint = drafter_class(method).new_checkpoint(runner.model.config, 0, **size)
    return head


@pytest.mark.sampled(one_in=4, every=["variant", "vocab_size", "read_head"])
@pytest.mark.parametrize("read_head", [headers_on_this_machine, read_shapes])
@pytest.mark.parametrize("vocab_size", [7, 96])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_depth_is_known_for_loaded_and_dummy_drafters(
    variant: Variant, vocab_size: int, read_head: ReadHead, tmp_path: Path
) -> None:
    runner = target(vocab_size)
    head = new_head(variant.method, runner)
    spec = pairing(tmp_path, runner, variant.method, variant.parameters, head)
    most = of_drafter(runner, variant.method, variant.parameters, head)
    assert deepest(spec, read_head, dummy=False) == most
    assert deepest(spec, read_head, dummy=True) == most


@pytest.mark.parametrize(("method", "size", "parameters"), SIZES)
def test_the_depth_is_that_of_heads_of_several_sizes(
    method: str, size: dict[str, int], parameters: dict[str, Any], tmp_path: Path
) -> None:
    runner = target(96)
    head = new_head(method, runner, **size)
    spec = pairing(tmp_path, runner, method, parameters, head)
    most = of_drafter(runner, method, parameters, head)
    assert deepest(spec, headers_on_this_machine, dummy=False) == most
    if method == "dflash":
        assert most == size["block_size"] - 1


def test_accuracies_in_a_head_config_limit_the_tree_depth(tmp_path: Path) -> None:
    head = new_head("medusa", target(96), num_heads=5)
    assert head is not None
    spec = pairing(tmp_path, target(96), "medusa", {}, head)
    assert deepest(spec, headers_on_this_machine, dummy=False) == 4
    config = {**head.config, **RATES}
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    assert deepest(spec, headers_on_this_machine, dummy=False) == 2


def test_shapes_of_pickled_heads_are_read_without_their_tensors(tmp_path: Path) -> None:
    head = new_head("medusa", target(96), num_heads=3)
    assert head is not None
    spec = pairing(tmp_path, target(96), "medusa", {}, head)
    (tmp_path / "head" / "model.safetensors").unlink()
    torch.save(dict(head.tensors), tmp_path / "head" / "medusa_lm_head.pt")
    assert deepest(spec, headers_on_this_machine, dummy=False) is None
    assert deepest(spec, read_shapes, dummy=False) == 3
    model = spec.drafter.model
    assert model is not None
    assert all(tensor.is_meta for tensor in read_shapes(model).tensors.values())


@pytest.mark.parametrize("read_head", [headers_on_this_machine, read_shapes])
def test_missing_or_unusable_files_have_no_known_limit(read_head: ReadHead, tmp_path: Path) -> None:
    spec = pairing(tmp_path, target(96), "medusa", {}, new_head("medusa", target(96)))
    (tmp_path / "head" / "model.safetensors").write_bytes(b"nothing")
    assert deepest(spec, read_head, dummy=False) is None
    (tmp_path / "head" / "config.json").unlink()
    assert deepest(spec, read_head, dummy=False) is None


def test_a_head_that_is_not_downloaded_has_no_known_limit(tmp_path: Path) -> None:
    head = ModelSpec(source="nobody/has-this-head")
    spec = pairing(tmp_path, target(96), "medusa", {}, None)
    drafter = DrafterSpec(name="one", method="medusa", model=head)
    hub = Pairing(target=spec.target, drafter=drafter)
    assert deepest(hub, headers_on_this_machine, dummy=False) is None
