"""Which graphs an engine's record lists, if its drafters have different ones."""

import re
from typing import Any, NamedTuple

import pytest

from specbench.engines.builtin import graph_kind, graph_notes


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
    ],
)
def test_the_graph_mode_is_that_of_k_0_and_others_are_noted(
    launched: Any, kind: str, notes: list[str]
) -> None:
    assert graph_kind(launched) == kind
    assert list(graph_notes(launched)) == notes


def test_the_graph_kind_is_that_of_k_0():
    plain = Launcher("off", "no room")
    launched = [("draft", Launcher("round")), ("none", plain)]
    assert graph_kind(launched) == "off"
    assert list(graph_notes(launched)) == ["graphs of none: off, no room"]


def test_a_shared_reason_against_graphs_is_noted_for_each_kind():
    launched = [("none", Launcher("off", "no room")), ("draft", Launcher("step", "no room"))]
    assert list(graph_notes(launched)) == [
        "graphs of none: off, no room",
        "graphs of draft: step, no room",
    ]


def test_equal_graph_notes_of_one_drafter_are_reported_once():
    launched = [("suffix", HOST), ("suffix", HOST)]
    (note,) = graph_notes(launched)
    assert re.match("graphs: .*the host$", note)
