"""The answer for an objective, as text and as JSON."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest

from specbench.cli.console import open_console
from specbench.cli.schema import json_schema
from specbench.decide.comparisons import Crossover, Point, SideBySide, judge
from specbench.decide.objective import JointRecommendation, Objective, Recommendation
from specbench.decide.recommend import choose, decide
from specbench.records import (
    NO_DRAFTER,
    Decision,
    DraftConfig,
    Interval,
    Kind,
    MemoryRecord,
    Reason,
    SpeedupVerdict,
)
from specbench.report.blocks import ReportPart, run_report
from specbench.report.document import Document, build_document
from specbench.report.recommendation import (
    PickVerdict,
    _losses,
    candidate_grid,
    headline,
    joint_reasons,
    pick_verdict,
    reasons,
    recommendation_json,
    recommendation_lines,
    recommendations_of,
    recommended,
    unmeasured_loads,
    without_recommendation,
)
from specbench.report.terminal import terminal_part
from specbench.runs import StoredRun
from specbench.words.answers import MOST_REASONS, REASON, text
from specbench.words.numbers import break_even_text
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.decide.conftest import summary
from tests.report.served_runs import context_run
from tests.report.stored_runs import SMALL, stored_run


def headlines(document, picks, objective):
    lines = recommendation_lines(document, picks, objective)
    return [line for line in lines if not line.startswith("  ")]


@pytest.mark.parametrize("name", ["latency", "throughput", "cost"])
def test_every_workload_has_a_sentence_and_a_chosen_row(served: Document, name) -> None:
    objective = Objective(name=name, price_per_hour=2.0)
    picks = recommendations_of(served, objective)
    workloads = {cell.key.condition.workload for cell in served.cells}
    assert {pick.condition.workload for pick in picks} == workloads
    titles = headlines(served, picks, objective)
    assert len(titles) >= len(picks)
    for pick in picks:
        grid = candidate_grid(served, pick, objective)
        is_open = headline(served, pick, objective).startswith("undecided")
        assert grid.marks.count("chosen") == (not is_open)
        assert len(grid.rows) == len(pick.candidates)


def test_broken_limits_fit_the_terminal_table(served: Document, capsys) -> None:
    limits = Objective(limits={"ttft_s": 1e-9, "tpot_s": 1e-9})
    pick = recommendations_of(served, limits)[0]
    part = ReportPart("", [candidate_grid(served, pick, limits)])
    open_console(width=80).print(terminal_part(part))
    printed = capsys.readouterr().out
    assert "configuration" in printed
    assert printed.count("above") == 2 * len(pick.candidates)


def test_recommendations_can_be_limited_to_a_concurrency_and_workload(served: Document) -> None:
    rows = max(cell.key.condition.concurrency for cell in served.cells)
    workload = served.cells[0].key.condition.workload
    (pick,) = recommendations_of(served, Objective(), concurrency=rows, workloads=[workload])
    assert {candidate.key.condition.concurrency for candidate in pick.candidates} == {rows}
    assert pick.condition.workload == workload


def test_the_json_recommendation_has_candidates_and_reasons(served: Document) -> None:
    objective = Objective(name="throughput", limits={"tpot_s": 10.0})
    json_document = recommendation_json(served, recommendations_of(served, objective), objective)
    json_document = json.loads(json.dumps(json_document, allow_nan=False))
    assert json_document["objective"]["unit"] == "tokens/s"
    assert json_document["picks"]
    for pick in json_document["picks"]:
        assert pick["best"] == pick["candidates"][0]
        rates = [c["tokens_per_s_low"] for c in pick["candidates"][1:]]
        assert rates == sorted(rates, reverse=True)


def test_a_k_0_recommendation_explains_why_the_best_k_lost() -> None:
    document = build_document(stored_run(replace(SMALL, drafters=("poor",))))
    for pick in recommendations_of(document, Objective()):
        assert pick.best.key.draft.k == 0
        lost = next(
            d for d in document.decisions if d.leader.condition.workload == pick.condition.workload
        )
        assert lost.speedup is not None
        runner_up = Kind.RUNNER_UP(configuration="demo/poor, K=1", speedup=lost.speedup)
        is_open = lost.verdict is SpeedupVerdict.UNDECIDED  # the headline has its range
        assert [*reasons(document, pick)] == [
            *([] if is_open else [runner_up]),
            *lost.reasons[:MOST_REASONS],
        ]


def test_without_a_valid_draft_cell_nothing_is_recommended() -> None:
    wish = replace(SMALL, drafters=("draft",), ks=(0, 1), workloads=("code",), is_complete=False)
    stored = stored_run(replace(wish, device="gpu", throttled_k=1))
    later = stored_run(replace(wish, workloads=("chat",))).run.cells  # planned, never begun
    run = replace(stored.run, cells=(*stored.run.cells, *later))
    document = build_document(replace(stored, run=run))
    picks = recommendations_of(document, Objective())
    (pick,) = picks
    lines = recommendation_lines(document, picks, Objective())
    assert lines[0].startswith("code: undecided: no valid ")
    assert pick_verdict(document, pick) is PickVerdict.UNDECIDED
    assert recommended(document, pick, Objective()).kind is Kind.NO_DRAFTS_VALID
    assert any(line.startswith("  demo/draft: excluded: K=1: ") for line in lines)
    assert lines[-1] == "chat: no answer: not measured"
    assert "do not speculate" not in lines[0]
    assert candidate_grid(document, pick, Objective()).rows[0][-1] == "not compared"
    json_document = recommendation_json(document, picks, Objective())
    assert json_document["picks"][0]["no_valid_speculative_run"]
    assert json_document["without_recommendation"] == {
        "chat": json.loads(json.dumps(REASON.of(Kind.UNANSWERED())))
    }
    only = recommendation_json(document, picks, Objective(), workloads=("code",))
    assert only["without_recommendation"] == {}


def test_a_recommendation_names_the_planned_k_without_measurements() -> None:
    wish = replace(SMALL, drafters=("draft",), workloads=("code",), is_complete=False)
    stored = stored_run(replace(wish, ks=(0,)))
    run = replace(stored.run, cells=stored_run(wish).run.cells)
    document = build_document(replace(stored, run=run))
    (pick,) = recommendations_of(document, Objective())
    assert Kind.PLANNED_ONLY(cells=("demo/draft at K=1, 2 and 4",)) in reasons(document, pick)


def test_a_drafter_that_was_not_measured_leaves_k_0_undecided() -> None:
    document = build_document(stored_run(replace(SMALL, drafters=("poor",), workloads=("code",))))
    lost = Interval(estimate=0.7, low=0.5, high=0.9)
    (decision,) = document.decisions
    decision = replace(decision, verdict=SpeedupVerdict.NO_SPEEDUP, speedup=lost, answer=())
    decided = replace(document, decisions=(decision,))
    broken = with_axes(decision.leader, drafter="broken", pairing="demo/broken")
    for missing, verdict in (((), PickVerdict.PLAIN), ((broken,), PickVerdict.UNDECIDED)):
        one = replace(decided, missing=missing)
        (pick,) = recommendations_of(one, Objective())
        assert pick_verdict(one, pick) is verdict
        answer = recommended(one, pick, Objective())
        assert ("demo/broken, not measured" in text(answer)) is bool(missing)
        (told,) = recommendation_json(one, [pick], Objective())["picks"]
        assert told["is_undecided"] is bool(missing)


def test_an_unconfirmed_winner_is_listed_as_best_undecided() -> None:
    wish = replace(SMALL, drafters=("draft",), workloads=("code",), is_complete=False)
    document = build_document(stored_run(wish))  # the winner was not measured again
    (pick,) = recommendations_of(document, Objective())
    assert next(iter(reasons(document, pick))).kind is Kind.BEST_OPEN


def test_the_range_of_an_undecided_headline_is_not_repeated() -> None:
    document = build_document(stored_run(replace(SMALL, drafters=("poor",))))
    picks = recommendations_of(document, Objective())
    open_picks = [pick for pick in picks if pick_verdict(document, pick) is PickVerdict.UNDECIDED]
    assert open_picks
    for pick in open_picks:
        because = recommended(document, pick, Objective()).figures["because"]
        assert isinstance(because, tuple)
        assert Kind.RANGE in [reason.kind for reason in because if isinstance(reason, Reason)]
        kinds = {reason.kind for reason in reasons(document, pick)}
        assert not kinds & {Kind.BEST_OPEN, Kind.OPEN_RUNNER_UP}


def test_what_one_request_at_a_time_leaves_open_is_said_once(served: Document) -> None:
    document = build_document(stored_run(SMALL))
    many = Objective(name="throughput")
    alone = Kind.NOT_BEYOND(requests=1)
    assert list(unmeasured_loads(document, many)) == [alone]
    picks = recommendations_of(document, many)
    assert recommendation_lines(document, picks, many).count(text(alone)) == 1
    assert not list(unmeasured_loads(document, Objective()))
    assert not list(unmeasured_loads(served, many))


def test_no_joint_recommendation_without_a_decided_workload() -> None:
    document = build_document(stored_run(replace(SMALL, num_prompts=3)))
    picks = recommendations_of(document, Objective())
    answers = headlines(document, picks, Objective())
    assert len(answers) == 2
    assert all(re.search(": undecided: demo/draft, .*K=", line) for line in answers)


def test_a_workload_that_is_undecided_is_not_reported_as_better_without_drafts() -> None:
    shared = JointRecommendation(key=KEY, regret={"chat": 0.0}, best_by_workload={"chat": BASE_KEY})
    other = Kind.LOSS_UNMEASURABLE(workload="chat", best="do not speculate")
    assert _losses(shared, []) == (other,)
    assert _losses(shared, ["chat"]) == (Kind.NO_LOSS(),)


def test_a_valid_cell_is_quoted_before_a_faster_invalid_one() -> None:
    stored = stored_run(replace(SMALL, ks=(0, 1), workloads=("code",), is_complete=False))
    fast = {plan.key.id for plan in stored.run.cells if plan.key.draft.drafter == "draft"}
    first, *rest = stored.blocks
    cut = [replace(b, requests=tuple(r for r in b.requests if r.cell_id not in fast)) for b in rest]
    document = build_document(replace(stored, blocks=(first, *cut)))
    assert [c.valid for c in document.cells] == [True, False, True]  # fewer than 30 rounds
    (pick,) = picks = recommendations_of(document, Objective())
    assert re.match(
        r"code: undecided: demo/poor, 0\.\d\dx .*1\.\d\dx .*K=1",
        recommendation_lines(document, picks, Objective())[0],
    )
    grid = candidate_grid(document, pick, Objective())
    assert (grid.rows[0][0], grid.rows[0][-1], grid.marks[0]) == ("K=0", "undecided", "")


def test_a_recommendation_line_has_each_unit_once(served: Document) -> None:
    picks = recommendations_of(served, Objective())
    assert "s/token" in recommendation_lines(served, picks, Objective())[0]
    assert "/token per token" not in "".join(recommendation_lines(served, picks, Objective()))


def point(at: int, estimate: float, *, is_sure: bool = True) -> Point:
    spread = 0.05 if is_sure else None
    ends = (None, None) if spread is None else (estimate - spread, estimate + spread)
    interval = Interval(estimate=estimate, low=ends[0], high=ends[1])
    return Point(at=at, speedup=interval, kv_bytes=None, valid=True)


@pytest.mark.parametrize(
    ("first", "last", "changed", "verdict"),
    [
        (point(1, 1.5), point(4, 0.9), {}, "no speedup"),
        (point(1, 1.5), point(4, 0.98), {}, "undecided"),  # 0.93 to 1.03
        (point(1, 1.5), point(4, 0.9), {"temperature": 1.0}, None),  # another question's
        (point(1, 1.5), point(4, 0.9), {"dtype": "bfloat16"}, None),
        (point(1, 0.5, is_sure=False), point(4, 0.9), {}, None),  # no gain was shown before
        (replace(point(1, 1.5), valid=False), point(4, 0.9), {}, None),
    ],
)
def test_saturation_is_reported_for_the_same_setting(
    served: Document, first: Point, last: Point, changed: dict[str, object], verdict: str | None
) -> None:
    pick = recommendations_of(served, Objective(name="throughput"))[0]
    base_key = next(
        cell.key
        for cell in served.cells
        if cell.key.draft.k and cell.key.condition.workload == pick.condition.workload
    )
    key = with_axes(base_key, **changed)
    crossover = Crossover(key=key, points=(first, last), concurrency=4, estimated=None)
    told = {
        (said.figures["users"], said.figures["verdict"], said.figures["stop"])
        for said in reasons(replace(served, crossovers=(crossover,)), pick)
        if said.kind is Kind.USERS_UP_TO
    }
    assert told == ({((1, "user"), verdict, 4)} if verdict else set())


def test_recommendations_name_their_temperature(served: Document) -> None:
    warm = tuple(replace(c, key=with_axes(c.key, temperature=1.0)) for c in served.cells)
    both = replace(served, cells=(*served.cells, *warm))
    picks = recommendations_of(both, Objective())
    lines = headlines(both, picks, Objective())
    assert len(set(lines)) == len(lines)
    grids = [candidate_grid(both, pick, Objective(), picks).title for pick in picks]
    assert len(set(grids)) == len(picks)
    assert all("temperature" in title for title in grids)
    json_document = recommendation_json(both, picks, Objective())
    assert {pick["temperature"] for pick in json_document["picks"]} == {0.0, 1.0}
    assert json_document["shared"]
    jsonschema.validate(json_document, json_schema("recommend"))


def with_memory(document: Document, pick: Recommendation, num_tokens: int) -> Document:
    """The document with a GPU that has free memory for this many tokens of 10 bytes."""
    assert pick.best is not None
    key = pick.best.key
    memory = MemoryRecord(
        target=key.condition.target,
        drafter=key.draft.drafter if key.draft.k else NO_DRAFTER,
        weights_bytes=1,
        kv_bytes_per_token=10,
        peak_reserved_bytes=1_000,
    )
    total = 1_000 + 10 * num_tokens
    environment = replace(document.run.environment, gpu_memory_bytes=total)
    run = replace(document.run, environment=environment)
    return replace(document, memory=(memory,), run=run, crossovers=())


def with_key(pick: Recommendation, **axes: int) -> Recommendation:
    assert pick.best is not None
    return replace(pick, best=replace(pick.best, key=with_axes(pick.best.key, **axes)))


def test_memory_that_is_left_is_shared_by_all_samples(served: Document) -> None:
    """Best of n decodes n rows for one request."""
    pick = recommendations_of(served, Objective())[0]
    document = with_memory(served, pick, 2_400)
    for samples, left in ((1, 2_400), (8, 300)):
        of = with_key(pick, concurrency=1, num_samples=samples)
        assert Kind.MEMORY_LEFT(tokens=left, context=None) in reasons(document, of)


def test_memory_left_is_not_negative_if_used_up(served: Document) -> None:
    (pick, *_) = recommendations_of(served, Objective())
    full, at_context = with_memory(served, pick, 0), with_key(pick, context=4096)
    assert Kind.MEMORY_FULL(context=4096) in reasons(full, at_context)
    packed = replace(full, memory=(replace(full.memory[0], kv_bytes_per_token=0),))
    kinds = {said.kind for said in reasons(packed, at_context)}
    assert not kinds & {Kind.MEMORY_LEFT, Kind.MEMORY_FULL}


def test_the_closest_is_named_if_no_configuration_meets_the_limits(
    served: Document,
) -> None:
    objective = Objective(limits={"ttft_s": 1e-9})
    (pick, *_) = recommendations_of(served, objective)
    assert pick.best is None
    assert list(reasons(served, pick)) == []
    assert pick_verdict(served, pick) is PickVerdict.OVER_LIMITS
    closest = min(pick.candidates, key=lambda candidate: candidate.excess)
    said = recommended(served, pick, objective)
    assert said.figures["because"] == closest.broken
    assert closest.key.condition.requests in said.figures["configuration"]
    (over,) = closest.broken
    assert (over.kind, over.figures["limit"]) == (Kind.OVER_LIMIT, "ttft")


def test_k_by_context_is_part_of_the_answer() -> None:
    document = build_document(context_run((512, 16_384, 65_536)))
    objective = Objective()
    picks = recommendations_of(document, objective)
    (curve,) = document.context_curves
    sentence = (
        "demo/draft, code, by context: K=4 up to 16,384 tokens; do not speculate from 65,536; "
        f"break-even with K=4: {break_even_text(curve.break_even)}"
    )
    assert "K=4: 33,000 tokens [" in sentence
    assert recommendation_lines(document, picks, objective)[-1] == sentence
    assert list(run_report(document).shared.lines) == [sentence]
    json_document = json.loads(json.dumps(recommendation_json(document, picks, objective)))
    (entry,) = json_document["by_context"]
    jsonschema.validate(json_document, json_schema("recommend"))
    assert [
        (at["context"], at["num_speculative_tokens"], at["verdict"]) for at in entry["contexts"]
    ] == [(512, 4, "faster"), (16_384, 4, "faster"), (65_536, 0, "no speedup")]
    # 1.25x at 16,384 and 0.8x at 65,536: half way between their logs.
    assert entry["break_even"]["estimate"] == pytest.approx(32_768, rel=0.01)
    assert entry["break_even"]["low"] < 32_768 < entry["break_even"]["high"]
    other = recommendations_of(document, objective, workloads=["chat"])
    assert recommendation_json(document, other, objective)["by_context"] == []


def test_memory_left_is_stated_beyond_the_measured_context() -> None:
    stored = context_run()
    environment = replace(stored.run.environment, gpu_memory_bytes=20 * 2**30)
    memory = replace(stored.memory[1], kv_bytes_per_token=2**20, peak_reserved_bytes=14 * 2**30)
    document = build_document(
        replace(stored, run=replace(stored.run, environment=environment), memory=(memory,))
    )
    picks = recommendations_of(document, Objective())
    (entry,) = recommendation_json(document, picks, Objective())["by_context"]
    # 6 GiB hold the KV cache of 6,144 tokens.
    assert [at["memory_left_tokens"] for at in entry["contexts"]] == [6_144 - 512, 6_144 - 4_096]
    (line,) = run_report(document).shared.lines
    assert line.endswith("; memory left: 2,048 more tokens of context per request than 4,096")


def two_temperatures(**changed: object) -> StoredRun:
    """Two workloads at temperature 0 and 1 on a GPU."""
    wish = replace(SMALL, drafters=("draft",), ks=(0, 4), temperatures=(0.0, 1.0), device="gpu")
    return stored_run(replace(wish, **changed))


def test_a_temperature_without_a_valid_k_0_is_listed() -> None:
    stored, throttled = two_temperatures(), two_temperatures(throttled_k=0)
    blocks = tuple(
        slow if "|1|" in fine.block_id and fine.workload == "code" else fine
        for fine, slow in zip(stored.blocks, throttled.blocks, strict=True)
    )
    document = build_document(replace(stored, blocks=blocks))
    picks = recommendations_of(document, Objective())
    assert len(picks) == 3
    missing = {"code, temperature 1": Kind.NO_VALID_BASELINE()}
    assert without_recommendation(document, picks, ()) == missing
    assert without_recommendation(document, picks, ["creative"]) == {}
    last = recommendation_lines(document, picks, Objective())[-1]
    assert last == "code, temperature 1: no answer: no valid measurement of K=0"


def test_a_setting_at_another_concurrency_is_not_listed_as_missing(served: Document) -> None:
    picks = recommendations_of(served, Objective(), concurrency=4)
    assert {pick.condition.engine for pick in picks} == {"builtin"}  # the peers ran at 1 only
    assert without_recommendation(served, picks, ()) == {}


def with_open(document: Document, *places: tuple[str, float]) -> Document:
    """The document with a speedup of 1.9 everywhere but in these workloads at a temperature."""

    def decision(of: Decision) -> Decision:
        is_open = (of.condition.workload, of.condition.temperature) in places
        low, high = (0.9, 1.3) if is_open else (1.8, 2.0)
        speedup = Interval(estimate=(low + high) / 2, low=low, high=high)
        draft = DraftConfig.none if is_open else of.leader.draft
        return replace(of, draft=draft, speedup=speedup, verdict=judge(speedup))

    return replace(document, decisions=tuple(map(decision, document.decisions)))


def test_a_loss_is_unknown_only_at_the_setting_that_is_open() -> None:
    document = with_open(build_document(two_temperatures()), ("code", 1.0))
    picks = recommendations_of(document, Objective())
    open_on = {
        said.figures["setting"]: said.figures["open_on"] for said in joint_reasons(document, picks)
    }
    assert open_on == {", temperature 0": (), ", temperature 1": ("code",)}
    json_document = json.loads(json.dumps(recommendation_json(document, picks, Objective())))
    jsonschema.validate(json_document, json_schema("recommend"))
    by_setting = {shared["temperature"]: shared["open_on"] for shared in json_document["shared"]}
    assert by_setting == {0.0: [], 1.0: ["code"]}


def test_nothing_is_shared_at_a_setting_that_is_open_on_all_workloads() -> None:
    places = [("code", 1.0), ("creative", 1.0)]
    document = with_open(build_document(two_temperatures()), *places)
    picks = recommendations_of(document, Objective())
    (said,) = joint_reasons(document, picks)
    (shared,) = recommendation_json(document, picks, Objective())["shared"]
    assert (said.figures["setting"], shared["temperature"]) == (", temperature 0", 0.0)


@pytest.mark.parametrize("high", [1.0, 1.1])
def test_a_runner_up_has_the_speedup_of_whole_requests_if_it_decided(high: float) -> None:
    whole = Interval(estimate=0.97, low=0.93, high=high)
    document = build_document(stored_run(replace(SMALL, drafters=("draft",), workloads=("code",))))
    (measured,) = document.decisions
    cell = replace(summary(4, 1.4, 1.48, 1.55), speedup_end_to_end=whole)
    decision = replace(decide(choose([cell])), leader=measured.leader)
    document = replace(document, decisions=(decision,))
    (pick,) = recommendations_of(document, Objective())
    said = [reason for reason in reasons(document, pick) if "speedup" in reason.figures]
    name = f"demo/draft, K={measured.leader.draft.k}"
    decided = Kind.RUNNER_UP(configuration=name, speedup=whole)
    assert said == ([decided] if high == 1.0 else [])  # the headline of an open one has the range


def test_a_tied_variant_that_no_pair_compares_with_the_best_is_named(served: Document) -> None:
    a, b, c = (with_axes(KEY, variant=name) for name in "abc")
    faster = Interval(estimate=1.2, low=1.1, high=1.3)
    pair = SideBySide(
        cell=b,
        peer=a,
        decode=faster,
        equal_text=None,
        end_to_end=None,
        cpu=None,
        num_prompts=6,
        valid=True,
    )
    document = replace(served, variants=(pair, replace(pair, cell=c)))
    pick = recommendations_of(served, Objective())[0]
    assert pick.best is not None
    pick = replace(pick, best=replace(pick.best, key=b), tied=(a, c))
    said = recommended(document, pick, Objective())
    assert said.figures["tied"] == ("demo/draft, K=4, variant c, one request at a time",)
