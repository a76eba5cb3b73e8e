"""The sentences of answers: each kind has the figures that its sentence names."""

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from specbench.records import Interval, Kind, Reason, SpeedupVerdict, by_importance
from specbench.words.answers import answer_text, joined, noise_lines, text

SOURCE = Path(__file__).parents[2] / "specbench"


def fields(kind: Kind) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(kind.sentence) if name}


def calls() -> Iterator[tuple[str, Kind, set[str], bool]]:
    """Every `Kind.NAME(figure=...)` of the source: where, the kind, the figures, if they are all.

    A call with `**` has more figures.
    """
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "Kind"
            ):
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                is_whole = all(keyword.arg for keyword in node.keywords)
                yield f"{path}:{node.lineno}", Kind[node.func.attr], given, is_whole


def test_a_reason_is_given_the_figures_of_its_sentence():
    made = list(calls())
    assert len(made) > 80
    for where, kind, given, is_whole in made:
        assert given <= fields(kind), where
        assert not is_whole or given == fields(kind), where


def test_every_kind_is_made_somewhere():
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    assert [kind.name for kind in Kind if f"Kind.{kind.name}" not in source] == []


SPEEDUP = Interval(estimate=1.9, low=1.8, high=2.0)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Kind.FASTER(k=6, mean_k=None, speedup=SPEEDUP), "K=6, 1.90x faster [1.80, 2.00]"),
        (
            Kind.FASTER(k="auto", mean_k=3.14, speedup=Interval(estimate=2, low=None, high=None)),
            "auto (mean K 3.1), 2.00x faster",
        ),
        (Kind.RANGE(k=6, mean_k=None, speedup=SPEEDUP), "1.80x to 2.00x at K=6"),
        (Kind.CONFIRMED(speedup=SPEEDUP, over=(1, "pass")), "over 1 pass"),
        (Kind.NEEDS_MORE(missing=(2, "pass"), num_prompts=None), "2 passes more"),
        (Kind.NEEDS_MORE(missing=(2, "prompt"), num_prompts=5), "--num-prompts 5"),
        (Kind.LED(k=3, mean_k=None, tried=(1, 2, 3, "auto")), "K=1..3, auto"),
        (Kind.EXCLUDED(ks=(8,), because=("throttled", "29 rounds")), ": throttled; 29 rounds"),
        (Kind.FROM_LENGTH(k="no speedup", shortest=32_768), "do not speculate from 32,768"),
        (Kind.FROM_LENGTH(k="undecided", shortest=512), "undecided from 512"),
        (Kind.DETECTABLE_EFFECT(effect=11.2), ">100%"),
        (Kind.TOO_NOISY(effect=1.4, option="--repeats"), "even a 2.4x speedup"),
        (Kind.OUTSIDE(count=1), "exclude 1 token"),
        (Kind.OUTSIDE(count=2), "exclude 2 tokens"),
        (Kind.WRONG_ENDS(count=1, prompt="chat/p3"), "1 text "),
        (Kind.TIES(tokens=1, steps=1.0, below=None), "at 1 token: at most 1 step "),
        (
            Kind.DRAFTER_MEMORY(bytes=3 * 2**20, cache_tokens=1200.4),
            "3.0 MiB (the KV cache of 1,200",
        ),
        (Kind.ALL_PROMPTS(prompts=1000, width=0.038), "--num-prompts 1000 "),
        (Kind.BUDGET_FOR_ALL(width=0.038), "(to about ±4%)"),
        (
            Kind.BREAK_EVEN(k=4, tokens=Interval(estimate=2000, low=1600, high=None)),
            "2,000 tokens [1,600, ?]",
        ),
    ],
)
def test_figures_are_printed_as_their_sentence_says(reason: Reason, expected: str):
    assert expected in text(reason)


def test_the_verdict_stands_before_what_was_found():
    found = Kind.RANGE(k=6, mean_k=None, speedup=SPEEDUP), Kind.LONGER_BUDGET()
    assert answer_text(SpeedupVerdict.UNDECIDED, found).startswith("undecided: 1.80x to")
    faster = Kind.FASTER(k=6, mean_k=None, speedup=SPEEDUP)
    assert answer_text(SpeedupVerdict.FASTER, [faster], mark=" [synthetic]") == (
        "K=6, 1.90x faster [1.80, 2.00] [synthetic]"
    )
    assert joined(found).count("; ") == 1


def test_the_most_important_reason_is_first():
    memory, never = (
        Kind.DRAFTER_MEMORY(bytes=1, cache_tokens=None),
        Kind.NEVER_PAYS(k=2, break_even=4),
    )
    assert by_importance([memory, never]) == (never, memory)


def test_a_noisy_machine_is_one_short_line():
    (line,) = noise_lines([Kind.GUESTS(share=0.12), Kind.DRIFTED(factor=1.6)])
    assert len(line.split()) < 35
    assert noise_lines([]) == []
