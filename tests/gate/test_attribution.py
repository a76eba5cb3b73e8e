"""Causes of a regression: fewer tokens per round, or more seconds per round, and why."""

import pytest

from specbench.gate.attribution import Cause, attribute, changed_causes
from specbench.metrics.server_facts import RunDifference
from specbench.report.gate import cause_text
from tests.cell_keys import cell_key, with_axes
from tests.gate.gate_sides import cell, figure, fingerprint

ROUND = {"draft_s": 0.002, "verify_s": 0.007, "other_s": 0.001}


def figures(length=3.0, step=0.006, **parts):
    """A cell that emits `length` tokens per round, which takes the sum of the parts."""
    times = {**ROUND, **parts}
    seconds = sum(times.values())
    values = {
        **times,
        "mean_acceptance_length": length,
        "round_s": seconds,
        "break_even_length": seconds / step,
        "decode_speedup": length * step / seconds,
        "decode_tokens_per_s": length / seconds,
        "acceptance_rate_per_position[1]": (length - 1) / 2,
        "draft_cost_ratio": times["draft_s"] / step / 4,
        "verify_cost_ratio": times["verify_s"] / step,
    }
    return cell({name: figure(value) for name, value in values.items()})


def causes(after, metric="decode_speedup", same_hardware=True):
    return attribute(figures(), after, [metric], same_hardware=same_hardware).causes


def test_a_lower_acceptance_length_is_attributed_to_acceptance():
    result = attribute(figures(), figures(length=2.0), ["decode_speedup"], same_hardware=True)
    assert result.causes == (Cause.ACCEPTANCE,)
    assert (result.acceptance.before, result.acceptance.after) == (3.0, 2.0)
    assert result.curve == ((1.0,), (0.5,))
    assert result.slower == ()


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("draft", Cause.DRAFT_COST),
        ("verify", Cause.VERIFICATION),
        ("other", Cause.ROUND_TIME),
    ],
)
def test_a_slower_part_of_the_round_is_the_cause(part, cause):
    after = figures(**{f"{part}_s": ROUND[f"{part}_s"] + 0.005})
    result = attribute(figures(), after, ["decode_speedup"], same_hardware=True)
    assert result.causes == (cause,)
    assert [shift.name for shift in result.slower] == [part]


def test_two_causes_are_named_if_each_has_a_share_of_the_loss():
    both = figures(length=2.4, draft_s=0.005, verify_s=0.010)
    assert causes(both) == (Cause.ACCEPTANCE, Cause.DRAFT_COST, Cause.VERIFICATION)


def test_a_small_share_of_a_loss_is_not_reported():
    # 33% less acceptance, 2% more time.
    after = figures(length=2.0, verify_s=0.0072)
    result = attribute(figures(), after, ["decode_speedup"], same_hardware=True)
    assert result.causes == (Cause.ACCEPTANCE,)
    assert result.slower == ()


def test_a_small_share_is_not_reported_if_k_0_hides_the_loss():
    """The metric itself lost 3%: the causes are weighted by the losses of acceptance and rounds."""
    before, after = (
        cell({**measured.figures, "end_to_end_speedup": figure(value)})
        for measured, value in ((figures(), 2.0), (figures(length=2.0, verify_s=0.0072), 1.94))
    )
    result = attribute(before, after, ["end_to_end_speedup"], same_hardware=True)
    assert result.causes == (Cause.ACCEPTANCE,)


def test_higher_acceptance_is_no_cause():
    assert causes(figures(length=3.3, verify_s=0.020)) == (Cause.VERIFICATION,)


def test_a_slower_k_0_is_attributed_to_the_machine():
    # A machine half as fast: verification would seem to cause most of the loss.
    after = figures(step=0.012, draft_s=0.004, verify_s=0.014, other_s=0.002)
    result = attribute(figures(), after, ["decode_tokens_per_s"], same_hardware=True)
    assert result.causes == (Cause.MACHINE,)
    assert result.slower == ()
    assert "6.00 -> 12.0 ms" in cause_text(result)


def test_on_a_slower_machine_a_drafter_is_blamed_only_for_its_share():
    # The machine is twice as slow, and drafting takes three times as long again.
    after = figures(length=2.0, step=0.012, draft_s=0.012, verify_s=0.014, other_s=0.002)
    ratio = attribute(figures(), after, ["decode_speedup"], same_hardware=True)
    assert ratio.causes == (Cause.ACCEPTANCE, Cause.DRAFT_COST)
    assert [(shift.name, shift.unit) for shift in ratio.slower] == [("draft", "steps")]
    assert "6.00 -> 12.0 ms" in cause_text(ratio)
    both = attribute(
        figures(), after, ["decode_speedup", "decode_tokens_per_s"], same_hardware=True
    )
    assert both.causes == (Cause.ACCEPTANCE, Cause.DRAFT_COST, Cause.MACHINE)


def test_a_faster_step_is_distinguished_from_a_slower_round():
    after = figures(step=0.004)
    result = attribute(figures(), after, ["decode_speedup"], same_hardware=True)
    assert result.causes == (Cause.ROUND_TIME,)
    assert result.round.log == 0
    assert result.step.after == pytest.approx(0.004)


def test_on_other_hardware_round_times_are_compared_in_steps():
    # Twice as slow a machine, and a verify that is slower still.
    after = figures(step=0.012, draft_s=0.004, verify_s=0.024, other_s=0.002)
    result = attribute(figures(), after, ["decode_speedup"], same_hardware=False)
    assert result.causes == (Cause.VERIFICATION,)
    assert result.round.unit == "steps"
    assert [(s.name, s.unit) for s in result.slower] == [("verify", "steps")]


def test_seconds_of_other_hardware_are_not_compared():
    """Not even if K = 0 takes equally long there."""
    after = figures(verify_s=0.012)
    result = attribute(figures(), after, ["decode_speedup"], same_hardware=False)
    assert (result.round.unit, result.step) == ("steps", None)


@pytest.mark.parametrize("metric", ["tpot_s", "no_such_metric"])
def test_a_missing_or_unknown_metric_adds_no_loss(metric):
    """Then the loss of rounds is all there is to attribute."""
    is_known = metric == "tpot_s"
    assert causes(figures(length=2.4), metric) == ((Cause.ACCEPTANCE,) if is_known else ())


def test_a_metric_that_was_0_has_no_cause():
    before, after = (
        cell({"decode_tokens_per_s": figure(value), "mean_acceptance_length": figure(length)})
        for value, length in ((0.0, 3.0), (5.0, 2.4))
    )
    for first, other in ((before, after), (after, before)):
        result = attribute(first, other, ["decode_tokens_per_s"], same_hardware=True)
        assert result.causes == ((Cause.ACCEPTANCE,) if first is before else ())


@pytest.mark.parametrize(
    ("metric", "cause"),
    [
        ("mean_acceptance_length", Cause.ACCEPTANCE),
        ("acceptance_rate", Cause.ACCEPTANCE),
        ("acceptance_rate_per_position[1]", Cause.ACCEPTANCE),
        ("conditional_acceptance_rate[2]", Cause.ACCEPTANCE),
        ("alpha", Cause.ACCEPTANCE),
        ("peak_allocated_bytes", Cause.MEMORY),
        ("ttft_s", Cause.PREFILL),
        ("output_tokens", Cause.TEXT),
    ],
)
def test_metrics_of_one_part_imply_their_cause(metric, cause):
    assert causes(figures(), metric) == (cause,)


def test_a_change_without_round_counts_has_no_cause():
    bare = cell({"decode_tokens_per_s": figure(100.0)})
    result = attribute(bare, bare, ["decode_tokens_per_s"], same_hardware=True)
    assert result.causes == ()


@pytest.mark.parametrize(
    ("metric", "values"), [("end_to_end_speedup", (2.0, 1.4)), ("tpot_s", (0.010, 0.014))]
)
def test_a_loss_is_not_attributed_to_acceptance_that_hardly_changed(metric, values):
    """Several imported runs have no round times: the other causes are unknown."""
    before, after = (
        cell({metric: figure(value), "mean_acceptance_length": figure(length)})
        for value, length in zip(values, (2.50, 2.49), strict=True)
    )
    result = attribute(before, after, [metric], same_hardware=True)
    assert result.causes == ()


@pytest.mark.parametrize("metric", ["launches_per_round", "padding_efficiency", "first_log_prob"])
def test_counts_other_than_acceptance_are_not_attributed(metric):
    assert causes(figures(length=2.0), metric) == ()


NEW_WEIGHTS = {"drafters": {"demo/draft": "e" * 64}}
NEW_PACKAGE = {"software": {"package torch": "2.14.0"}}
PROMPTS = RunDifference("prompts", "8 of code", "6 of code")


def changed(*allowed, pairing="demo/draft", before=(), **after):
    key = cell_key(pairing=pairing)
    return changed_causes(key, fingerprint(**dict(before)), fingerprint(**after), allowed)


def test_changes_come_before_their_effects_in_a_fixed_order():
    everything = changed(PROMPTS, **NEW_WEIGHTS, **NEW_PACKAGE)
    after = figures(length=1.8, step=0.012, draft_s=0.030, verify_s=0.040, other_s=0.002)
    speeds = ["decode_speedup", "decode_tokens_per_s"]
    result = attribute(figures(), after, speeds, same_hardware=True, changed=everything)
    assert result.causes == (
        Cause.WEIGHTS,
        Cause.PROMPTS,
        Cause.PACKAGES,
        Cause.ACCEPTANCE,
        Cause.DRAFT_COST,
        Cause.VERIFICATION,
        Cause.MACHINE,
    )
    assert list(result.causes) == [cause for cause in Cause if cause in result.causes]
    assert [change.name for change in result.changes] == ["drafter", "prompts", "package torch"]
    text = cause_text(result)
    parts = ("e" * 12, "6 of code", "2.14.0", "3.00 -> 1.80", "6.00 -> 12.0 ms")
    places = [text.index(value) for value in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("sides", "cause"),
    [
        (NEW_WEIGHTS, Cause.WEIGHTS),
        ({"before": {"entries": {"demo/draft": "a"}}, "entries": {"demo/draft": "b"}}, "weights"),
        (NEW_PACKAGE, Cause.PACKAGES),
        ({"software": {"driver": "580.1"}}, Cause.PACKAGES),
        ({"software": {"commit": "abc"}}, None),
        ({"drafters": {"demo/draft": "d" * 64, "demo/other": "e" * 64}}, None),
    ],
)
def test_each_kind_of_change_gives_its_cause(sides, cause):
    causes = [each for each, _ in changed(**sides)]
    assert causes == ([] if cause is None else [Cause.WEIGHTS if cause == "weights" else cause])


def test_another_pairings_weights_are_no_cause():
    assert changed(pairing="demo/other", **NEW_WEIGHTS) == ()


@pytest.mark.parametrize(
    ("name", "text", "elsewhere"),
    [
        ("model", "demo 1111", "demo-large 1111"),
        ("tokenizer", "demo 1111", "large 1111"),
        ("tokenizer", "chat template of demo: 1111", "chat template of large: 1111"),
        ("workload", "code 1111", "chat 1111"),
        ("prompts", "8 of code (a, b only here)", "8 of chat"),
        ("prompts", "2 of 8 in code, first p1: token ids 1", "2 of 8 in chat, first p1: ids 1"),
        ("max-new-tokens", "64", None),
    ],
)
def test_only_a_change_of_the_cells_own_target_or_workload_is_its_cause(name, text, elsewhere):
    assert [d.baseline for _, d in changed(RunDifference(name, text, text[:-1]))] == [text]
    if elsewhere is not None:
        assert changed(RunDifference(name, elsewhere, elsewhere[:-1])) == ()


def test_a_change_of_another_target_engine_or_variant_is_no_cause():
    served = ("vllm of large", "vllm of demo", "sglang of demo", "vllm of demo, variant eager")
    names = [*(f"server {name}, version" for name in served), "builtin of demo", "builtin of large"]
    software = ({"software": dict.fromkeys(names, value)} for value in ("one", "other"))
    before, after = (fingerprint(**facts) for facts in software)

    def causes(**axes):
        key = with_axes(cell_key(), **axes)
        return [d.name for _, d in changed_causes(key, before, after, ())]

    assert causes() == ["builtin of demo"]
    assert causes(engine="vllm") == ["server vllm of demo, version"]
    eager = causes(engine="vllm", variant="eager")
    assert eager == ["server vllm of demo, version", "server vllm of demo, variant eager, version"]


def test_a_slower_k_0_is_not_attributed_to_the_draft_model():
    """The draft model does not run at K = 0; packages do."""
    after = figures(step=0.012, draft_s=0.004, verify_s=0.014, other_s=0.002)
    both = changed(**NEW_WEIGHTS, **NEW_PACKAGE)
    result = attribute(figures(), after, ["decode_tokens_per_s"], same_hardware=True, changed=both)
    assert result.causes == (Cause.PACKAGES, Cause.MACHINE)


def test_allowed_hardware_differences_are_attributed_to_the_machine():
    allowed = changed(RunDifference("hardware", "GPU one", "GPU two"))
    assert [cause for cause, _ in allowed] == [Cause.MACHINE]


@pytest.mark.parametrize(("metric", "is_of_drafts"), [("ttft_s", False), ("tpot_s", True)])
def test_a_slower_prefill_is_not_attributed_to_another_drafter(metric, is_of_drafts):
    change = (Cause.WEIGHTS, RunDifference("drafter", "a", "b"))
    result = attribute(figures(), figures(), [metric], same_hardware=True, changed=[change])
    assert (Cause.WEIGHTS in result.causes) is is_of_drafts
