"""Our kernels draw over a model's vocabulary if they are correct for it, else torch does.

They run in Triton's interpreter, as if a CPU were one of their devices.
"""

import re
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from specbench.decode.clock import Clock
from specbench.engines import kernel_choices
from specbench.engines.kernel_choices import DRAWINGS, KernelChoices, autotune_draws
from specbench.forward import autotune
from specbench.forward.autotune import Timing
from specbench.forward.kernels import availability, layer_steps
from specbench.forward.kernels import sampling as kernels
from specbench.forward.runner import StockRunner
from tests.decoding.models import tiny_llama

V = 130
DRAWS, TOP_P = DRAWINGS
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setattr(availability, "DEVICES", {"cpu"})
    monkeypatch.setattr(kernel_choices, "DEVICES", {"cpu"})
    monkeypatch.setattr(autotune, "_known", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for drawing in DRAWINGS:
        monkeypatch.setattr(drawing.switch, "_lost", frozenset())


def even_clock(run):
    """All candidates take equally long: the first correct one wins. Cached ones do not run."""
    if not isinstance(run, partial):
        run()
    return 1.0


def autotuned(drawing, timing=Timing(even_clock)):  # noqa: B008
    return autotune_draws(drawing, V, torch.float32, CPU, timing)


def twice_the_noise(seeds_B, positions_BT, *args):
    return 2 * kernels.exponential(seeds_B, positions_BT, *args)


def another_token(x_BTV, *args):
    return (kernels.race(x_BTV, *args) + 1) % V


def raise_error(*_):
    raise RuntimeError("no image for this card\nand more")


WRONG = [
    (DRAWS, "uniform", lambda *places: 1 - kernels.uniform(*places), "uniform numbers"),
    (DRAWS, "exponential", twice_the_noise, "its noise differs"),
    (DRAWS, "race", another_token, "its tokens differ"),
    (DRAWS, "race", lambda *given: kernels.race(*given) + V, "out of bounds"),
    (DRAWS, "race", raise_error, "it raises RuntimeError: no image for this card"),
    (TOP_P, "nucleus", lambda s, p, top_p: kernels.nucleus(s, p, top_p / 2), "of a"),
]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_correct_triton_sampling_kernels_win(drawing):
    winner, contenders = autotuned(drawing)
    assert winner == "triton"
    assert [c.refusal for c in contenders] == [None, None]


@pytest.mark.parametrize(("drawing", "name", "wrong", "message"), WRONG, ids=range(6))
def test_a_wrong_or_failing_kernel_loses_to_torch(monkeypatch, drawing, name, wrong, message):
    from specbench.decode import sampling

    monkeypatch.setattr(sampling, "kernels", SimpleNamespace(**{**vars(kernels), name: wrong}))
    winner, (lost, _) = autotuned(drawing)
    assert winner == "torch"
    assert message in lost.refusal


def test_a_kernel_that_repeats_its_draws_in_a_replay_loses():
    def frozen(run):
        run()
        return lambda: None

    winner, contenders = autotuned(DRAWS, Timing(even_clock, frozen))
    assert winner is None
    assert all(re.match("replayed, .*wrong", c.refusal) for c in contenders)


def test_a_models_own_vocabulary_is_tuned_when_it_is_loaded_and_recorded(monkeypatch):
    calls = []

    def tuned(drawing, vocab_size, *_):
        calls.append((drawing.name, vocab_size))
        return "torch" if drawing is DRAWS else "triton", []

    monkeypatch.setattr(kernel_choices, "autotune_draws", tuned)
    choices = KernelChoices("auto", Clock(), None)
    runner = StockRunner(tiny_llama())
    choices.choose(runner, "stock", "big")

    assert calls == [("draws", runner.vocab_size), ("top-p", runner.vocab_size)]
    assert [(choice.subject, choice.chosen) for choice in choices.autotuner.choices.values()] == [
        (f"draws of big, {runner.vocab_size} tokens", "torch"),
        (f"top-p of big, {runner.vocab_size} tokens", "triton"),
    ]
    anything = torch.zeros(1)
    assert not DRAWS.switch.is_on(anything, runner.vocab_size)
    assert not DRAWS.switch.is_on(anything)  # what has no vocabulary is as safe as the rest
    assert DRAWS.switch.is_on(anything, runner.vocab_size + 1)
    assert TOP_P.switch.is_on(anything, runner.vocab_size)


def test_a_stored_triton_choice_is_dropped_if_triton_cannot_launch(monkeypatch):
    """Stored choices are of a machine that had Python.h, which a kernel's launcher includes."""

    def chosen(winner):
        """The choice if `winner` would win."""
        monkeypatch.setattr(kernel_choices, "autotune_draws", lambda *_: (winner, []))
        choices = KernelChoices("auto", Clock(), None)
        choices.choose(StockRunner(tiny_llama()), "stock", "big")
        return {choice.chosen for choice in choices.autotuner.choices.values()}

    def fails(_):
        raise subprocess.CalledProcessError(1, ["gcc", "driver.c"])

    assert chosen("triton") == {"triton"}
    assert chosen("torch") == {"triton"}  # which is kept
    monkeypatch.setattr(layer_steps, "gate", fails)
    availability._launch_failure.cache_clear()
    try:
        assert "CalledProcessError" in (availability.triton_failure(CPU) or "")
        assert chosen("torch") == {"torch"}
    finally:
        availability._launch_failure.cache_clear()


def test_nothing_is_autotuned_on_a_device_without_triton(monkeypatch):
    monkeypatch.setattr(kernel_choices, "DEVICES", {"cuda"})
    choices = KernelChoices("auto", Clock(), None)
    choices.choose(StockRunner(tiny_llama()), "stock", "big")
    assert choices.autotuner.choices == {}
