"""Two drafts whose intervals overlap: the ranking says that their order is not known."""

import pytest

from specbench.cli.pair_tables import undecided_order, verdict
from specbench.decide.rank import Gain, Ranked
from specbench.records import Interval
from tests.decide.conftest import summary

Bounds = tuple[float | None, float, float | None]


def ranked(drafter: str, *found: Bounds, basis: str = "measured") -> Ranked:
    """A drafter with a speed-up on each of so many workloads."""
    gains = {}
    for i, (low, estimate, high) in enumerate(found):
        setting = summary(4, low, estimate, high, workload=f"w{i}").key.condition
        speedup = Interval(estimate=estimate, low=low, high=high)
        gains[setting] = Gain(4 if low and low > 1 else 0, speedup, 2.0, basis)
    return Ranked(pairing=f"demo/{drafter}", drafter=drafter, method="draft_model", gains=gains)


def test_overlapping_intervals_are_said_not_to_be_told_apart_and_what_would():
    assert undecided_order(
        [ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55))]
    ) == (
        "big and small cannot be told apart: 1.50x [1.40, 1.60] and 1.45x [1.30, 1.55]; use more "
        "--prompts or a quieter machine."
    )


def test_a_forecast_among_them_is_called_one():
    said = undecided_order(
        [ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55), basis="forecast")]
    )
    assert "1.50x [1.40, 1.60] and 1.45x [1.30, 1.55] (forecast); " in said


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1.4, 1.5, 1.6), (1.1, 1.2, 1.39)),  # apart
        ((0.8, 0.9, 1.0), (0.7, 0.85, 0.95)),  # neither gains: the order decides nothing
    ],
)
def test_nothing_is_said_of_an_order_that_is_known_or_of_no_use(first, second):
    assert undecided_order([ranked("big", first), ranked("small", second)]) == ""


def test_a_figure_without_an_interval_is_told_from_nothing():
    said = undecided_order([ranked("big", (1.4, 1.5, 1.6)), ranked("small", (None, 1.1, None))])
    assert said.startswith("big and small cannot be told apart: 1.50x [1.40, 1.60] and 1.10x; ")


def test_over_several_workloads_it_is_their_mean_that_counts():
    big = ranked("big", (1.9, 2.0, 2.1), (1.4, 1.5, 1.6))
    # Better on the one and worse on the other: sqrt(1.1 x 1.9) and sqrt(1.3 x 2.1), below
    # sqrt(1.9 x 1.4) = 1.63 or not.
    assert undecided_order([big, ranked("small", (1.1, 1.2, 1.3), (1.9, 2.0, 2.1))]) == (
        "big and small cannot be told apart: 1.73x [1.63, 1.83] and 1.55x [1.45, 1.65]; use more "
        "--prompts or a quieter machine."
    )
    assert undecided_order([big, ranked("small", (1.1, 1.2, 1.3), (1.7, 1.8, 1.9))]) == ""


def test_one_drafter_has_no_rival():
    assert undecided_order([ranked("big", (1.4, 1.5, 1.6))]) == ""
    assert undecided_order([]) == ""


def test_forecasts_alone_are_not_compared():
    both = [ranked(name, (1.4, 1.5, 1.6), basis="forecast") for name in ("big", "small")]
    assert undecided_order(both) == ""


def test_the_sentence_is_printed_before_the_answer(capsys, monkeypatch):
    from specbench.cli import pair_tables

    monkeypatch.setattr(pair_tables, "answer_lines", lambda _: [])
    both = [ranked("big", (1.4, 1.5, 1.6)), ranked("small", (1.3, 1.45, 1.55))]
    pair_tables.print_ranking(both, NothingFailed(), [])
    *_, note, verdict = capsys.readouterr().out.splitlines()
    assert note == undecided_order(both)
    assert verdict.startswith("Use big ")


class NothingFailed:
    """All that the ranking asks of a document."""

    failures = ()
    servers = ()


def test_what_is_slower_than_nothing_is_never_said_to_look_best():
    both = [ranked("slow", (0.5, 0.7, 1.1)), ranked("ngram", (0.6, 0.85, 1.2))]
    said = verdict(both)
    assert "looks best" not in said
    assert said.index("0.60x to 1.20x") < said.index("ngram")
    assert "0.85" not in said
