"""ik_llama.cpp's own server, measured and exported as the flags of its build ask for."""

import json
import shlex

import pytest

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.validity import judge_cell
from specbench.report.document import build_document
from tests.real_engines.environments import IK_SERVER, SLOW
from tests.real_engines.sweeps import K, Sweep, faults_of_streams, process, specbench, sweep
from tests.real_engines.test_llama_cpp import greedy

pytestmark = pytest.mark.engines

STARTED = ("--engine", "ik_llama_cpp", "--engine-python", IK_SERVER)
# Its drafter has threads of its own, and its flash attention fails an assertion with these models.
ONE_THREAD = ("--threads", "1", "--threads-draft", "1", "--flash-attn", "off")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Sweep:
    """K = 0 and 4 with the draft model, and its own tuning of drafts beside it."""
    options = ("-k", f"0,{K}", "--adaptive", "--restart-cycles", "2", "-w", "code")
    options += ("--num-prompts", "5", "--engine-args", " ".join(ONE_THREAD))
    return sweep(
        "sweep-k",
        "demo/draft",
        *STARTED,
        *options,
        cwd=SLOW.parent,
        out=tmp_path_factory.mktemp("ik"),
    )


def test_every_session_counts_and_no_stream_is_at_fault(tuned):
    assert [(s.place, s.problems) for s in tuned.run.servers if s.problems] == []
    assert not faults_of_streams(tuned)
    assert {s.version for s in tuned.run.servers} == {"2026-04-08"}


def test_drafts_are_accepted_and_leave_the_text_unchanged(tuned):
    cells = {(c.key.condition.variant, c.k): c for c in aggregate_run(tuned.run)}
    texts = {(r.prompt_id, r.turn): (r.text, r.num_tokens) for r in cells["default", 0].finished}
    drafted = cells["default", K].finished
    assert {(r.text, r.num_tokens) == texts[r.prompt_id, r.turn] for r in drafted} == {True}
    assert sum(r.counts.num_accepted for r in drafted) > sum(r.counts.num_rounds for r in drafted)
    assert {len(r.counts.num_by_accepted) for r in drafted} == {K + 1}


def test_its_tuning_is_compared_with_the_fixed_k(tuned):
    (row,) = build_document(tuned.run).adaptive
    assert row.adaptive.condition.variant == "autotune"
    (cell,) = (cell for cell in aggregate_run(tuned.run) if cell.key == row.adaptive)
    assert not judge_cell(cell)
    drafted = [request.counts.num_by_accepted for request in cell.finished]
    assert any(sum(counts[K + 1 :]) for counts in drafted)  # it also tries more than K


def test_the_exported_command_starts_a_server_that_drafts(tuned, tmp_path):
    (version,) = {server.version for server in tuned.run.servers}
    words = ("-k", str(K), "--engine-version", version, "--json")
    ran = specbench("export", "demo/draft", "--engine", "ik_llama_cpp", *words, cwd=SLOW.parent)
    command = shlex.split(json.loads(ran.out)["command_line"])
    assert "--draft-max" in command
    command += ["--ctx-size", "1024", *ONE_THREAD]  # as a comment of the export asks
    with process([IK_SERVER, *command[1:]], tmp_path / "log") as (root, _):
        _, timings = greedy(root)
    assert timings["draft_n_accepted"] > 10
