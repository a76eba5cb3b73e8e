"""The graphs that an engine's record lists if its drafters have different ones."""

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
