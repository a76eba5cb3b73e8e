import re

import pytest

from specbench.errors import UsageError
from specbench.gate.baseline import pool
from specbench.gate.check import Tolerance, check
from specbench.gate.comparable import pair_up
from specbench.gate.figures import Figure
from specbench.gate.fingerprint import changes, differences, have_same_arithmetic
from specbench.gate.judging import GateVerdict
from specbench.records import Kind
from specbench.report.gate import baseline_lines
from tests.gate.gate_sides import cell, figure, fingerprint, key, side

FIGURES = {"decode_speedup": figure(2.0), "decode_tokens_per_s": figure(100.0)}
OTHER_MACHINE = {"hardware": {"device": "cuda", "GPU": "another"}}


def refused(baseline, candidate, *, absolute_times: bool = False) -> str:
    with pytest.raises(UsageError) as error:
        pair_up(baseline, candidate, absolute_times=absolute_times)
    return str(error.value)


def test_runs_with_other_request_settings_are_compared_if_that_is_allowed():
    """A workload with and without settings, and a workload with two kinds of settings."""
    plain, formatted = (
        side(cell(FIGURES, key(request_settings=s))) for s in (None, "response_format")
    )
    assert "request-settings" in refused(plain, formatted)
    (pair,) = pair_up(plain, formatted, ["request-settings"]).pairs
    assert pair.candidate.key.condition.request_settings == "response_format"
    first, other = (side(cell(FIGURES), request_settings={"code": h * 64}) for h in "ef")
    assert "\n  request-settings: " in refused(first, other)
    assert pair_up(first, other, ["request-settings"]).pairs


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"models": {"demo": "f" * 64}}, "model"),
        ({"tokenizers": {"demo": "f" * 64}}, "tokenizer"),
        ({"workloads": {"code": "f" * 64}}, "workload"),
        ({"sampling": "top-k 5, top-p 1"}, "sampling"),
        ({"max_new_tokens": 7}, "max-new-tokens"),
        ({"synthetic": "acceptance 0.7"}, "synthetic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_work_is_refused_by_name_unless_it_is_allowed(changed, word):
    first, other = side(cell(FIGURES)), side(cell(FIGURES), name="b", **changed)
    message = refused(first, other)
    assert f"\n  {word}: " in message
    assert message.endswith(f"--allow-different {word}")
    comparable = pair_up(first, other, {word})
    assert [difference.name for difference in comparable.allowed] == [word]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"k": 5}, "K: 4 in the baseline, 5 in the candidate"),
        ({"temperature": 1.0}, "temperature: 0.0 in the baseline, 1.0"),
        ({"dtype": "bfloat16"}, "dtype: float32 in the baseline, bfloat16"),
        ({"lossy": "typical"}, "lossy: None in the baseline, typical in the candidate"),
        ({"adaptive": True, "k": 8}, "K: 4 in the baseline, auto"),
        ({"workload": "chat"}, "not planned in the candidate"),
    ],
)
def test_a_different_cell_is_refused_with_the_axis_that_differs(changed, expected):
    first = side(cell(FIGURES))
    other = side(cell(FIGURES, of=key(**changed)), name="b")
    assert expected in refused(first, other)


@pytest.mark.parametrize(("template", "name"), [("f", "chat template of demo:"), ("b", "demo")])
def test_a_tokenizer_differs_in_its_chat_template_or_elsewhere(template: str, name: str) -> None:
    before, after = (
        side(cell(FIGURES), tokenizers={"demo": mark * 64}, templates={"demo": of * 64})
        for mark, of in (("b", "b"), ("f", template))
    )
    assert f"{name} {'b' * 12}" in refused(before, after)
    (difference,) = pair_up(before, after, {"tokenizer"}).allowed
    assert difference == ("tokenizer", f"{name} {'b' * 12}", f"{name} {'f' * 12}")


def test_prompts_of_other_token_ids_are_refused_unless_that_is_allowed():
    ids = {"p1": "a", "p2": "b"}
    first = side(cell(FIGURES, prompt_sha256=ids))
    other = side(cell(FIGURES, prompt_sha256={**ids, "p2": "c"}), name="b")
    message = refused(first, other)
    assert "1 of 2 in code, first p2" in message
    assert message.endswith("--allow-different prompts")
    assert [d.name for d in pair_up(first, other, {"prompts"}).allowed] == ["prompts"]
    tokenizer = side(other.cells[0], name="b", tokenizers={"demo": "f" * 64})  # explains them
    assert [d.name for d in pair_up(first, tokenizer, {"tokenizer"}).allowed] == ["tokenizer"]


@pytest.mark.parametrize("known", [{}, {"p3": "z"}, {"p1": "a"}])
def test_prompts_with_unknown_token_ids_are_compared(known):
    first = side(cell(FIGURES, prompt_sha256={"p1": "a", "p2": "b"}))
    assert pair_up(first, side(cell(FIGURES, prompt_sha256=known), name="b")).allowed == ()


def test_texts_are_compared_only_for_equal_prompts():
    """Other texts are not a regression: if both sides share prompts, only these are compared."""
    texts = [{"p1": "aa", "p2": "bb"}, {"p1": "cc", "p2": "bb"}]
    ids = [{"p1": "1", "p2": "2"}, {"p1": "3", "p2": "2"}]
    sides = [
        side(cell(FIGURES, texts=t, prompt_sha256=i), name=n)
        for t, i, n in zip(texts, ids, "ab", strict=True)
    ]
    (judgment,) = (j for j in check(*sides, allowed={"prompts"}).judgments if j.unit == "texts")
    assert (judgment.verdict, judgment.baseline, judgment.candidate) == (GateVerdict.PASS, 1, 1)
    unknown = side(cell(FIGURES, texts=texts[1]), name="b")
    assert check(sides[0], unknown).verdict is GateVerdict.REGRESSION


def test_cells_of_another_k_are_compared_if_that_is_allowed():
    first, other = side(cell(FIGURES)), side(cell(FIGURES, of=key(5)), name="b")
    (pair,) = pair_up(first, other, {"K"}).pairs
    assert (pair.baseline.key, pair.candidate.key) == (key(4), key(5))


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({"k": 5}, [("K", "4", "5")]),
        ({"k": 4, "adaptive": True}, [("K", "4", "auto")]),
        ({"temperature": 1.0}, [("temperature", "0.0", "1.0")]),
        ({"k": 5, "temperature": 1.0}, [("K", "4", "5"), ("temperature", "0.0", "1.0")]),
        ({"pairing": "big/draft", "target": "big"}, [("target", "demo", "big")]),
        ({"pairing": "demo/new", "drafter": "new"}, [("drafter", "draft", "new")]),
        ({"method": "eagle3"}, [("drafter", "draft_model", "eagle3")]),
        ({}, []),
    ],
)
def test_the_result_contains_the_axes_in_which_matched_cells_differ(changed, allowed):
    words = {"K", "temperature", "target", "drafter"}
    single = side(cell(FIGURES), cell(FIGURES, of=key(workload="chat")))
    cells = (cell(FIGURES, of=key(workload=name, **changed)) for name in ("code", "chat"))
    assert list(pair_up(single, side(*cells, name="b"), words).allowed) == allowed


def test_allowed_differences_that_make_cells_ambiguous_are_refused():
    several = side(cell(FIGURES), cell(FIGURES, of=key(5)))
    with pytest.raises(UsageError, match=r"K=4 on code.*demo/draft K=5 on code"):
        pair_up(several, several, {"K"})


def test_a_refusal_distinguishes_cells_of_the_same_name():
    several = side(cell(FIGURES), cell(FIGURES, of=key(dtype="bfloat16")))
    both = "demo/draft K=4 on code, .*float32 and demo/draft K=4 on code, .*bfloat16"
    with pytest.raises(UsageError, match=both):
        pair_up(several, several, {"dtype"})


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "demo/draft K=4 on code"),
        ({"adaptive": True}, "demo/draft K=auto on code"),
        ({"concurrency": 4}, "demo/draft K=4 on code, 4 concurrent requests"),
        ({"temperature": 0.7}, "demo/draft K=4 on code, temperature 0.7"),
    ],
)
def test_a_cell_without_a_counterpart_is_reported_by_its_label(changed, name):
    single = side(cell(FIGURES, of=key(**changed)))
    other = side(cell(FIGURES, of=key(workload="chat")), name="b")
    assert re.search(f"cells: {re.escape(name)} .*not planned", refused(single, other))


def test_only_cells_of_both_runs_are_compared_if_that_is_allowed():
    both = side(cell(FIGURES), cell(FIGURES, of=key(workload="chat")))
    single = side(cell(FIGURES), name="b")
    assert "cells: " in refused(both, single)
    assert len(pair_up(both, single, {"cells"}).pairs) == 1
    assert pair_up(single, both).only_candidate == (key(workload="chat"),)
    assert Kind.NEW_CELLS(cells=(1, "cell")) in check(single, both).notes
    planned = side(cell(FIGURES), unmeasured=(key(workload="chat"),))
    assert pair_up(single, planned).only_candidate == ()
    other = side(cell(FIGURES, of=key(workload="chat")), name="b")
    with pytest.raises(UsageError, match="no cell"):
        pair_up(single, other, {"cells"})


@pytest.mark.parametrize(
    "changed", [{"k": 2}, {"concurrency": 4}, {"temperature": 1.0}], ids=lambda of: next(iter(of))
)
def test_a_cell_that_only_the_baseline_has_is_not_reported_as_changed(changed):
    """The nearest neighbor of the cell belongs to another cell of the baseline."""
    both = side(cell(FIGURES), cell(FIGURES, of=key(**changed)))
    single = side(cell(FIGURES), name="b")
    assert refused(both, single).endswith("--allow-different cells")
    assert [pair.baseline.key for pair in pair_up(both, single, {"cells"}).pairs] == [key()]


@pytest.mark.parametrize("changed", [{"concurrency": (4, 8)}, {"temperature": (0.7, 1.0)}])
def test_a_changed_cell_is_omitted_if_cells_may_differ(changed):
    ((name, values),) = changed.items()
    first, other = (
        side(cell(FIGURES), cell(FIGURES, of=key(**{name: value})), name=run)
        for run, value in zip("ab", values, strict=True)
    )
    assert name in refused(first, other)
    assert [pair.baseline.key for pair in pair_up(first, other, {"cells"}).pairs] == [key()]


def test_an_additional_cell_is_named_by_the_axis_in_which_it_differs():
    both = side(cell(FIGURES), cell(FIGURES, of=key(dtype="bfloat16")))
    message = refused(both, side(cell(FIGURES), name="b"))
    assert re.search("cells: demo/draft K=4 .*code, .*bfloat16 .*baseline", message)


def test_other_prompts_are_refused_by_name():
    first = side(cell(FIGURES))
    other = side(cell(FIGURES, units=("p1", "p2", "p3", "p4", "p9")), name="b")
    message = refused(first, other)
    assert re.search(r"prompts: 5 of code \(p5 .*baseline, 5 of code \(p9 ", message)
    assert pair_up(first, other, {"prompts"}).pairs


def test_other_hardware_is_refused_only_for_absolute_times():
    first, other = side(cell(FIGURES)), side(cell(FIGURES), name="b", **OTHER_MACHINE)
    assert re.search(
        r"hardware: GPU one\b.*GPU another", refused(first, other, absolute_times=True)
    )
    speedup = [Tolerance(metric="decode_speedup", share=0.05)]
    speed = [Tolerance(metric="decode_tokens_per_s", share=0.1)]
    assert check(first, other, speedup).verdict is GateVerdict.PASS
    for tolerances in (speed, None):
        with pytest.raises(UsageError, match="hardware"):
            check(first, other, tolerances)
    assert check(first, other, speed, {"hardware"}).verdict is GateVerdict.PASS


def test_all_differences_are_named_together():
    first = side(cell(FIGURES))
    other = side(cell(FIGURES), name="b", sampling="top-k 5, top-p 1", models={"demo": "f" * 64})
    message = refused(first, other)
    assert message.endswith("--allow-different model,sampling")


def test_changed_drafter_weights_are_a_change_and_not_different_work():
    first, other = fingerprint(), fingerprint(drafters={"demo/draft": "e" * 64})
    assert differences(first, other) == ()
    assert [change.name for change in changes(first, other)] == ["weights of demo/draft"]
    assert have_same_arithmetic(first, other)


def test_another_torch_version_is_allowed_but_changes_arithmetic():
    first, other = fingerprint(), fingerprint(torch="2.14.0")
    assert differences(first, other) == ()
    assert not have_same_arithmetic(first, other)


def test_greedy_text_must_stay_the_same_if_the_arithmetic_does():
    before = cell(FIGURES, texts={"p1": "aaa bbb ccc", "p2": "ddd"})
    after = cell(FIGURES, texts={"p1": "aaa xxx yyy", "p2": "ddd"})
    tolerances = [Tolerance(metric="decode_speedup", share=0.05)]
    first, *_ = check(side(before), side(after, name="b"), tolerances).judgments
    assert (first.metric, first.verdict) == ("output_tokens", GateVerdict.REGRESSION)
    assert (first.baseline, first.candidate) == (2, 1)
    differ = {"differing": 1, "compared": 2, "prompt": "p1", "place": "tokens 17 to 32"}
    assert first.reason == Kind.TEXTS_DIFFER(**differ)

    for other in ({"torch": "2.14.0"}, OTHER_MACHINE):
        gate = check(side(before), side(after, name="b", **other), tolerances)
        assert gate.judgments[0].verdict is GateVerdict.PASS
        assert gate.judgments[0].reason == Kind.TEXTS_MAY_DIFFER(**differ)


def test_a_missing_or_invalid_cell_is_reported():
    first = side(cell(FIGURES))
    gate = check(first, side(name="b", unmeasured=(key(),)))
    assert [(j.verdict, j.reason) for j in gate.judgments] == [
        (GateVerdict.MISSING, Kind.NOT_MEASURED())
    ]
    throttled = side(cell(FIGURES, problems=("throttled",)), name="b")
    (judgment,) = check(first, throttled).judgments
    assert judgment.verdict is GateVerdict.MISSING
    assert judgment.reason == Kind.CELL_INVALID(because=("throttled",))


def test_prompts_that_an_interrupted_run_did_not_reach_are_missing():
    some = cell(FIGURES, units=("p1", "p2", "p3"))
    gate = check(side(cell(FIGURES)), side(some, name="b", is_complete=False))
    assert gate.verdict is GateVerdict.MISSING
    assert gate.judgments[0].reason == Kind.PARTLY_MEASURED(measured=3, planned=5)


def test_common_prompts_are_judged_if_prompts_may_differ():
    some = cell(FIGURES, units=("p1", "p2", "p3", "p4", "p5"))
    more = cell({"decode_speedup": Figure(value=2.0, without=())}, units=(*some.units, "p6"))
    tolerances = [Tolerance(metric="decode_speedup", share=0.05)]
    gate = check(side(more), side(some, name="b"), tolerances, {"prompts"})
    assert gate.verdict is GateVerdict.PASS


def test_a_metric_that_only_the_candidate_has_is_reported_as_not_judged():
    more = {**FIGURES, "peak_allocated_bytes": figure(1e9)}
    gate = check(side(cell(FIGURES)), side(cell(more), name="b"))
    assert Kind.NOT_IN_BASELINE(metric="peak_allocated_bytes") in gate.notes


THREADS = {"hardware": {"device": "cpu", "CPU": "EPYC, 2 cores", "threads": "2"}}
FEWER = {"hardware": {**THREADS["hardware"], "threads": "1"}}
SLOWER = {"decode_speedup": figure(2.0), "decode_tokens_per_s": figure(10.0)}


def test_runs_of_other_numbers_of_threads_are_compared_without_seconds():
    baseline = side(cell(FIGURES), **THREADS)
    gate = check(baseline, side(cell(SLOWER), name="b", **FEWER))
    assert gate.verdict is not GateVerdict.REGRESSION
    assert [j.metric for j in gate.judgments if "tokens_per_s" in j.metric] == []
    assert "decode_speedup" in [j.metric for j in gate.judgments]
    (note,) = [note for note in gate.notes if note.kind is Kind.THREADS_DIFFER]
    assert "decode_tokens_per_s" in note.figures["dropped"]
    assert note.figures["remedy"] == (Kind.MEASURE_WITH_THREADS(threads=2),)
    worse = {**SLOWER, "decode_speedup": figure(0.2)}
    assert check(baseline, side(cell(worse), name="b", **FEWER)).verdict is GateVerdict.REGRESSION


def test_unknown_numbers_of_threads_give_no_advice():
    unknown = {"hardware": {**THREADS["hardware"], "threads": "unknown"}}
    gate = check(side(cell(FIGURES), **unknown), side(cell(SLOWER), name="b", **FEWER))
    (note,) = [note for note in gate.notes if note.kind is Kind.THREADS_DIFFER]
    assert note.figures["remedy"] == (Kind.SAME_THREADS(),)


def test_only_seconds_at_another_number_of_threads_are_refused_unless_hardware_may_differ():
    sides = side(cell(FIGURES), **THREADS), side(cell(SLOWER), name="b", **FEWER)
    seconds = [Tolerance(metric="decode_tokens_per_s", share=0.1)]
    with pytest.raises(UsageError, match="--threads 2"):
        check(*sides, seconds)
    assert check(*sides, seconds, {"hardware"}).verdict is GateVerdict.REGRESSION


def test_absolute_times_on_another_cpu_are_refused():
    other = {"hardware": {**FEWER["hardware"], "CPU": "another, 2 cores"}}
    with pytest.raises(UsageError, match="hardware: CPU"):
        pair_up(
            side(cell(FIGURES), **THREADS),
            side(cell(FIGURES), name="b", **other),
            absolute_times=True,
        )


def test_runs_with_other_thread_counts_are_pooled_without_absolute_times():
    pooled = pool([side(cell(FIGURES), **THREADS), side(cell(FIGURES), name="b", **FEWER)])
    assert pooled.fingerprint.hardware["threads"] == "2 | 1"
    assert any("--threads" in line for line in baseline_lines(pooled))
    gate = check(pooled, side(cell(SLOWER), name="c", **FEWER))
    assert "decode_tokens_per_s" not in [j.metric for j in gate.judgments]
    assert not have_same_arithmetic(
        *(side(cell(FIGURES), **x).fingerprint for x in (THREADS, FEWER))
    )
