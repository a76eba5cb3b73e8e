"""The last line of `specbench pair`: a drafter, a rival that may be as fast, or why none."""

import re

import pytest

from specbench.cli.pair_tables import verdict
from specbench.decide.rank import Gain, RankedDrafter
from specbench.decide.recommend import judge
from specbench.records import Fixed, Interval
from tests.decide.conftest import summary

Bounds = tuple[float | None, float, float | None]


def ranked(drafter: str, *intervals: Bounds | None, basis: str = "measured") -> RankedDrafter:
    """A drafter with a speedup on each of these many workloads."""
    gains = {}
    for i, bounds in enumerate(intervals):
        low, estimate, high = bounds or (None, 1.0, None)
        setting = summary(4, low, estimate, high, workload=f"w{i}").key.condition
        speedup = Interval(estimate=estimate, low=low, high=high) if bounds else None
        gains[setting] = Gain(
            4 if low and low > 1 else 0, speedup, 2.0, basis, judge(speedup), Fixed(4)
        )
    return RankedDrafter(
        pairing=f"demo/{drafter}", drafter=drafter, method="draft_model", gains=gains
    )


def rival_text(*all_ranked: RankedDrafter) -> str:
    """The part of a verdict for the first drafter that is about another one."""
    message = verdict(all_ranked)
    assert message.startswith(f"Use {all_ranked[0].drafter} ")
    return message.partition("; ")[2]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((1.4, 1.5, 1.6), "Use draft (draft_model) with K=4: 1.50x faster [1.40, 1.60]."),
        ((0.9, 1.5, 2.1), "Undecided: 0.90x to 2.10x with draft at K=4, "),
        ((0.5, 0.7, 0.9), "Do not speculate: nothing measured gains."),
    ],
)
def test_the_last_line_of_pair_recommends_or_is_undecided(bounds, expected):
    assert verdict([ranked("draft", bounds)]).startswith(expected)


def test_with_several_settings_the_last_line_names_them_and_the_mean():
    assert re.fullmatch(
        r".*draft \(draft_model\) .*K=4: 3\.00x .*\[2\.90, 3\.10\] .*w0; 1\.73x "
        r".*2 settings, each at its K\.",
        verdict([ranked("draft", (2.9, 3.0, 3.1), (0.65, 0.75, 0.85))]),
    )


@pytest.mark.parametrize(("basis", "bounds"), [("measured", None), ("forecast", (0.5, 0.7, 0.9))])
def test_without_a_valid_measurement_nothing_is_advised(basis, bounds):
    message = verdict([ranked("draft", bounds, basis=basis)])
    assert message.startswith("Undecided: nothing valid ")


def test_overlapping_intervals_name_the_rival_and_the_remedy():
    message = rival_text(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55)))
    assert message.startswith("small ")
    assert "1.45x [1.30, 1.55]" in message
    assert "--num-prompts" in message
    assert "(forecast)" not in message


def test_a_rival_known_by_forecast_is_marked():
    message = rival_text(
        ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55), basis="forecast")
    )
    assert "1.45x [1.30, 1.55] (forecast)" in message


def test_a_rival_with_a_lower_interval_is_not_mentioned():
    assert rival_text(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.1, 1.2, 1.39))) == ""
    assert rival_text(ranked("big", (1.4, 1.5, 1.6))) == ""


@pytest.mark.parametrize("basis", ["measured", "forecast"])
def test_the_verdict_names_no_rival_without_a_winner(basis):
    """Neither drafter gains, or nothing was measured: the order decides nothing."""
    bounds = (0.8, 0.9, 1.0) if basis == "measured" else (1.4, 1.5, 1.6)
    message = verdict([ranked(name, bounds, basis=basis) for name in ("big", "small")])
    assert "small" not in message
    assert verdict([])


def test_a_rival_without_an_interval_is_quoted_by_its_estimate():
    message = rival_text(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (None, 1.1, None)))
    assert message.startswith("small ")
    assert "1.10x" in message


def test_rivals_are_compared_by_their_mean_over_workloads():
    big = ranked("big", (1.9, 2.0, 2.1), (1.4, 1.5, 1.6))
    # Better on the one and worse on the other: sqrt(1.1 x 1.9) and sqrt(1.3 x 2.1), below
    # sqrt(1.9 x 1.4) = 1.63 or not.
    assert "1.55x [1.45, 1.65]" in verdict([big, ranked("small", (1.1, 1.2, 1.3), (1.9, 2.0, 2.1))])
    assert "small" not in verdict([big, ranked("small", (1.1, 1.2, 1.3), (1.7, 1.8, 1.9))])


def test_the_ranking_ends_with_the_verdict(capsys, monkeypatch):
    from specbench.cli import pair_tables

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    both = [ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55))]
    pair_tables.print_ranking(both, NothingFailed(), [])
    before, answer = capsys.readouterr().out.splitlines()[-2:]
    assert (before, answer) == ("", verdict(both))


def test_the_table_has_the_k_of_its_figures_and_of_the_verdict(capsys, monkeypatch):
    from specbench.cli import pair_tables

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    several = [
        ranked("won", (1.4, 1.5, 1.6)),
        ranked("open", (0.8, 0.9, 1.0), (0.9, 1.0, 1.1)),
        ranked("lost", (0.5, 0.6, 0.7)),
    ]
    pair_tables.print_ranking(several, NothingFailed(), [])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["drafter", "method", "K", "speedup", "length", "verdict", "from"]
    assert rows[2:5] == [
        ["1", "won", "draft_model", "4", "1.50x", "2.00", "faster", "measured"],
        ["2", "open", "draft_model", "4", "0.95x", "2.00", "undecided", "measured"],
        ["3", "lost", "draft_model", "4", "0.60x", "2.00", "no", "speedup", "measured"],
    ]


class NothingFailed:
    """The parts of a document that the ranking reads."""

    failures = ()
    servers = ()


def test_a_drafter_slower_than_k_0_is_never_called_best():
    both = [ranked("slow", (0.5, 0.7, 1.1)), ranked("ngram", (0.6, 0.85, 1.2))]
    message = verdict(both)
    assert "looks best" not in message
    assert message.index("0.60x to 1.20x") < message.index("ngram")
    assert "0.85" not in message
