"""`specbench check` and `specbench baseline` over synthetic runs on disk: exit codes and files."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.cli.check import SUMMARY_VARIABLE
from specbench.records import BlockRecord, Kind
from specbench.runs import StoredRun
from specbench.untrusted import plain
from tests.cli.calls import CommandResult, specbench
from tests.report import stored_runs
from tests.report.stored_runs import Wish, stored_run

WISH = Wish(drafters=("draft",), workloads=("code",), ks=(0, 4), num_prompts=8)


def keep(folder: Path, run_id: str, stored: StoredRun) -> str:
    """Write a synthetic run under `folder`/reports."""
    stored_runs.keep(folder / "reports", run_id, stored)
    return run_id


def changed(stored: StoredRun, change: Callable[..., object], k: int = 4) -> StoredRun:
    """The run with every request of one K replaced."""

    def block(record: BlockRecord) -> BlockRecord:
        requests = tuple(change(r) if f"|k{k}|" in r.cell_id else r for r in record.requests)
        return replace(record, requests=requests)

    return replace(stored, blocks=tuple(map(block, stored.blocks)))


def slower_verify(request, seconds: float = 0.04):
    log = request.rounds
    return replace(
        request,
        decode_s=request.decode_s + seconds * len(log),
        rounds=replace(
            log,
            round_s=tuple(s + seconds for s in log.round_s),
            verify_s=tuple(s + seconds for s in log.verify_s),
        ),
    )


def keeps_nothing(request):
    """Every draft is rejected, so a token takes the seconds of a round."""
    log, n = request.rounds, request.num_output_tokens - 1
    each = [column[0] for column in (log.round_s, log.draft_s, log.verify_s)]
    return replace(
        request,
        decode_s=each[0] * n,
        rounds=replace(
            log,
            num_drafted=(4,) * n,
            num_accepted=(0,) * n,
            num_emitted=(1,) * n,
            round_s=(each[0],) * n,
            draft_s=(each[1],) * n,
            verify_s=(each[2],) * n,
        ),
    )


def taking_three_times_as_long(block: BlockRecord) -> BlockRecord:
    """Everything takes three times as long, including K = 0 and the processor's own time."""

    def slower(request):
        log = request.rounds
        seconds = {
            name: tuple(3 * s for s in getattr(log, name))
            for name in ("round_s", "draft_s", "verify_s")
            if getattr(log, name) is not None
        }
        return replace(
            request,
            decode_s=3 * request.decode_s,
            total_s=3 * request.total_s,
            cpu_s=3 * request.total_s,
            rounds=replace(log, **seconds),
        )

    return replace(block, requests=tuple(map(slower, block.requests)))


def waiting(block: BlockRecord) -> BlockRecord:
    """Waits for other processes, except in a winner's second measurement."""
    if block.purpose == "confirm":
        return block
    requests = (replace(request, cpu_s=request.total_s / 3) for request in block.requests)
    return replace(block, requests=tuple(requests))


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the same work: two equal, one with a slow verify, one whose drafts are all wrong."""
    folder = tmp_path_factory.mktemp("made")
    usual = stored_run(WISH)
    keep(folder, "usual", usual)
    keep(folder, "again", usual)
    keep(folder, "slow", changed(usual, slower_verify))
    keep(folder, "fast", changed(usual, lambda r: slower_verify(r, -0.003)))
    keep(folder, "wrong", changed(usual, keeps_nothing))
    loaded = replace(usual, blocks=tuple(map(taking_three_times_as_long, usual.blocks)))
    keep(folder, "slower", loaded)
    keep(folder, "waited", replace(loaded, blocks=tuple(map(waiting, loaded.blocks))))
    early = replace(loaded.run, busy=(Kind.LOAD(load=5.2, cores=(2, "core")),))
    keep(folder, "warned", replace(loaded, run=early))
    keep(folder, "few", stored_run(replace(WISH, num_prompts=3)))
    keep(folder, "other-k", stored_run(replace(WISH, ks=(0, 5))))
    keep(folder, "other-text", stored_run(replace(WISH, workloads=("chat",))))
    keep(folder, "gpu", stored_run(replace(WISH, device="gpu")))
    unmeasured = replace(usual, blocks=(), is_complete=False)
    keep(folder, "nothing", unmeasured)
    return folder


def test_a_run_like_its_baseline_exits_0(runs_dir: Path) -> None:
    ran = specbench("check usual again", cwd=runs_dir)
    assert (ran.code, ran.err) == (0, "")
    *_, last = ran.out.splitlines()
    assert re.match("PASS: 4 .*1 cell", last)
    assert "decode_speedup 40%, decode_tokens_per_s 40%" in last
    assert max(map(len, ran.out.splitlines())) <= 80 or "\n" in ran.out
    table = ran.out.partition("identical runs fail")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_a_slower_verify_exits_1_and_is_called_verification(runs_dir: Path) -> None:
    ran = specbench("check usual slow", cwd=runs_dir)
    text = ran.out.replace("\n", " ")
    assert ran.code == 1
    assert re.search("demo/draft K=4 .*code: verification: .*acceptance", text)
    assert "verify 11.6 -> 51.6 ms" in text
    assert ran.out.splitlines()[-1].startswith("REGRESSION: demo/draft K=4 on code: decode_")


@pytest.mark.parametrize(("run_id", "sign"), [("waited", "waited"), ("warned", "load")])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_gate_on_a_noisy_run_exits_3_with_the_reason(
    run_id: str, sign: str, side: str, runs_dir: Path, tmp_path: Path
) -> None:
    sides = (run_id, "usual") if side == "baseline" else ("usual", run_id)
    junit = tmp_path / "gate.xml"
    ran = specbench("check", *sides, "--json", "--junit", junit, cwd=runs_dir)
    document = json.loads(ran.out)
    assert (ran.code, document["verdict"]) == (3, "inconclusive")
    verdicts = {j["metric"]: j["verdict"] for j in document["judgments"]}
    assert verdicts["decode_tokens_per_s"] == "inconclusive"
    assert verdicts["decode_speedup"] == "pass"
    assert document[side]["runs"][0]["noise"][0]["kind"] == sign
    (skipped,) = ET.parse(junit).getroot().iter("skipped")
    assert "machine" in (skipped.get("message") or "")
    ratios = ("--fail-on", "mean_acceptance_length:2%,decode_speedup:40%")
    assert specbench("check", *sides, *ratios, cwd=runs_dir).code == 0


def test_a_quiet_machine_on_which_everything_is_slower_exits_1(runs_dir: Path) -> None:
    ran = specbench("check usual slower --json", cwd=runs_dir)
    document = json.loads(ran.out)
    assert (ran.code, document["verdict"]) == (1, "regression")
    assert [a["causes"] for a in document["attributions"]] == [["machine"]]


def test_check_attributes_wrong_drafts_to_acceptance_and_exits_1(runs_dir: Path) -> None:
    ran = specbench("check usual wrong --json", cwd=runs_dir)
    document = json.loads(ran.out)
    assert (ran.code, document["verdict"]) == (1, "regression")
    (attribution,) = document["attributions"]
    assert attribution["causes"] == ["acceptance"]
    assert attribution["curve"]["after"] == [0, 0, 0, 0]


def test_an_improvement_exits_0(runs_dir: Path) -> None:
    assert specbench("check usual fast", cwd=runs_dir).code == 0
    assert specbench("check slow usual", cwd=runs_dir).code == 0


def test_noise_that_could_hide_the_tolerance_exits_3(runs_dir: Path) -> None:
    ran = specbench("check usual again --fail-on decode_speedup:1%", cwd=runs_dir)
    assert ran.code == 3
    assert ran.out.splitlines()[-1].startswith("INCONCLUSIVE: demo/draft K=4 on code: ")


def test_cells_that_were_not_measured_exit_4(runs_dir: Path) -> None:
    ran = specbench("check usual nothing", cwd=runs_dir)
    assert ran.code == 4
    assert ran.out.splitlines()[-1].startswith("MISSING: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("usual few", "prompts: 8 of code"),
        ("usual other-k", "K: 4 in the baseline, 5 in the candidate"),
        ("usual other-text", "cells: demo/draft K=4 on code in the baseline, not planned in"),
        ("usual gpu", "hardware: device cpu in the baseline, device cuda in the candidate"),
        ("usual nobody", "no run 'nobody'"),
        ("absent.json usual", "absent.json: No such file"),
        ("usual again --fail-on speed:5%", "no metric 'speed'"),
        ("usual again --fail-on num_rounds:5%", "neither more nor less"),
        ("usual again --fail-on peak_allocated_bytes:3%", "missing on both sides"),
        ("usual again --fail-on decode_speedup", "expected METRIC:SHARE"),
        ("usual again --fail-on decode_speedup:100%", "below 100%"),
        ("usual again --fail-on alpha:1%,alpha:2%", "alpha twice"),
        ("usual again --allow-different weather", "choose from K, target"),
    ],
)
def test_check_exits_2_for_incomparable_runs(arguments: str, says: str, runs_dir: Path) -> None:
    ran = specbench(f"check {arguments}", cwd=runs_dir)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "|" not in ran.err  # no cell id
    assert "Traceback" not in ran.err


def test_allow_different_compares_runs_despite_the_named_difference(runs_dir: Path) -> None:
    ran = specbench("check usual other-k --allow-different k", cwd=runs_dir)
    assert ran.code == 0
    assert re.search("allowed .*: K: 4 .*baseline, 5 ", ran.out)
    speedups = ("--fail-on", "mean_acceptance_length:2%,decode_speedup:25%")
    assert specbench("check usual gpu", *speedups, cwd=runs_dir).code == 0


@pytest.fixture(scope="module")
def baseline_call(runs_dir: Path) -> CommandResult:
    return specbench("baseline usual again", cwd=runs_dir)


def test_a_baseline_file_can_be_checked_instead_of_its_runs(
    runs_dir: Path, baseline_call: CommandResult
) -> None:
    assert (baseline_call.code, baseline_call.err) == (0, "")
    assert baseline_call.out.splitlines()[-1].startswith("baseline.json: 2 cells of 2 runs, ")
    assert "decode_speedup 1.93x +- 0.00%" in baseline_call.out
    assert specbench("check baseline.json again", cwd=runs_dir).code == 0
    assert specbench("check baseline.json slow", cwd=runs_dir).code == 1


def test_a_baseline_without_valid_cells_exits_2(runs_dir: Path) -> None:
    assert specbench("baseline", "nothing", cwd=runs_dir).code == 2
    assert specbench("baseline usual few", cwd=runs_dir).code == 2
    assert specbench("baseline usual usual", cwd=runs_dir).code == 2


def test_check_writes_ci_files(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv(SUMMARY_VARIABLE, str(summary))
    files = ("--junit", tmp_path / "junit.xml", "--markdown", tmp_path / "gate.md")
    assert specbench("check usual slow", *files, cwd=runs_dir).code == 1

    suite = ET.parse(tmp_path / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")
    failed = [
        case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["decode_speedup", "decode_tokens_per_s"]
    markdown = (tmp_path / "gate.md").read_text()
    assert markdown.startswith("## specbench check: regression\n")
    assert "| REGRESSION |" in markdown
    assert summary.read_text() == f"before\n{markdown}"


@pytest.mark.parametrize(("candidate", "code"), [("again", 2), ("slow", 1), ("nothing", 4)])
def test_the_verdict_is_printed_even_if_an_output_file_cannot_be_written(
    candidate: str, code: int, runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = specbench("check", "usual", candidate, cwd=runs_dir)
    monkeypatch.setenv(SUMMARY_VARIABLE, "absent/summary.md")
    files = ("--junit", "absent/gate.xml", "--markdown", tmp_path / "gate.md")
    ran = specbench("check", "usual", candidate, *files, cwd=runs_dir)
    assert (ran.code, ran.out) == (code, judged.out)
    for file, line in zip(("gate.xml", "summary.md"), ran.err.splitlines(), strict=True):
        assert re.fullmatch(f"error: absent/{file}: .*: No such file .*", line)
    assert (tmp_path / "gate.md").read_text().startswith("## specbench check: ")


@pytest.mark.parametrize(
    ("sides", "first"),
    [
        (["usual", "other-k"], "these runs did different work:"),
        (["absent.json", "usual"], "absent.json: No such file or directory"),
        (["b\udcff.json", "usual"], "b\ufffd.json: No such file or directory"),
    ],
    ids=["other work", "no baseline", "a name that is not UTF-8"],
)
def test_a_refusal_is_in_every_file_of_ci(
    sides: list[str], first: str, runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv(SUMMARY_VARIABLE, str(summary))
    junit = tmp_path / "gate.xml"
    ran = specbench("check", *sides, "--junit", junit, "--json", cwd=runs_dir)
    assert ran.code == 2
    document = json.loads(ran.out)
    assert document.keys() == {"schema_version", "verdict", "text"}
    assert document["verdict"] == "refused"
    assert ran.err == plain(f"error: {document['text']}\n")
    (error,) = ET.parse(junit).getroot().iter("error")
    assert first in (error.get("message") or "")
    assert first.partition(":")[0] in summary.read_text()
    if "other-k" in sides:
        assert re.search("K: 4 .*baseline, 5 ", error.text or "")
        assert re.search("- K: 4 .*baseline, 5 ", summary.read_text())


@pytest.mark.slow
def test_neither_command_imports_torch(runs_dir: Path, baseline_call: CommandResult) -> None:
    from tests.test_layering import modules_after

    assert baseline_call.code == 0
    commands = (
        ["check", "baseline.json", "again"],
        ["baseline", "usual", "--output", "b.json"],
    )
    code = (
        f"import specbench.cli as c\nfor command in {commands!r}:\n"
        "    try:\n        c.app(command)\n"
        "    except SystemExit as done:\n        assert not done.code, command"
    )
    assert not modules_after(code, runs_dir) & {"torch", "transformers", "matplotlib"}
