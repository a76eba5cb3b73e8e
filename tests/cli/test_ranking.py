"""The answer of `specbench pair`: a drafter, a rival that may be as fast, or why none."""

from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.decide.rank import Gain, RankedDrafter, answer_of
from specbench.decide.recommend import judge
from specbench.records import Fixed, Interval, Kind, Reason, SpeedupVerdict
from specbench.report.sections import answer_about
from specbench.words.answers import answer_text
from tests.cell_keys import KEY
from tests.decide.conftest import summary
from tests.settings.flat_settings import settings_of

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


def rivals(*all_ranked: RankedDrafter) -> tuple[Reason, ...]:
    """The reasons of an answer for the first drafter that are about another one."""
    verdict, (use, *rest) = answer_of(all_ranked)
    assert verdict is SpeedupVerdict.FASTER
    assert use.figures["drafter"] == all_ranked[0].drafter
    return tuple(reason for reason in rest if reason.kind is not Kind.AT_SETTING)


def interval(low: float | None, estimate: float, high: float | None) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


DECIDES = Kind.MORE_OF(option="--num-prompts")


@pytest.mark.parametrize(
    ("bounds", "verdict", "kinds"),
    [
        ((1.4, 1.5, 1.6), "faster", [Kind.USE]),
        ((0.9, 1.5, 2.1), "undecided", [Kind.OPEN_DRAFTER, Kind.STANDS_BEST, Kind.MORE_OF]),
        ((0.5, 0.7, 0.9), "no speedup", [Kind.NO_DRAFTER_HELPS]),
    ],
)
def test_pair_recommends_or_is_undecided(bounds, verdict, kinds):
    answer, reasons = answer_of([ranked("draft", bounds)])
    assert (answer, [reason.kind for reason in reasons]) == (verdict, kinds)
    if bounds[2] > 1:
        assert reasons[0].figures["k"] == 4
        assert reasons[0].figures["speedup"] == interval(*bounds)


def test_with_several_settings_the_answer_names_one_and_the_mean():
    _, (use, setting) = answer_of([ranked("draft", (2.9, 3.0, 3.1), (0.65, 0.75, 0.85))])
    assert use.figures["speedup"] == interval(2.9, 3.0, 3.1)
    assert setting.kind is Kind.AT_SETTING
    assert setting.figures == {
        "setting": "w0",
        "speedup": pytest.approx(3**0.5),
        "settings": 2,
    }


@pytest.mark.parametrize(("basis", "bounds"), [("measured", None), ("forecast", (0.5, 0.7, 0.9))])
def test_without_a_valid_measurement_nothing_is_advised(basis, bounds):
    answer = answer_of([ranked("draft", bounds, basis=basis)])
    assert answer == (SpeedupVerdict.UNDECIDED, (Kind.NOTHING_VALID(),))


@pytest.mark.parametrize(
    ("basis", "kind"), [("measured", Kind.RIVAL), ("forecast", Kind.FORECAST_RIVAL)]
)
def test_overlapping_intervals_name_the_rival_and_the_remedy(basis, kind):
    found = rivals(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55), basis=basis))
    assert found == (kind(drafter="small", speedup=found[0].figures["speedup"]), DECIDES)
    assert astuple(found[0].figures["speedup"]) == pytest.approx((1.45, 1.3, 1.55))


def test_a_rival_with_a_lower_interval_is_not_mentioned():
    assert rivals(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.1, 1.2, 1.39))) == ()
    assert rivals(ranked("big", (1.4, 1.5, 1.6))) == ()


@pytest.mark.parametrize("basis", ["measured", "forecast"])
def test_the_answer_names_no_rival_without_a_winner(basis):
    """Neither drafter gains, or nothing was measured: the order decides nothing."""
    bounds = (0.8, 0.9, 1.0) if basis == "measured" else (1.4, 1.5, 1.6)
    _, reasons = answer_of([ranked(name, bounds, basis=basis) for name in ("big", "small")])
    assert "small" not in {reason.figures.get("drafter") for reason in reasons}
    assert answer_of([])[0] is SpeedupVerdict.UNDECIDED


def test_a_rival_without_an_interval_is_quoted_by_its_estimate():
    rival, _ = rivals(ranked("big", (1.4, 1.5, 1.6)), ranked("small", (None, 1.1, None)))
    assert rival.figures == {"drafter": "small", "speedup": interval(None, 1.1, None)}


def test_rivals_are_compared_by_their_mean_over_workloads():
    big = ranked("big", (1.9, 2.0, 2.1), (1.4, 1.5, 1.6))
    # Better on the one and worse on the other: sqrt(1.1 x 1.9) and sqrt(1.3 x 2.1), below
    # sqrt(1.9 x 1.4) = 1.63 or not.
    rival, _ = rivals(big, ranked("small", (1.1, 1.2, 1.3), (1.9, 2.0, 2.1)))
    assert astuple(rival.figures["speedup"]) == pytest.approx((1.55, 1.45, 1.65), abs=0.005)
    assert rivals(big, ranked("small", (1.1, 1.2, 1.3), (1.7, 1.8, 1.9))) == ()


def test_the_ranking_ends_with_the_verdict(capsys, monkeypatch):
    from specbench.cli import pair_tables

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    both = [ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55))]
    pair_tables.print_ranking(both, NothingFailed(), [Path("report.html")])
    before, answer = capsys.readouterr().out.splitlines()[-2:]
    assert (before, answer) == ("", answer_text(*answer_of(both)))


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


NAMED: dict[str, Any] = {"pairings": ("demo/draft",), "workloads": ("code",)}


class NothingFailed:
    """The parts of a document that the ranking reads."""

    failures = ()
    servers = ()
    cells = ()
    missing = ()
    run = SimpleNamespace(settings=settings_of(**NAMED))


def test_drafters_that_were_not_measured_are_named_and_leave_the_answer_open(capsys, monkeypatch):
    from specbench.cli import pair_tables

    class OneMissing(NothingFailed):
        missing = (KEY,)

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    lost = [ranked("lost", (0.5, 0.6, 0.7))]
    pair_tables.print_ranking(lost, OneMissing(), [])
    *shown, answer = capsys.readouterr().out.splitlines()
    assert KEY.source in " ".join(shown)
    assert answer == answer_text(*answer_of(lost, lacks_drafters=True))
    assert answer != answer_text(*answer_of(lost))


@pytest.mark.parametrize(
    ("engine", "budget_s", "option"),
    [
        ("llama_cpp", 600.0, "--time-budget"),
        ("llama_cpp", None, "--num-prompts"),
        ("builtin", 600.0, "--num-prompts"),
    ],
)
def test_a_race_of_servers_is_decided_by_more_time(engine, budget_s, option):
    class Run(NothingFailed):
        run = SimpleNamespace(settings=settings_of(**NAMED, engines=(engine,), budget_s=budget_s))

    _, reasons = answer_about([ranked("open", (0.9, 1.2, 1.5))], Run())
    assert reasons[-1] == Kind.MORE_OF(option=option)
    _, reasons = answer_about([ranked("a", (1.1, 1.3, 1.5)), ranked("b", (1.1, 1.2, 1.4))], Run())
    assert reasons[-1] == Kind.MORE_OF(option=option)


def test_the_ranking_says_that_each_setting_has_its_own_k(capsys, monkeypatch):
    from specbench.cli import pair_tables

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    several = [ranked("won", (2.9, 3.0, 3.1), (0.65, 0.75, 0.85))]
    pair_tables.print_ranking(several, NothingFailed(), [])
    out = " ".join(capsys.readouterr().out.split())
    assert "1.73x" in out
    assert "2 settings, each at its own K" in out


def test_a_drafter_without_an_interval_is_quoted_only_if_no_open_one_has_one():
    both = [ranked("alone", (None, 1.5, None)), ranked("open", (0.9, 1.2, 1.5))]
    assert answer_of(both)[1][0].figures["drafter"] == "open"
    assert answer_of(both[:1])[1][0].figures["drafter"] == "alone"


def test_a_drafter_slower_than_k_0_is_never_called_best():
    both = [ranked("slow", (0.5, 0.7, 1.1)), ranked("ngram", (0.6, 0.85, 1.2))]
    verdict, reasons = answer_of(both)
    nearest = Kind.OPEN_DRAFTER(drafter="ngram", k=4, speedup=interval(0.6, 0.85, 1.2))
    assert (verdict, reasons) == (
        SpeedupVerdict.UNDECIDED,
        (nearest, Kind.STANDS_NEAREST(), DECIDES),
    )
