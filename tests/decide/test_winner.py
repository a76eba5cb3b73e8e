"""The K for each number of requests, from a run's decisions."""

import re
from dataclasses import replace

import pytest

from specbench.decide.recommend import choose, decide
from specbench.engines.deployment import Tier, find_exporter
from specbench.errors import UsageError
from specbench.export.winner import Selection, winner
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.records import CellSummary, Fixed, Interval, Kind
from specbench.settings import EXPORTED
from specbench.words.answers import text
from tests.cell_keys import with_axes

TARGET = Target(name="demo", model=ModelSpec(source="org/big"), drafters=())


def pairing(name: str) -> Pairing:
    return Pairing(target=TARGET, drafter=DrafterSpec(name=name, method="ngram"))


def cell_at(cell: CellSummary, **changes: object) -> CellSummary:
    key = with_axes(cell.key, **changes)
    return replace(cell, key=key)


@pytest.fixture
def measured(summarized):
    """Cells of K -> speedup, and the decision on them, of one setting."""

    def build(speedups, workload="code", **changes):
        cells = [
            cell_at(summarized(k, s - 0.05, s, s + 0.05, workload=workload), **changes)
            for k, s in speedups.items()
        ]
        choice = choose(cells)
        return cells, decide(choice, choice.leader if choice.to_confirm else None)

    return build


def pick(parts, selection=Selection(), names=("draft",)):  # noqa: B008
    cells = [cell for group, _ in parts for cell in group]
    decisions = [decision for _, decision in parts]
    return winner([pairing(name) for name in names], decisions, cells, selection)


def test_a_single_setting_exports_its_winning_k(measured):
    made = pick([measured({2: 1.3, 4: 1.6, 8: 1.4})])
    assert made.tiers == (Tier(None, 4),)
    (here,), (beyond,) = made.basis, made.limits
    assert re.fullmatch(r"code: K=4, 1\.60x .*\[1\.55, 1\.65\]", text(here))
    assert beyond == Kind.NOT_BEYOND(requests=1)
    assert (made.temperature, made.dtype) == (0.0, "float32")


def test_the_winner_is_k_0_with_the_reason_if_no_k_is_faster(measured):
    made = pick([measured({2: 0.8, 4: 0.7})])
    assert made.k == 0
    (only,) = made.basis
    assert (only.kind, only.figures["verdict"]) == (Kind.DECIDED, "no speedup")
    assert re.fullmatch(r"code: no speedup: K=2 .*0\.80x \[0\.75, 0\.85\]", text(only))


def test_k_0_without_evidence_differs_from_a_decided_k_0(measured):
    lost, open_ = measured({2: 0.8, 4: 0.7}), measured({2: 0.8, 4: 1.03}, workload="edit")
    assert not pick([lost]).is_undecided
    assert pick([open_]).is_undecided
    assert pick([lost, open_]).is_undecided
    helps = pick([measured({4: 1.6}), open_])
    assert (helps.k, helps.is_undecided) == (4, False)


def test_several_workloads_share_the_k_of_least_regret(measured):
    # K = 4 is best nowhere and loses little everywhere.
    parts = [
        measured({2: 1.50, 4: 1.45, 8: 1.1}),
        measured({2: 1.2, 4: 1.55, 8: 1.60}, workload="edit"),
    ]
    made = pick(parts)
    assert made.tiers == (Tier(None, 4),)
    shared = made.basis[-1]
    assert (shared.kind, shared.figures["k"]) == (Kind.ONE_K, 4)
    assert shared.figures["losses"][0].figures["workload"] == "code"
    assert pick(parts, Selection(workload="edit")).k == 8


def test_k_is_undecided_if_no_winner_has_an_interval_on_every_workload(measured):
    made = pick([measured({5: 2.4}), measured({7: 2.0}, workload="chat")])
    assert (made.k, made.is_undecided) == (0, True)
    assert made.basis[-1] == Kind.NO_SHARED_K()
    assert pick([measured({7: 2.4}), measured({7: 2.0}, workload="chat")]).k == 7


def test_concurrencies_become_tiers_and_equal_neighbors_one(measured):
    parts = [
        measured({2: 1.3, 5: 1.6}),
        measured({2: 1.3, 5: 1.5}, concurrency=2),
        measured({2: 1.3, 5: 1.1}, concurrency=8),
        measured({2: 0.9, 5: 0.7}, concurrency=32),
    ]
    made = pick(parts)
    assert made.tiers == (Tier(2, 5), Tier(8, 2), Tier(32, 0))
    decided = made.basis[1]
    assert (decided.kind, decided.figures["requests"]) == (Kind.DECIDED, 2)
    assert decided.figures["because"][0].figures["k"] == 5
    assert pick(parts, Selection(concurrency=8)).tiers == (Tier(None, 2),)
    assert made.flat()[0].tiers == (Tier(None, 5),)


def test_a_concurrency_with_k_0_for_lack_of_evidence_is_named(measured):
    wins, open_, loses = (
        measured({4: speedup}, concurrency=n) for n, speedup in ((1, 1.6), (8, 1.0), (32, 0.8))
    )
    made = pick([wins, open_, loses])
    assert made.tiers == (Tier(1, 4), Tier(32, 0))
    assert (made.undecided, made.is_undecided) == ((8,), False)
    assert made.limits[0] == Kind.OPEN_CONCURRENCY(at=(8,))
    decided = pick([wins, loses])
    assert (decided.tiers, decided.undecided) == ((Tier(1, 4), Tier(32, 0)), ())
    assert len(decided.basis) == 2


def test_the_best_drafter_is_the_one_whose_worst_workload_is_best(measured):
    uneven = {"pairing": "demo/uneven", "drafter": "uneven"}
    parts = [
        measured({4: 1.4}),
        measured({4: 1.4}, workload="chat"),
        measured({4: 0.8}, workload="chat", **uneven),
        measured({4: 2.0}, **uneven),
    ]
    assert pick(parts, names=("draft", "uneven")).pairing.name == "demo/draft"
    best = pick(parts, Selection(workload="code"), ("draft", "uneven"))
    assert best.pairing.name == "demo/uneven"


def test_the_drafter_with_more_gain_on_some_workloads_is_exported(measured):
    other = {"pairing": "demo/other", "drafter": "other"}
    parts = [
        measured({4: 0.8}),
        measured({4: 0.8}, workload="chat"),
        measured({4: 0.8}, workload="chat", **other),
        measured({4: 1.8}, **other),
    ]
    made = pick(parts, names=("draft", "other"))
    assert (made.pairing.name, made.k) == ("demo/other", 4)


def test_drafters_are_compared_on_the_workloads_that_they_share(measured):
    once = {"pairing": "demo/once", "drafter": "once"}
    both = [measured({4: 1.6}), measured({4: 1.2}, workload="chat")]
    names = ("draft", "once")
    assert pick([*both, measured({4: 1.3}, **once)], names=names).pairing.name == "demo/draft"
    assert pick([*both, measured({4: 1.9}, **once)], names=names).pairing.name == "demo/once"
    apart = measured({4: 1.9}, workload="edit", **once)  # nothing to compare them on
    assert pick([*both, apart], names=names).pairing.name == "demo/draft"


def test_the_lowest_temperature_is_exported_by_default(measured):
    parts = [measured({4: 1.2}, temperature=1.0), measured({2: 1.5})]
    assert (pick(parts).temperature, pick(parts).k) == (0.0, 2)
    warm = pick(parts, Selection(temperature=1.0))
    assert (warm.temperature, warm.k) == (1.0, 4)


def test_other_temperatures_of_the_run_are_named(measured):
    parts = [measured({4: 1.2}, temperature=t) for t in (1.0, 0.7)] + [measured({2: 1.5})]
    (measured_at,) = pick(parts).conditions
    assert (measured_at.figures["temperature"], measured_at.figures["others"]) == (
        0.0,
        ("0.7", "1"),
    )
    for selection, some in ((Selection(temperature=1.0), parts), (Selection(), parts[:1])):
        assert [reason.figures["others"] for reason in pick(some, selection).conditions] == [()]


def test_k_of_the_shortest_prompts_is_exported_with_a_note_on_the_others(measured):
    parts = [measured({4: speedup}, context=n) for n, speedup in ((4096, 0.7), (512, 1.6))]
    made = pick(parts)
    assert (made.k, made.context) == (4, 512)
    up_to = Kind.UP_TO_LENGTH(k=4, longest=512)
    then = Kind.FROM_LENGTH(k="no speedup", shortest=4096)
    assert Kind.BY_CONTEXT(workload="code", because=(up_to, then)) in made.basis
    assert pick(parts, Selection(context=4096)).k == 0
    for engine in EXPORTED:
        lost = find_exporter(engine).export(made, None, "config").not_expressed
        assert [line for line in lost if line.startswith("K by context")], engine
    with pytest.raises(UsageError, match="prompts of 100 tokens"):
        pick(parts, Selection(context=100))


def test_an_equal_k_at_every_length_has_no_note_on_lengths(measured):
    made = pick([measured({4: 1.6}, context=n) for n in (512, 4096)])
    assert (made.k, made.context, made.contexts_lost) == (4, None, [])
    everywhere = Kind.AT_ALL_LENGTHS(k=4, shortest=512, longest=4096)
    assert Kind.BY_CONTEXT(workload="code", because=(everywhere,)) in made.basis


def test_an_adaptive_winner_is_served_with_the_best_fixed_k(measured, summarized):
    cells, _ = measured({2: 1.3, 4: 1.5})
    auto = cell_at(summarized(8, 1.7, 1.8, 1.9), adaptive=True)
    choice = choose([*cells, auto])
    decision = decide(choice, auto)
    assert decision.leader.draft.is_adaptive
    made = pick([([*cells, auto], decision)])
    assert made.tiers == (Tier(None, 4),)
    assert made.basis[-1] == Kind.BEST_FIXED_K(k=4)


def test_an_engines_own_scheme_is_exported_up_to_its_k_with_its_arguments(measured):
    axes = {"adaptive": True, "variant": "p_min", "engine": "llama_cpp"}
    parts = [measured({8: 1.5}, **axes), measured({8: 1.4}, workload="chat", **axes)]
    cells = [cell for group, _ in parts for cell in group]
    arguments = {"default": (), "p_min": ("--spec-draft-p-min", "0.75")}
    decisions = [decision for _, decision in parts]
    made = winner([pairing("draft")], decisions, cells, Selection(), arguments)
    assert made.tiers == (Tier(None, 8),)
    assert made.arguments == arguments["p_min"]
    lost = [decisions[0], replace(decisions[1], draft=replace(decisions[1].draft, length=Fixed(0)))]
    assert winner([pairing("draft")], lost, cells, Selection(), arguments).k == 0


def test_adaptive_winners_on_several_workloads_give_no_fixed_k(summarized):
    parts = []
    for name in ("code", "chat"):
        auto = cell_at(summarized(8, 1.7, 1.8, 1.9, workload=name), adaptive=True)
        parts.append(([auto], decide(choose([auto]))))
    made = pick(parts)
    assert made.tiers == (Tier(None, 0),)
    assert made.basis[-1] == Kind.NO_FIXED_K()


def test_a_selected_concurrency_has_no_note_on_higher_ones(measured):
    parts = [measured({4: 1.5}, concurrency=rows) for rows in (1, 4)]
    assert not pick(parts, Selection(concurrency=1)).limits
    assert pick(parts).limits[-1] == Kind.NOT_BEYOND(requests=4)


def test_selecting_an_unmeasured_cell_for_export_is_an_error(measured):
    parts = [measured({4: 1.5})]
    with pytest.raises(UsageError, match=r"demo/draft.*chat"):
        pick(parts, Selection(workload="chat"))
    with pytest.raises(UsageError, match="no decision for demo/other;"):
        pick(parts, names=("other",))


def test_a_winner_without_interval_does_not_help(measured):
    cells, decision = measured({4: 1.5})
    unsure = [replace(c, speedup=Interval(estimate=1.5, low=None, high=None)) for c in cells]
    made = pick([(unsure, decide(choose(unsure)))])
    assert made.k == 0
    assert decision.draft.k == 4


def test_k_0_is_exported_if_only_an_adaptive_k_helps(measured, summarized):
    cells, _ = measured({2: 0.9, 4: 0.8})
    auto = cell_at(summarized(8, 1.15, 1.2, 1.25), adaptive=True)
    decision = decide(choose([*cells, auto]), auto)
    made = pick([([*cells, auto], decision)])
    assert (made.k, made.is_undecided) == (0, False)
    assert made.basis[-1] == Kind.NO_FIXED_K()
    assert pick([([auto], decide(choose([auto])))]).is_undecided  # no fixed K was measured


@pytest.mark.parametrize("changes", [{"num_samples": 4}, {"request_rate": 2.0}], ids=str)
def test_several_samples_and_open_loop_are_not_exported(measured, changes):
    refused = [measured({2: 1.5, 4: 1.2}, name, **changes) for name in ("code", "edit")]
    parts = [measured({2: 1.3, 4: 1.6}, name) for name in ("code", "edit")]
    assert pick([*parts, *refused]).tiers == (Tier(None, 4),)
    with pytest.raises(UsageError, match="no decision"):
        pick(refused)


def test_the_k_of_assisted_default_is_not_exported(measured):
    peer = {"engine": "transformers"}
    parts = [
        measured({2: 1.3, 4: 1.6}, method="assisted", **peer),
        measured({20: 1.9}, method="assisted_default", **peer),
    ]
    assert pick(parts).tiers == (Tier(None, 4),)


def test_the_export_prefers_the_better_worst_workload(measured):
    uneven = {"pairing": "demo/uneven", "drafter": "uneven"}
    parts = [
        measured({4: 1.3}),
        measured({4: 1.3}, workload="chat"),
        measured({4: 2.5}, **uneven),
        measured({4: 1.1}, workload="chat", **uneven),
    ]
    assert pick(parts, names=("draft", "uneven")).pairing.name == "demo/draft"
