"""Packed layers against plain ones: timed once, and reported."""

import re

import pytest
import torch
from torch import nn

from specbench.decode.clock import Clock
from specbench.engines import kernel_choices
from specbench.engines.kernel_choices import (
    KernelChoices,
    packed_layers,
    slower_note,
    time_packed,
    times_as_long,
)
from specbench.engines.loaded_drafters import take
from specbench.engines.model_pool import ModelPool
from specbench.files.model_spec import ModelSpec
from specbench.forward import autotune
from specbench.forward.autotune import Run, Timing
from specbench.models.quantization import pack, packable
from tests.decoding.models import tiny_llama

CPU = torch.device("cpu")


class LayerClock:
    """A clock for packed layers that state their own time; anything else takes a second."""

    def __init__(self, model: nn.Module, layer_s: float) -> None:
        self.now_s = 0.0
        self.num_runs = 0
        for layer in packed_layers(model):
            layer.register_forward_hook(lambda *_: self.add(layer_s))

    def add(self, seconds: float) -> None:
        self.now_s += seconds

    def seconds(self, run: Run) -> float:
        self.num_runs += 1
        began_s = self.now_s
        run()
        return self.now_s - began_s or 1.0


def packed_model() -> nn.Module:
    model = tiny_llama(hidden_size=128, intermediate_size=256, num_hidden_layers=3)
    for linear in packable(model):
        pack(linear, "int8")
    return model


def test_the_largest_packed_layers_of_one_shape_are_timed_and_no_plain_ones():
    assert {tuple(layer.weight.shape) for layer in packed_layers(packed_model())} == {(256, 128)}
    assert len(packed_layers(packed_model())) == 4  # of the gates and ups of three layers
    assert not packed_layers(tiny_llama())


def test_a_slower_requested_scheme_still_runs_with_its_ratio_reported():
    model = packed_model()
    clock = LayerClock(model, layer_s=0.75)
    chosen, contenders = time_packed(packed_layers(model), 5, "int8", Timing(seconds=clock.seconds))
    assert chosen == "int8"
    assert [(c.name, c.seconds) for c in contenders] == [("int8", 3.0), ("float32", 1.0)]
    assert times_as_long(tuple(contenders)) == 3.0


def test_packed_layers_are_timed_by_graph_replay_if_captured():
    model, captured = packed_model(), []

    def capture(run: Run) -> Run:
        captured.append(run)
        return lambda: None

    timing = Timing(seconds=LayerClock(model, layer_s=9.0).seconds, captured=capture)
    _, contenders = time_packed(packed_layers(model), 1, "int8", timing)
    assert len(captured) == 2
    assert [c.seconds for c in contenders] == [1.0, 1.0]


def test_a_failed_capture_gives_a_reason_instead_of_a_ratio():
    def capture(run: Run) -> Run:  # noqa: ARG001
        raise RuntimeError("CUDA out of memory\nand more")

    def seconds(run: Run) -> float:
        run()
        return 1.0

    timing = Timing(seconds=seconds, captured=capture)
    _, contenders = time_packed(packed_layers(packed_model()), 1, "int8", timing)
    assert all("CUDA out of memory" in (c.refusal or "") for c in contenders)
    assert times_as_long(tuple(contenders)) is None


@pytest.mark.parametrize(
    ("ratios", "suffix"),
    [
        ({1: 2.468, 5: 1.0}, "2.47 times as long for T = 1 and 1.00 times as long for T = 5"),
        ({1: 0.6, 5: 1.2}, "0.60 times as long for T = 1 and 1.20 times as long for T = 5"),
        ({1: 0.6, 5: 1.05}, None),
        ({}, None),
    ],
)
def test_slower_packed_weights_give_a_note_with_the_ratios(ratios, suffix):
    sentence = "fp8 weights are slower than bfloat16 here: a large linear layer takes "
    expected = None if suffix is None else sentence + suffix
    assert slower_note("fp8", "bfloat16", ratios) == expected


@pytest.mark.parametrize(("layer_s", "is_said"), [(0.75, True), (0.2, False)])
def test_an_engine_notes_slower_weights_and_times_them_once(
    tmp_path, monkeypatch, layer_s, is_said
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_known", {})
    tiny_llama(hidden_size=128, intermediate_size=256).save_pretrained(tmp_path / "wide")
    spec = ModelSpec(source="wide", folder=tmp_path / "wide", quantization="int8")
    pool = ModelPool(CPU)
    clock = LayerClock(pool.load(spec).model, layer_s)
    monkeypatch.setattr(kernel_choices, "_seconds", lambda _, run: clock.seconds(run))

    choices = KernelChoices("auto", Clock(), None)
    held = take(pool, spec, "stock", choices)
    notes = [note for note in held.notes if "slower than float32" in note]
    assert len(notes) == is_said
    assert all(re.match("wide: int8 .*3.00 .*T = 1 .*3.00 .*T = 5$", note) for note in notes)
    timed = [choice for choice in choices.autotuner.choices.values() if choice.chosen == "int8"]
    assert [c.subject for c in timed] == [f"int8 linear layer of wide, T = {T}" for T in (1, 5)]

    num_runs = clock.num_runs
    monkeypatch.setattr(autotune, "_known", {})  # a later run: the file is left
    again = take(pool, spec, "stock", KernelChoices("auto", Clock(), None))
    assert again.notes == held.notes
    assert clock.num_runs == num_runs
