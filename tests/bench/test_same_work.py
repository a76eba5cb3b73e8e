"""What a resumed run may find changed: nothing that its figures follow from."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.bench.benchmark import require_same_work
from specbench.errors import ModelError, UsageError
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.records import RunRecord
from specbench.report.document import build_document
from tests.bench.fake_runs import ENVIRONMENT, RUN_ID, SETTINGS, make_plan, measure
from tests.bench.fakes import FakeEngine, Interrupted, stop_after

OWN = """\
targets:
  big:
    model: owner/big
    drafters:
      one: {method: draft_model, model: owner/small, note: a note}
"""


def pairing(folder: Path, text: str) -> Pairing:
    (folder / "own.yaml").write_text(text)
    (one,) = load_pairings(folder / "own.yaml").all
    return one


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("owner/small", "owner/other"),
        ("owner/big", "owner/bigger"),
        ("owner/small", "owner/small, revision: v2"),
        ("owner/small", "owner/small, quantization: int8"),
        ("owner/small", "owner/small, parameters: {tree: [4, 2]}"),
        ("owner/small", "owner/small, lossy: typical"),
    ],
)
def test_the_pairing_hash_covers_every_field_that_affects_results(
    before: str, after: str, tmp_path: Path
) -> None:
    own = pairing(tmp_path, OWN).sha256
    assert pairing(tmp_path, OWN.replace(before, after, 1)).sha256 != own


@pytest.mark.parametrize("words", ["another note", "a note, weights_gib: 3"])
def test_the_pairing_hash_ignores_notes(words: str, tmp_path: Path) -> None:
    own = pairing(tmp_path, OWN).sha256
    assert pairing(tmp_path, OWN.replace("a note", words)).sha256 == own


def test_a_changed_pairing_is_refused_on_resume_with_its_name(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SETTINGS)
    run = RunRecord(
        schema_version=4,
        run_id=RUN_ID,
        environment=ENVIRONMENT,
        settings=plan.settings,
        workload_sha256={w.name: w.sha256 for w in plan.workloads},
        cells=plan.cell_plans(),
        pairing_sha256={p.name: p.sha256 for p in plan.pairings},
    )
    require_same_work(run, [plan])
    require_same_work(replace(run, pairing_sha256={}), [plan])
    other = replace(run, pairing_sha256={**run.pairing_sha256, "big/bad": "0" * 64})
    with pytest.raises(UsageError, match=r"big/bad.*pairings\.yaml"):
        require_same_work(other, [plan])


def test_a_failure_disappears_when_its_cells_are_measured_later(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, SETTINGS)
    gone = FakeEngine(refuses={"bad": ModelError("it is not there")})
    with pytest.raises(Interrupted):
        measure(plan, gone, tmp_path, stop_after())
    document = build_document(measure(plan, gone, tmp_path))
    assert [failure.pairing for failure in document.failures] == ["big/bad"]

    document = build_document(measure(plan, FakeEngine(), tmp_path))
    assert document.failures == ()
    assert document.missing == ()
