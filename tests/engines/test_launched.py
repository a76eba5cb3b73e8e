"""The graphs that an engine's record lists if its drafters have different ones, and passes that
capture graphs."""

from typing import Any, NamedTuple

import pytest
import torch

from specbench.decode.decoder import Decoder
from specbench.engines.builtin import BuiltinEngine, graph_kind, graph_notes
from specbench.engines.engine import Load
from specbench.engines.model_pool import ModelPool
from specbench.inputs.pairing import Target
from specbench.records import Request


class Launcher(NamedTuple):
    graph: str
    reason: str | None = None


HOST = Launcher("step", "the method proposes on the host")


@pytest.mark.parametrize(
    ("launched", "kind", "notes"),
    [
        ([], "off", []),
        ([("none", Launcher("round")), ("draft", Launcher("round"))], "round", []),
        (
            [("none", Launcher("round")), ("draft", Launcher("round")), ("suffix", HOST)],
            "round",
            ["graphs of suffix: step, the method proposes on the host"],
        ),
        (
            [("suffix", HOST), ("draft", Launcher("round"))],
            "round",
            ["graphs of suffix: step, the method proposes on the host"],
        ),
        (
            [("none", Launcher("off", "no room")), ("draft", Launcher("off", "no room"))],
            "off",
            ["graphs: no room"],
        ),
        (
            [("draft", Launcher("round")), ("none", Launcher("off", "no room"))],
            "off",
            ["graphs of none: off, no room"],
        ),
        (
            [("none", Launcher("off", "no room")), ("draft", Launcher("step", "no room"))],
            "off",
            ["graphs of none: off, no room", "graphs of draft: step, no room"],
        ),
        # with and without ends of text
        ([("suffix", HOST), ("suffix", HOST)], "step", ["graphs: the method proposes on the host"]),
    ],
)
def test_the_graph_mode_is_that_of_k_0_and_others_are_noted(
    launched: Any, kind: str, notes: list[str]
) -> None:
    assert graph_kind(launched) == kind
    assert list(graph_notes(launched)) == notes


@pytest.mark.parametrize(
    ("num_captures", "num_discarded", "is_noted"),
    [((0, 0), 0, False), ((0, 2, 2, 2), 1, False), ((0, 2, 2, 3, 3, 4), 2, True)],
    ids=["none", "first", "every"],
)
def test_a_pass_that_captures_is_discarded_unless_it_is_the_third(
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    num_captures: tuple[int, ...],
    num_discarded: int,
    is_noted: bool,
) -> None:
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    request = Request(prompt_ids=(40, 41, 42), max_new_tokens=4)
    engine.generate(request, engine.baseline)
    before_and_after = iter(num_captures)
    monkeypatch.setattr(Decoder, "num_captures", property(lambda _: next(before_and_after)))

    served = engine.serve([request], engine.baseline, Load())

    assert list(before_and_after) == []
    assert served.num_discarded == num_discarded
    assert any("include a capture" in note for note in engine.record.notes) is is_noted
