"""What was pruned, or is worst somewhere, decides nothing and is not chosen."""

import re

import pytest

from specbench.decide.objective import Objective, recommend_for
from specbench.decide.recommend import choose, decide
from tests.decide.test_objective_choice import cells
from tests.decide.test_winner import Selection, found, measured  # noqa: F401


def test_a_winner_among_pruned_cells_is_still_confirmed(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.2, None)
    assert choose([won, left]).to_confirm == won.key
    assert choose([won]).to_confirm is None


def test_a_pruned_k_with_a_higher_estimate_is_reported_as_dropped(summarized):
    won, left = summarized(4, 1.4, 1.5, 1.6), summarized(8, None, 1.9, None)
    led, dropped = decide(choose([won, left]), won).reasons[-3:-1]
    assert re.match("exploration phase: K=4 .*K = 4, 8$", led)
    assert re.fullmatch("not measured: K = 8 .*", dropped)


@pytest.mark.parametrize("name", ["latency", "throughput", "cost"])
def test_a_pruned_k_is_no_candidate(name):
    price = {"price_per_hour": 1.0} if name == "cost" else {}
    found = cells(1, 100, 100, {4: (1.4, 1.5, 1.6), 8: (None, 3.0, None)})

    drafting = [c for c in found if c.key.draft.k]
    (one,) = recommend_for(
        found, [decide(choose(drafting), drafting[0])], Objective(name=name, **price)
    )
    assert 8 not in {way.key.draft.k for way in one.options}


def test_the_export_prefers_the_better_worst_workload(measured):  # noqa: F811
    uneven = {"pairing": "demo/uneven", "drafter": "uneven"}
    parts = [
        measured({4: 1.3}),
        measured({4: 1.3}, workload="chat"),
        measured({4: 2.5}, **uneven),
        measured({4: 1.1}, workload="chat", **uneven),
    ]
    assert found(parts, names=("draft", "uneven")).pairing.name == "demo/draft"
