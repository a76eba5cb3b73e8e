from dataclasses import replace

import pytest

from specbench.decide.objective import SMALL_LOSS, SharedK, find_shared_k, losses_of, one_k
from specbench.decide.recommend import choose, decide
from specbench.metrics.cell import CellData, against
from specbench.metrics.summary import summarize
from specbench.records import Auto, Interval, Kind
from tests.cell_keys import with_axes
from tests.decide.cells import BASE, cell, draft


def sweep(summarized, workload, **speedups):
    """Cells of one workload, such as k2=1.5, with intervals of +- 0.1."""
    return [
        summarized(int(k[1:]), s - 0.1, s, s + 0.1, workload=workload) for k, s in speedups.items()
    ]


def test_the_shared_k_has_the_least_worst_regret(summarized):
    cells = [
        *sweep(summarized, "code", k2=1.5, k4=1.8, k8=2.0),
        *sweep(summarized, "chat", k2=1.2, k4=1.1, k8=0.6),
    ]
    shared_k = find_shared_k(cells)
    assert shared_k is not None
    assert shared_k.num_speculative_tokens == 4
    assert shared_k.regret == pytest.approx({"code": 1 - 1.8 / 2.0, "chat": 1 - 1.1 / 1.2})


def test_a_shared_k_names_cells_without_an_interval(summarized):
    code = sweep(summarized, "code", k4=2.0, k8=1.8)
    chat = [*sweep(summarized, "chat", k8=1.4), summarized(4, None, 1.5, None, workload="chat")]
    shared_k = find_shared_k([*code, *chat])
    assert shared_k is not None
    assert (shared_k.num_speculative_tokens, shared_k.left_out) == (8, (4,))
    assert one_k(shared_k).figures["left_out"] == ("K=4",)
    complete = find_shared_k([*code, *sweep(summarized, "chat", k4=1.5, k8=1.4)])
    assert complete is not None
    assert complete.left_out == ()


def test_a_workloads_own_k_has_no_regret(summarized):
    # On chat K = 7 is the answer, which ties with K = 8 within 1%.
    chat = [
        summarized(7, 1.05, 1.47, 2.06, workload="chat"),
        summarized(8, 1.40, 1.48, 1.56, workload="chat"),
    ]
    code = sweep(summarized, "code", k7=2.0, k8=1.5)
    shared_k = find_shared_k([*chat, *code])
    assert shared_k is not None
    assert (shared_k.num_speculative_tokens, shared_k.regret) == (7, {"chat": 0.0, "code": 0.0})
    assert one_k(shared_k) == Kind.ONE_K(k=7, losses=(Kind.NO_LOSS(),), open_on=(), left_out=())


def test_a_workload_with_another_best_k_is_named_without_a_loss(summarized):
    # On code K = 2 is the answer, proven to gain most; K = 4 is as fast by its estimate.
    code = [
        summarized(2, 1.40, 1.45, 1.50, workload="code"),
        summarized(4, 1.30, 1.46, 1.64, workload="code"),
    ]
    chat = sweep(summarized, "chat", k2=1.3, k4=1.6)
    shared_k = find_shared_k([*code, *chat])
    assert shared_k is not None
    assert (shared_k.num_speculative_tokens, dict(shared_k.best_k)) == (4, {"code": 2, "chat": 4})
    loss = Kind.LOSS_UNMEASURABLE(workload="code", best="K=2")
    assert one_k(shared_k).figures["losses"] == (loss,)


def test_a_shared_k_respects_the_confirmation_run(summarized):
    code = sweep(summarized, "code", k2=0.9, k4=1.5)
    lost = decide(choose(code), summarized(4, 0.90, 0.95, 1.00, workload="code"))
    shared_k = find_shared_k([*code, *sweep(summarized, "chat", k2=1.3, k4=1.5)], [lost])
    assert shared_k is not None
    assert dict(shared_k.best_k) == {"code": 0, "chat": 4}


def test_a_k_that_was_decided_against_loses_what_its_decision_shows(summarized):
    code = sweep(summarized, "code", k2=0.8, k4=1.5)
    chat = sweep(summarized, "chat", k2=1.3, k4=1.8)
    lost = decide(choose(code), summarized(4, 0.85, 0.87, 0.90, workload="code"))
    shared_k = find_shared_k([*code, *chat], [lost])
    assert shared_k is not None
    assert (shared_k.num_speculative_tokens, shared_k.best_k["code"]) == (4, 0)
    assert shared_k.regret == pytest.approx({"code": 0.13, "chat": 0.0})
    low, high = pytest.approx(0.10), pytest.approx(0.15)
    assert one_k(shared_k).figures["losses"] == (
        Kind.LOSS_BETWEEN(low=low, high=high, workload="code"),
    )


def test_whole_requests_that_decided_against_a_k_show_its_loss(summarized):
    code = sweep(summarized, "code", k4=1.5)
    slower = Interval(estimate=0.8, low=0.7, high=0.9)
    lost = decide(choose([replace(code[0], speedup_end_to_end=slower)]))
    shared_k = find_shared_k([*code, *sweep(summarized, "chat", k4=1.8)], [lost])
    assert shared_k is not None
    assert shared_k.regret == pytest.approx({"code": 0.2, "chat": 0.0})


def test_without_a_decision_the_quoted_k_is_the_workloads_own(summarized):
    code = sweep(summarized, "code", k2=1.01, k4=1.05)
    undecided = decide(choose(code))
    assert undecided.draft.k == 0
    shared_k = find_shared_k([*code, *sweep(summarized, "chat", k2=1.5, k4=1.6)], [undecided])
    assert shared_k is not None
    assert dict(shared_k.best_k) == {"code": 4, "chat": 4}


def test_what_a_shared_k_loses_on_an_undecided_workload_is_unknown(summarized):
    code = sweep(summarized, "code", k2=1.06, k4=1.01)
    chat = sweep(summarized, "chat", k2=1.3, k4=1.6)
    confirmed = summarized(4, 1.5, 1.6, 1.7, workload="chat")
    decisions = [decide(choose(code)), decide(choose(chat), confirmed)]
    shared_k = find_shared_k([*code, *chat], decisions)
    assert shared_k is not None
    assert (shared_k.open_on, shared_k.regret["code"] > 0) == (("code",), True)
    assert one_k(shared_k) == Kind.ONE_K(
        k=4, losses=(Kind.NO_LOSS(),), open_on=("code",), left_out=()
    )


def test_no_shared_k_without_intervals_in_every_workload(summarized):
    # As under a budget: each workload has the prompts of an interval at its own K only.
    code = [*sweep(summarized, "code", k5=2.4), summarized(7, None, 2.2, None, workload="code")]
    chat = [*sweep(summarized, "chat", k7=2.0), summarized(5, None, 1.8, None, workload="chat")]
    assert find_shared_k([*code, *chat]) is None


def test_k_0_is_a_candidate_for_the_shared_k(summarized):
    cells = [
        *sweep(summarized, "code", k2=1.05),
        *sweep(summarized, "creative", k2=0.5),
    ]
    shared_k = find_shared_k(cells)
    assert shared_k is not None
    assert shared_k.num_speculative_tokens == 0
    assert shared_k.regret == pytest.approx({"code": 1 - 1 / 1.05, "creative": 0.0})


def test_regrets_within_1_percent_go_to_the_smaller_k(summarized):
    shared_k = find_shared_k(sweep(summarized, "code", k2=1.991, k4=2.0))
    assert shared_k is not None
    assert shared_k.num_speculative_tokens == 2


def test_a_k_that_is_invalid_in_one_workload_does_not_compete(summarized):
    code = sweep(summarized, "code", k2=1.5, k8=2.0)
    chat = sweep(summarized, "chat", k2=1.5, k8=2.0)
    chat[1] = replace(chat[1], valid=False, invalid_reasons=(Kind.NOTHING_FINISHED(),))
    shared_k = find_shared_k([*code, *chat])
    assert shared_k is not None
    assert shared_k.num_speculative_tokens == 2
    assert shared_k.regret == pytest.approx({"code": 0.25, "chat": 0.0})


def test_a_pruned_k_is_never_the_shared_k(summarized):
    dropped = [summarized(8, None, 1.9, None, workload=name) for name in ("code", "chat")]
    cells = [*sweep(summarized, "code", k10=1.3), *sweep(summarized, "chat", k10=1.3), *dropped]
    shared_k = find_shared_k(cells)
    assert shared_k is not None
    assert (shared_k.num_speculative_tokens, shared_k.regret) == (10, {"code": 0.0, "chat": 0.0})


def test_without_a_valid_cell_there_is_no_shared_k(summarized):
    assert find_shared_k([summarized(2, 1.0, 1.1, 1.2, invalid=("throttled",))]) is None
    assert find_shared_k([]) is None


def test_an_adaptive_k_is_never_the_shared_k(summarized):
    code = sweep(summarized, "code", k2=1.5)
    auto = [
        replace(c, key=with_axes(c.key, adaptive=True)) for c in sweep(summarized, "code", k8=3.0)
    ]
    shared_k = find_shared_k([*code, *auto])
    assert shared_k is not None
    assert shared_k.num_speculative_tokens == 2
    assert find_shared_k(auto) is None


def test_a_shared_k_of_two_pairings_is_refused(summarized):
    cell = summarized(2, 1.0, 1.1, 1.2)
    other = replace(cell, key=with_axes(cell.key, pairing="demo/poor"))
    with pytest.raises(ValueError, match="one pairing"):
        find_shared_k([cell, other])


def explored(workload: str, **seconds: list[float]) -> list[CellData]:
    """Cells of one workload with seconds of six prompts, such as k0=[...]."""
    plain = cell(with_axes(BASE, workload=workload), seconds.pop("k0"))
    drafting = {int(k[1:]): s for k, s in seconds.items()}
    return [
        plain,
        *(against(cell(draft(k, workload=workload), s), plain) for k, s in drafting.items()),
    ]


SPREAD = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0]


def of_losses(k4_s: list[float]) -> SharedK:
    """K = 4 for code, where K = 8 is best; K = 8 loses on chat."""
    cells = [
        *explored("code", k0=[2 * s for s in SPREAD], k4=k4_s, k8=SPREAD),
        *explored("chat", k0=[2 * s for s in SPREAD], k4=SPREAD, k8=[3 * s for s in SPREAD]),
    ]
    shared = find_shared_k(summarize(c for c in cells if c.k), explored=cells)
    assert shared is not None
    assert shared.num_speculative_tokens == 4
    return shared


def test_a_loss_has_the_interval_of_both_k_on_the_same_prompts():
    shared = of_losses([1.25 * s for s in SPREAD])
    loss = shared.regret_bounds["code"]
    assert loss.estimate == pytest.approx(1 - 1 / 1.25)
    assert 0.1 < loss.low < loss.estimate < loss.high < 0.3
    (found,) = one_k(shared).figures["losses"]
    assert found == Kind.LOSS_BETWEEN(low=loss.low, high=loss.high, workload="code")


def test_a_loss_whose_interval_is_wide_is_unknown():
    factors = [1.9, 0.8, 1.6, 0.7, 1.5, 0.75]
    shared = of_losses([f * s for f, s in zip(factors, SPREAD, strict=True)])
    (found,) = one_k(shared).figures["losses"]
    assert found.kind is Kind.LOSS_UNKNOWN
    assert found.figures["high"] > SMALL_LOSS


def test_a_loss_that_may_be_0_and_is_small_has_an_upper_bound():
    shared = of_losses([1.02 * s for s in SPREAD])
    (found,) = one_k(shared).figures["losses"]
    assert found.kind is Kind.LOSS_AT_MOST
    assert 0.02 < found.figures["high"] <= SMALL_LOSS


@pytest.mark.parametrize(
    ("chat_s", "k", "workload", "loss"),
    [(2.0, 0, "code", 1 - 1 / 1.25), (1.1, 8, "chat", 1 - 1 / 1.1)],
)
def test_a_loss_against_or_of_k_0_has_an_interval(chat_s, k, workload, loss):
    """K = 8 gains 25% on code, and loses on chat."""
    cells = [
        *explored("code", k0=[1.25 * s for s in SPREAD], k8=SPREAD),
        *explored("chat", k0=SPREAD, k8=[chat_s * s for s in SPREAD]),
    ]
    shared = find_shared_k(summarize(c for c in cells if c.k), explored=cells)
    assert shared is not None
    assert shared.num_speculative_tokens == k
    assert shared.regret_bounds.keys() == {workload}
    bounds = shared.regret_bounds[workload]
    assert bounds.estimate == pytest.approx(loss)
    assert bounds.low < loss < bounds.high < 1


def test_a_k_that_is_shown_to_be_faster_loses_nothing_measurable():
    bounds = Interval(estimate=-0.05, low=-0.1, high=-0.01)
    loss = Kind.LOSS_UNMEASURABLE(workload="code", best="K=8")
    assert losses_of({"code": 0.0}, {"code": "K=8"}, {"code": bounds}) == (loss,)


def test_a_workload_that_an_adaptive_k_leaves_open_is_open(summarized):
    code = sweep(summarized, "code", k2=1.06, k4=1.01)
    chat = sweep(summarized, "chat", k2=1.3, k4=1.6)
    (auto,) = sweep(summarized, "code", k8=1.1)
    auto = replace(auto, key=auto.key.at(Auto(8)))
    confirmed = summarized(4, 1.5, 1.6, 1.7, workload="chat")
    decisions = [decide(choose([*code, auto])), decide(choose(chat), confirmed)]
    assert decisions[0].leader == auto.key
    shared_k = find_shared_k([*code, *chat, auto], decisions)
    assert shared_k.open_on == ("code",)


def test_a_loss_on_an_undecided_workload_is_not_shown():
    shared = replace(of_losses([1.25 * s for s in SPREAD]), open_on=("code",))
    assert one_k(shared).figures["losses"] == (Kind.NO_LOSS(),)
