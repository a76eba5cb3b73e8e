"""docs/gpu.md: its memory is what the program computes, and its drivers are those of the error."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.files.model import open_model
from specbench.fit.gpus import GIB, RESERVED_BYTES
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.inputs.config import load_pairings
from specbench.probes import device
from specbench.shipped import shipped

PAGE = (Path(__file__).parents[1] / "docs" / "gpu.md").read_text(encoding="utf-8")
BLOCK = re.findall("<!-- begin memory -->\n(.*?)<!-- end memory -->", PAGE, re.DOTALL)[0]
SHAPES = {
    spec.source: replace(spec, weights_gib=None)
    for pairing in load_pairings(shipped("pairings.yaml")).all
    for spec in pairing.models
    if spec.is_shape
}
SIZES = {"1B": "shape:llama-1b", "8B": "shape:llama-8b", "70B": "shape:llama-70b"}
DTYPES = ("float32", "bfloat16", "int8", "int4")


def row_of(size: str, dtype: str) -> str:
    """A line of the table, as the program computes it."""
    is_packed = dtype.startswith("int")
    spec = replace(SHAPES[SIZES[size]], quantization=dtype if is_packed else None)
    place = DeploymentSpec(device="cuda", dtype="bfloat16" if is_packed else dtype, context=2048)
    plan = plan_target(open_model(spec), place)
    assert plan is not None
    weights, total = plan.target.nbytes / GIB, plan.peak.total / GIB
    kv_kib = plan.target.kv_bytes_per_token / 2**10
    return f"| {size} | {dtype} | {weights:.1f} | {total:.1f} | {kv_kib:g} |"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_on_the_page_is_what_the_program_computes(size: str, dtype: str) -> None:
    assert row_of(size, dtype) in BLOCK.splitlines()


def test_the_gpu_memory_table_has_a_row_per_size_and_dtype() -> None:
    assert len(BLOCK.splitlines()) == 2 + len(SIZES) * len(DTYPES)
    assert f"about {RESERVED_BYTES / GIB:g} GiB" in PAGE


def test_drivers_on_the_page_are_those_that_an_error_names() -> None:
    drivers = re.findall(r"^\| CUDA (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert {cuda: int(driver) for cuda, driver in drivers} == device._DRIVERS
