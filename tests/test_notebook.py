"""`specbench.load`, as a notebook uses it, and the example of docs/notebooks.md."""

import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import specbench
from specbench.errors import StoreError, UsageError
from specbench.frames.tables import cells_csv
from specbench.report import html
from specbench.report.answers import answer_lines
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.report.html import Pictures, to_html
from specbench.report.markdown import to_markdown
from specbench.runs import load_run
from tests.cell_keys import with_axes
from tests.cli.calls import specbench as command_line
from tests.report.stored_runs import SMALL, keep, stored_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("notebook") / "reports"
    keep(root, "20261121-010203-a1b2", stored_run(SMALL))
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> specbench.LoadedRun:
    return specbench.load("20261121-010203-a1b2", root=root)


def test_a_run_is_found_by_id_by_folder_and_as_the_newest(root: Path) -> None:
    folder = root / "20261121-010203-a1b2"
    runs = [
        specbench.load("20261121-010203-a1b2", root),
        specbench.load(folder),
        specbench.load(str(folder)),
        specbench.load(root=root),
    ]
    assert {run.id for run in runs} == {"20261121-010203-a1b2"}
    assert {run.folder for run in runs} == {folder}


def test_the_default_is_the_newest_run_in_reports(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    assert specbench.load().folder == Path("reports/20261121-010203-a1b2")


@pytest.mark.parametrize("name", ["no-such-run", "latest", "../etc", "x" * 300])
def test_loading_a_wrong_run_gives_the_error_of_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as error:
        specbench.load(name)
    ran = command_line("report", name, cwd=tmp_path)
    assert (ran.code, ran.err.strip()) == (2, f"error: {error.value}")


def test_loading_a_damaged_run_is_an_error_with_its_file(tmp_path: Path) -> None:
    folder = keep(tmp_path, "bad", stored_run(SMALL))
    (folder / "run.json").write_text("{}")
    with pytest.raises(StoreError, match=r"run\.json: damaged"):
        specbench.load(folder)


def test_tables_are_made_once_and_keep_what_is_added(run: specbench.LoadedRun) -> None:
    cells = run.cells
    assert run.cells is cells
    assert len(run.requests) > len(cells) > len(run.decisions)
    assert len(run.rounds) > len(run.requests)
    cells["tokens_per_joule"] = 1 / cells["joules_per_token"]
    assert "tokens_per_joule" in run.cells
    del cells["tokens_per_joule"]


def test_notebook_tables_can_be_joined(run: specbench.LoadedRun) -> None:
    joined = run.decisions.merge(run.cells, on=["run_id", "cell_id"], validate="one_to_one")
    assert len(joined) == len(run.decisions)
    assert set(run.rounds["cell_id"]) == set(run.requests["cell_id"]) == set(run.cells["cell_id"])


def test_columns_state_units_without_a_run() -> None:
    columns = specbench.LoadedRun.columns("rounds").set_index("name")
    assert columns.loc["round_s", "unit"] == "s"
    assert (
        specbench.LoadedRun.columns().set_index("name").loc["joules_per_token", "unit"] == "J/token"
    )


@pytest.mark.slow
def test_notebook_reports_equal_those_of_the_command(
    run: specbench.LoadedRun, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "pictures", lambda _: Pictures((), (), ()))  # alike: test_figures.py
    stored = load_run(run.id, root)
    document = build_document(stored)
    assert run.report("markdown") == run.report("md") == to_markdown([document])
    assert run.report("csv") == cells_csv([document])
    assert json.loads(run.report("json")) == json.loads(json.dumps(run.to_json()))
    assert run.to_json() == to_json(document)
    assert run.report() == to_html([document])


def test_a_report_is_written_to_the_given_path(run: specbench.LoadedRun, tmp_path: Path) -> None:
    path = tmp_path / "answer.md"
    assert run.report("markdown", path) == path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match=r"absent.*: No such file"):
        run.report("markdown", tmp_path / "absent" / "answer.md")


def test_an_unknown_format_is_refused(run: specbench.LoadedRun) -> None:
    with pytest.raises(UsageError, match=r"'pdf'.*html, md, csv, markdown"):
        run.report("pdf")


def test_a_notebook_shows_the_sentences(run: specbench.LoadedRun) -> None:
    assert run.answers == answer_lines(build_document(stored_run(SMALL)))
    assert all(line in repr(run) for line in run.answers)
    assert run._repr_html_().startswith(f"<p>run {run.id}</p><pre>{run.answers[0]}")


def test_notebook_html_is_escaped_and_marks_an_incomplete_run(tmp_path: Path) -> None:
    stored = stored_run(replace(SMALL, workloads=("code",), is_complete=False))
    named = tuple(
        replace(plan, key=with_axes(plan.key, workload="<b>code</b>")) for plan in stored.run.cells
    )
    keep(tmp_path, "half", replace(stored, run=replace(stored.run, cells=named), blocks=()))
    shown = specbench.load("half", tmp_path)._repr_html_()
    assert "<p>run half, not complete</p>" in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;code" in shown
    assert "<li>incomplete: interrupted or still running" in shown


def test_the_package_has_a_py_typed_marker() -> None:
    assert Path(specbench.__file__).with_name("py.typed").is_file()


PAGE = Path(__file__).parents[1] / "docs" / "notebooks.md"
TEXT = PAGE.read_text(encoding="utf-8")


def fenced(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return block


def test_the_notebook_example_prints_the_output_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_run(SMALL)
    keep(tmp_path / "reports", stored.run.run_id, stored)
    monkeypatch.chdir(tmp_path)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(fenced("python"), "docs/notebooks.md", "exec"), {})
    assert printed.getvalue() == fenced("text")
    assert Path("report.md").read_text(encoding="utf-8").startswith("# ")


def test_every_link_of_the_notebook_page_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
