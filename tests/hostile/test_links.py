"""Links are followed to read a named path, but never to write or remove files elsewhere."""

import os
import shutil
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.inputs.config import load_pairings
from specbench.inputs.workloads import load_workload
from specbench.runs import list_runs, load_run, resume_run
from specbench.whole_file import write_new, write_whole
from tests.cli.calls import specbench
from tests.hostile.file_readers import RUN

RUN_ID = "20261121-010203-a1b2"
PRECIOUS = "one line of somebody's, without an end"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run, and an unrelated file next to it."""
    shutil.copytree(RUN, tmp_path / "reports" / RUN_ID)
    (tmp_path / "precious").write_text(PRECIOUS)
    return tmp_path / "reports"


@pytest.mark.parametrize("name", ["records.jsonl", "run.json", "lock", "servers/vllm.log"])
def test_a_run_with_a_link_in_it_is_not_resumed(name: str, root: Path) -> None:
    link, precious = root / RUN_ID / name, root.parent / "precious"
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        shutil.move(link, precious)
    before = precious.read_bytes()
    link.symlink_to(precious)
    with pytest.raises(StoreError, match=f"{name}.*link"):
        resume_run(root, RUN_ID)
    assert precious.read_bytes() == before
    if name != "lock":
        assert load_run(RUN_ID, root).run  # it can be read


def test_resuming_a_link_to_another_file_leaves_it_unchanged(root: Path) -> None:
    records = root / RUN_ID / "records.jsonl"
    records.unlink()
    records.symlink_to(root.parent / "precious")
    with pytest.raises(StoreError):
        resume_run(root, RUN_ID)
    assert (root.parent / "precious").read_text() == PRECIOUS


def test_a_report_replaces_a_symbolic_link(root: Path) -> None:
    names = ("report.md", "cells.csv")
    for name in names:
        (root / RUN_ID / name).symlink_to(root.parent / "precious")
    assert specbench("report", RUN_ID, "--format", "md,csv", cwd=root.parent).code == 0
    assert (root.parent / "precious").read_text() == PRECIOUS
    for name in names:
        assert not (root / RUN_ID / name).is_symlink()
        assert len((root / RUN_ID / name).read_bytes()) > 1000


@pytest.mark.parametrize("name", ["records.jsonl", "run.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_endless_file_is_refused_in_a_run(kind: str, name: str, root: Path) -> None:
    place = root / RUN_ID / name
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match=RUN_ID):
        load_run(root / RUN_ID, root)
    (listing,) = list_runs(root)
    assert f"{name}: not a file" in listing.problem


def test_paths_given_by_the_user_may_be_symbolic_links(root: Path) -> None:
    folder = root.parent
    (folder / "real").mkdir()
    (folder / "real" / "p.jsonl").write_text('{"id": "a", "turns": ["One"]}\n')
    (folder / "real" / "pairings.yaml").write_text(
        "targets:\n  t:\n    model: owner/t\n    drafters:\n      n: {method: ngram}\n"
    )
    (folder / "run").symlink_to(root / RUN_ID)
    for name in ("p.jsonl", "pairings.yaml"):
        (folder / name).symlink_to(folder / "real" / name)
    assert [prompt.id for prompt in load_workload(str(folder / "p.jsonl")).prompts] == ["a"]
    assert [pairing.name for pairing in load_pairings(folder / "pairings.yaml").all] == ["t/n"]
    assert load_run(folder / "run", root).run == load_run(RUN_ID, root).run


def test_output_to_a_symbolic_link_is_written_to_its_target(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared" / "a.json", tmp_path / "a.json"
    shared.parent.mkdir()
    link.symlink_to(shared)
    for text in ("new", "newer"):
        write_whole(link, text)
        assert (link.is_symlink(), shared.read_text()) == (True, text)
    with pytest.raises(FileExistsError):
        write_new(link, "newest")
    shared.unlink()
    with pytest.raises(FileExistsError):
        write_new(link, "through a link that leads nowhere")
    assert not shared.exists()
