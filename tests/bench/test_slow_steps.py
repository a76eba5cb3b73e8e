"""Reading weights, compiling kernels and comparing implementations report their progress."""

import os
import subprocess
import sys

import pytest
import torch
from transformers.utils.logging import tqdm

from specbench.forward import autotune
from specbench.inputs.model_spec import model_spec
from specbench.models import library_output
from specbench.models.loading import load_model
from specbench.records import Contender

COMPILING = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specbench.forward.kernels import layer_steps
from specbench.models.library_output import listeners, report_compiling

def build(capability):
    names = layer_steps._gated.arg_names
    kinds = {name: "constexpr" if name == "BLOCK" else "*bf16" for name in names}
    kinds |= {name: "i32" for name in names if name not in ("gate_up", "out", "BLOCK")}
    values = {(names.index("BLOCK"),): layer_steps._BLOCK}
    source = ASTSource(layer_steps._gated, signature=kinds, constexprs=values)
    compile(source, target=GPUTarget("cuda", capability, 32))

build(80)
listeners.append(print)
report_compiling()
report_compiling()
for capability in (80, 89, 90):
    build(capability)
"""


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(library_output, "listeners", [texts.append])
    return texts


def test_reading_weights_reports_tensors_and_their_total(messages: list[str]) -> None:
    loaded = load_model(model_spec("demo:draft"), torch.device("cpu"))
    total = len(dict(loaded.model.named_parameters()))
    counts = [text for text in messages if text]
    assert len(counts) == total
    assert f"{total - 1} of {total} tensors" in counts[-1]
    assert messages[-1] == ""


def test_other_progress_bars_of_transformers_are_unchanged(messages: list[str]) -> None:
    with tqdm(total=3) as bar:
        bar.update(1)
    assert list(tqdm(iter("ab"))) == ["a", "b"]
    assert not messages


def test_kernels_that_are_compiled_are_counted_and_those_of_the_cache_are_not(tmp_path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILING],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["1 kernel compiled", "2 kernels compiled"]
    assert all("_gated" in line and "cached" in line for line in lines)


def test_autotuning_shows_what_it_compares(messages: list[str], monkeypatch) -> None:
    monkeypatch.setattr(autotune, "keep_choice", lambda *_: None)
    outcome = "torch", [Contender(name="torch")]
    autotune._tuned("key", ("torch",), "attention of big", lambda: outcome)
    assert messages[0].endswith(": attention of big")
    assert messages[1:] == [""]
