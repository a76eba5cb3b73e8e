"""`specbench report --open`."""

import webbrowser
from pathlib import Path

import pytest

from tests.cli.calls import specbench
from tests.report.stored_runs import Wish, keep, stored_run

SMALLEST = Wish(drafters=("draft",), ks=(0,), workloads=("code",), num_prompts=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    keep(folder / "reports", "made", stored_run(SMALLEST))
    return folder


def test_the_page_is_opened_in_the_browser(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    ran = specbench("report made --open", cwd=runs)
    assert (ran.code, ran.err) == (0, "")
    assert opened == [(runs / "reports" / "made" / "report.html").as_uri()]


def test_the_report_is_written_although_no_browser_opens(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    ran = specbench("report made --open --format html", cwd=runs)
    assert ran.code == 0
    assert "open reports/made/report.html " in ran.err
    assert (runs / "reports/made/report.html").exists()


def test_open_is_refused_if_no_html_page_is_written(runs: Path) -> None:
    ran = specbench("report made --open --format md,csv", cwd=runs)
    assert ran.code == 2
    assert "--format 'md,csv'" in ran.err
