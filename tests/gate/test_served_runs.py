"""Two runs of a serving engine in the gate: a cycle of sessions is the unit."""

from dataclasses import replace

import numpy as np
import pytest

from specbench.errors import UsageError
from specbench.gate.baseline import pool, read_baseline, snapshot, write_baseline
from specbench.gate.check import Gate, Tolerance, check
from specbench.gate.figures import cell_figures
from specbench.gate.fingerprint import changes, differences, have_same_arithmetic, served_facts
from specbench.gate.judging import OUTPUT_TOKENS, GateVerdict
from specbench.records import Kind
from specbench.runs import StoredRun
from tests.cli.calls import specbench
from tests.report.stored_runs import keep
from tests.served_sessions import Sweep, cell_of, key_of, served_sweep
from tests.settings.flat_settings import changed

SPEEDUP = [Tolerance(metric="decode_speedup", share=0.4)]
ONE_ROW = Sweep(rows=(1,), confirmed=None)


def gate(baseline: StoredRun, candidate: StoredRun, tolerances=None, allowed=()) -> Gate:
    return check(snapshot(baseline), snapshot(candidate), tolerances, allowed)


def modified(stored: StoredRun, **changed: object) -> StoredRun:
    """The run of a server with other facts."""
    return replace(stored, servers=tuple(replace(s, **changed) for s in stored.servers))


def fingerprint(stored: StoredRun):
    return snapshot(stored, names=()).fingerprint


def of_prompts(stored: StoredRun, sha256: str) -> StoredRun:
    """The run of a server that reported the token ids of its prompts."""
    blocks = (
        replace(b, requests=tuple(replace(r, prompt_sha256=sha256) for r in b.requests))
        for b in stored.blocks
    )
    return replace(stored, blocks=tuple(blocks))


@pytest.mark.parametrize("clock", ["server", None])
def test_a_template_date_of_the_server_is_noted_and_texts_not_compared(clock):
    runs = [of_prompts(modified(served_sweep(ONE_ROW), template_clock=clock), day) for day in "ab"]
    result = gate(*runs, SPEEDUP)
    assert result.verdict is GateVerdict.PASS
    assert OUTPUT_TOKENS not in {j.metric for j in result.judgments}
    note = Kind.CLOCK_IN_PROMPTS(engine="vllm", differing=6, compared=6, workload="code")
    assert note in result.notes
    assert note not in gate(runs[0], runs[0], SPEEDUP).notes
    pooled = pool([snapshot(run) for run in (runs[0], replace_id(runs[1]))])
    assert {c.key for c in pooled.cells} == {c.key for c in snapshot(runs[0]).cells}


@pytest.mark.parametrize("clock", ["", "2024-07-26"])
def test_different_prompts_are_refused_unless_a_template_date_explains_them(clock):
    runs = [of_prompts(modified(served_sweep(ONE_ROW), template_clock=clock), day) for day in "ab"]
    with pytest.raises(UsageError, match="--allow-different prompts"):
        gate(*runs, SPEEDUP)
    with pytest.raises(UsageError):  # nor are they one baseline
        pool([snapshot(run) for run in (runs[0], replace_id(runs[1]))])


def test_allowed_differences_of_prompts_are_not_attributed_to_a_servers_clock():
    runs = [of_prompts(modified(served_sweep(ONE_ROW), template_clock=""), day) for day in "ab"]
    result = gate(*runs, SPEEDUP, {"prompts"})
    assert Kind.CLOCK_IN_PROMPTS not in {note.kind for note in result.notes}


def replace_id(stored: StoredRun) -> StoredRun:
    return replace(stored, run=replace(stored.run, run_id="20261123-010203-5e55"))


@pytest.mark.parametrize("rows", [1, 4])
def test_the_unit_of_a_served_cell_is_a_whole_cycle(rows):
    cell = cell_of(served_sweep(Sweep(wobble=0.1)), 4, rows)
    figures = cell_figures(cell, {"decode_speedup", "mean_acceptance_length", "num_preemptions"})
    assert figures.units == ("cycle 0", "cycle 1", "cycle 2", "cycle 3")
    assert figures.num_tokens == (2 * 6 * (1 if rows == 1 else 2) * 25.0,) * 4
    three = cell_of(served_sweep(Sweep(wobble=0.1, cycles=3)), 4, rows)
    without_last = cell_figures(three, {"decode_speedup"}).figures["decode_speedup"].value
    assert figures.figures["decode_speedup"].without[3] == without_last
    assert figures.figures["mean_acceptance_length"].without == ()  # it repeats
    assert figures.figures["num_preemptions"].without == (3, 3, 3, 3)


def test_a_cell_of_the_builtin_engine_has_no_cycles(steady):
    assert not cell_figures(steady, set()).has_cycles


def test_the_interval_has_the_noise_between_processes():
    """Two runs of 4 cycles: variances of both, 3 degrees of freedom each."""
    runs = [served_sweep(replace(ONE_ROW, wobble=0.3, differing=d)) for d in (0.05, 0.051)]
    (judgment,) = (
        j for j in gate(*runs, SPEEDUP).judgments if j.cell == key_of(4) and j.unit == "x"
    )
    logs = []
    for run in runs:
        cell = cell_of(run, 4)
        speeds = []
        for cycle in range(4):
            repeats = {repeat for repeat, c in cell.cycles.items() if c == cycle}
            seconds = (
                sum(r.decode_s for r in side if r.repeat in repeats)
                for side in (cell.baseline, cell.requests)
            )
            base_s, spec_s = seconds
            speeds.append(np.log(base_s / spec_s))
        logs.append(np.array(speeds))
    error = np.sqrt(sum(log_ratios.var(ddof=1) / 4 for log_ratios in logs))
    width = np.log((1 + judgment.change.high) / (1 + judgment.change.low)) / 2
    assert error > 0.05
    assert width == pytest.approx(2.447 * error, rel=0.01)  # Student's t of 6


def test_more_cycles_do_not_replace_prompts():
    more = replace(ONE_ROW, cycles=6)
    result = gate(served_sweep(ONE_ROW), served_sweep(more), SPEEDUP)
    assert result.verdict is GateVerdict.PASS
    assert result.allowed == ()
    with pytest.raises(UsageError, match="prompts: 6 of code"):
        gate(served_sweep(ONE_ROW), served_sweep(replace(ONE_ROW, num_prompts=8)), SPEEDUP)


def test_a_slower_engine_is_a_regression_and_the_same_one_is_not():
    slow = served_sweep(replace(ONE_ROW, slower={4: 2.5}))
    result = gate(served_sweep(ONE_ROW), slow, SPEEDUP)
    assert result.verdict is GateVerdict.REGRESSION
    (judgment,) = (j for j in result.judgments if j.verdict is GateVerdict.REGRESSION)
    assert judgment.cell == key_of(4)
    assert gate(served_sweep(ONE_ROW), served_sweep(ONE_ROW)).verdict is GateVerdict.PASS


def test_one_cycle_is_too_few_for_an_interval():
    sweep = served_sweep(replace(ONE_ROW, cycles=1))
    result = gate(sweep, sweep, SPEEDUP)
    (reason,) = {j.reason for j in result.judgments if j.metric == "decode_speedup"}
    assert reason == Kind.TOO_FEW_UNITS(units=(1, "cycle"), needed=2)


def test_an_interrupted_candidate_is_judged_by_the_cycles_it_has():
    short = replace(served_sweep(replace(ONE_ROW, cycles=3)), is_complete=False)
    result = gate(served_sweep(ONE_ROW), short, SPEEDUP)
    assert result.verdict is GateVerdict.PASS


def without_ids(stored: StoredRun, words: str = "", repeat: int | None = None) -> StoredRun:
    """A server that returns only text; `words` end the outputs, or the outputs of one repeat."""

    def hide_ids(request):
        more = words if repeat in (None, request.repeat) else ""
        text = " ".join(f"w{i}" for i in range(20)) + more
        return replace(request, output_ids=(), num_tokens=25, text=text)

    blocks = (replace(b, requests=tuple(map(hide_ids, b.requests))) for b in stored.blocks)
    return replace(stored, blocks=tuple(blocks))


def text_of(result: Gate):
    return next(j for j in result.judgments if j.metric == OUTPUT_TOKENS and j.cell == key_of(4))


def test_texts_without_tokens_are_compared_by_words():
    before = without_ids(served_sweep(ONE_ROW))
    assert text_of(gate(before, before)).verdict is GateVerdict.PASS
    judgment = text_of(gate(before, without_ids(served_sweep(ONE_ROW), " other")))
    assert judgment.verdict is GateVerdict.REGRESSION
    differ = {"differing": 6, "compared": 6, "prompt": "code-0", "place": "words 17 to 32"}
    assert judgment.reason == Kind.TEXTS_DIFFER(**differ)


def test_output_tokens_are_not_compared_with_word_counts():
    result = gate(served_sweep(ONE_ROW), without_ids(served_sweep(ONE_ROW)))
    assert not [j for j in result.judgments if j.metric == OUTPUT_TOKENS]


def test_text_that_differs_between_cycles_is_not_compared():
    other = without_ids(served_sweep(ONE_ROW), " other", repeat=3)
    assert cell_figures(cell_of(other, 4), set()).texts == {}
    assert cell_figures(cell_of(without_ids(served_sweep(ONE_ROW)), 4), set()).texts
    # Batches of a server depend on time.
    assert cell_figures(cell_of(served_sweep(), 4, rows=4), set()).texts == {}


def test_another_server_version_is_reported_and_not_pooled():
    before, after = served_sweep(ONE_ROW), served_sweep(replace(ONE_ROW, version="0.33.0"))
    first, other = fingerprint(before), fingerprint(after)
    assert differences(first, other) == ()
    assert changes(first, other) == (("server vllm of demo, version", "0.32.1", "0.33.0"),)
    assert not have_same_arithmetic(first, other)
    assert gate(before, after, SPEEDUP).changes == changes(first, other)
    renamed = replace(snapshot(after), origins=(replace(snapshot(after).origins[0], run_id="b"),))
    with pytest.raises(UsageError, match=r"vllm.*demo.*version"):
        pool([snapshot(before), renamed])


@pytest.mark.parametrize(
    "changed",
    [
        {"num_gpus": 2},
        {"settings": {"dtype": "float16", "block_size": "16"}},
        {"command": ("vllm", "serve", "m", "--tensor-parallel-size", "2")},
        {"command": ("vllm", "serve", "m", "--quantization=fp8")},
        {"command": ("llama-server", "-ngl", "99")},
        {"command": ("llama-server", "-ctk", "q8_0")},
    ],
)
def test_dtype_and_parallelism_of_a_server_count_as_hardware(changed):
    before, after = served_sweep(ONE_ROW), modified(served_sweep(ONE_ROW), **changed)
    assert "hardware" in {d.name for d in differences(fingerprint(before), fingerprint(after))}
    assert gate(before, after, SPEEDUP).verdict is GateVerdict.PASS  # ratios hold
    with pytest.raises(UsageError, match=r"hardware.*vllm.*demo"):
        gate(before, after, [Tolerance(metric="decode_tokens_per_s", share=0.4)])


@pytest.mark.parametrize(
    ("dtype", "explicit", "is_other"),
    [
        ("bfloat16", "bfloat16", False),
        ("bfloat16", "bf16", False),  # SGLang has both names
        ("bfloat16", "float16", True),
        ("auto", "float16", False),  # unknown
        ("auto", "fp8", True),
    ],
)
def test_an_automatic_cache_dtype_is_that_of_the_model(dtype, explicit, is_other):
    before, after = (
        modified(served_sweep(ONE_ROW), settings={"dtype": dtype, "kv_cache_dtype": cache})
        for cache in ("auto", explicit)
    )
    found = {d.name for d in differences(fingerprint(before), fingerprint(after))}
    assert found == ({"hardware"} if is_other else set())


@pytest.mark.parametrize(
    "added", [{"target": "other"}, {"engine": "sglang"}, {"variant": "eager"}], ids=str
)
def test_facts_of_a_server_on_one_side_do_not_count_unless_no_server_is_on_both(added):
    servers = served_sweep(ONE_ROW).servers
    usual = replace(servers[0], variant="usual")
    other = replace(usual, session="other", place="other", num_gpus=2, **added)
    fewer, more, alone = (
        replace(
            fingerprint(served_sweep(ONE_ROW)), hardware=facts.hardware, software=facts.software
        )
        for facts in map(served_facts, ([usual], [usual, other], [other]))
    )
    assert differences(fewer, more) == differences(more, fewer) == ()
    assert "GPUs 2" in str(differences(fewer, alone))
    changed_too = {name: "9" for name in more.hardware}
    assert "usual, GPUs 9" in str(differences(fewer, replace(more, hardware=changed_too)))


def test_other_arguments_and_settings_are_reported():
    before = served_sweep(ONE_ROW)
    after = modified(
        before,
        command=("vllm", "serve", "m", "--max-num-seqs", "256", "--enforce-eager"),
        settings={"dtype": "float32", "block_size": "32"},
        prefix_cache="on",
    )
    differing = changes(fingerprint(before), fingerprint(after))
    assert [(d.name.partition(", ")[2], d.baseline, d.candidate) for d in differing] == [
        ("prefix cache", "off", "on"),
        ("block_size", "16", "32"),
        ("--max-num-seqs", "absent", "256"),
        ("--enforce-eager", "absent", "given"),
    ]


def test_addresses_drafts_and_computed_settings_are_not_facts():
    server = served_sweep(ONE_ROW).servers[1]
    here = replace(
        server,
        command=(
            *("/env/bin/python", "-m", "vllm", "--model", "/models/target", "--port", "41207"),
            *("--host", "127.0.0.1", "--speculative-config", '{"k": 4}', "--api-key", "secret"),
            *("--chat-template", "/here/chat.jinja", "--rope-scale", "-1", "--eager"),
        ),
        settings={"num_gpu_blocks": "9000", "model_path": "/m", "chat_template": "/x/chat.jinja"},
    )
    facts = served_facts([here])
    assert dict(facts.software) == {
        "server vllm of demo, version": "0.32.1",
        "server vllm of demo, prefix cache": "off",
        "server vllm of demo, chat_template": "chat.jinja",
        "server vllm of demo, --chat-template": "chat.jinja",
        "server vllm of demo, --rope-scale": "-1",
        "server vllm of demo, --eager": "given",
    }
    assert dict(facts.hardware) == {"server vllm of demo, GPUs": "1"}


@pytest.mark.parametrize(
    ("flag", "value", "of_k"),
    [
        ("--spec-draft-p-min", "0.5", "--spec-draft-n-max"),  # llama.cpp
        ("--speculative-draft-model-quantization", "fp8", "--speculative-num-steps"),  # SGLang
    ],
)
def test_arguments_of_the_user_about_drafts_are_facts(flag, value, of_k):
    plain, drafting = served_sweep(ONE_ROW).servers[:2]
    plain = replace(plain, command=("serve", "--metrics", flag, value))
    drafting = replace(drafting, command=("serve", of_k, "4", flag, value))
    facts = served_facts([plain, drafting]).software
    assert facts[f"server vllm of demo, {flag}"] == value
    assert not [name for name in facts if of_k in name]


def test_user_speculative_config_fields_are_part_of_the_fingerprint():
    runs = []
    for size in ("1", "2"):
        stored = served_sweep(ONE_ROW)
        words = ("--speculative-config.draft_tensor_parallel_size", size)
        settings = changed(stored.run.settings, engine_args=words)
        runs.append(replace(stored, run=replace(stored.run, settings=settings)))
    (difference,) = changes(*map(fingerprint, runs))
    assert (difference.baseline, difference.candidate) == ("1", "2")
    assert "draft_tensor_parallel_size" in difference.name


def test_facts_come_from_sessions_without_speculation_if_there_are_any():
    plain, drafting = served_sweep(ONE_ROW).servers[:2]
    fewer = replace(drafting, command=("vllm", "serve", "m", "--max-num-seqs", "8"))
    assert "server vllm of demo, --max-num-seqs" not in served_facts([plain, fewer]).software
    assert served_facts([fewer]).software["server vllm of demo, --max-num-seqs"] == "8"


def test_sessions_that_differ_have_all_of_their_values_and_lost_ones_none():
    servers = served_sweep(ONE_ROW).servers
    updated = replace(servers[0], session="new", place="new", version="0.33.0")
    lost = replace(updated, session="lost", place="lost", version="0.1", problems=("gone",))
    facts = served_facts([*servers, updated, lost]).software
    assert facts["server vllm of demo, version"] == "0.32.1 | 0.33.0"


def test_the_command_line_compares_two_stored_runs(tmp_path):
    keep(tmp_path / "reports", "before", served_sweep(ONE_ROW))
    keep(tmp_path / "reports", "after", served_sweep(replace(ONE_ROW, version="0.33.0")))
    ran = specbench("check", "reports/before", "reports/after", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "0.32.1" in ran.out
    assert "0.33.0" in ran.out


def test_a_baseline_of_cycles_can_be_kept_in_a_file(tmp_path):
    whole = snapshot(served_sweep(ONE_ROW))
    write_baseline(whole, tmp_path / "baseline.json")
    read = read_baseline(tmp_path / "baseline.json")
    assert read.fingerprint == whole.fingerprint
    assert [c.prompts for c in read.cells] == [c.prompts for c in whole.cells]
    assert read.cells[0].has_cycles
