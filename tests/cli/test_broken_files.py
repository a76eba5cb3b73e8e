"""Every broken file through the command line: exit 2, type, file, line and values, no traceback."""

import re

import pytest

from tests.broken_pairings import BROKEN_PAIRINGS
from tests.broken_workloads import BROKEN_WORKLOADS
from tests.cli.calls import specbench

PAIRINGS = "targets: {big: {model: owner/big, drafters: {copy: {method: ngram}}}}\n"


def check(ran, broken, folder):
    assert ran.code == 2
    assert ran.out == ""
    assert ran.error is broken.error
    assert "Traceback" not in ran.err
    assert re.search(f"^error: {re.escape(broken.place)}.*{broken.names}", ran.err, re.MULTILINE)
    assert not (folder / "reports").exists()


@pytest.mark.sampled(one_in=2, every=["broken", "dry"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry-run"])
@pytest.mark.parametrize("broken", BROKEN_PAIRINGS, ids=lambda broken: broken.name)
def test_a_broken_pairings_file_exits_2(broken, dry, empty_folder):
    broken.write(empty_folder)
    check(specbench("run", *dry, cwd=empty_folder), broken, empty_folder)


@pytest.mark.slow
@pytest.mark.sampled(one_in=2, every=["broken", "dry"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry-run"])
@pytest.mark.parametrize("broken", BROKEN_WORKLOADS, ids=lambda broken: broken.name)
def test_a_broken_workload_exits_2(broken, dry, empty_folder):
    (empty_folder / "pairings.yaml").write_text(PAIRINGS)
    broken.write(empty_folder)
    ran = specbench("run", "-w", broken.workload, "--device", "cpu", *dry, cwd=empty_folder)
    check(ran, broken, empty_folder)


def test_a_pairings_file_given_by_name_is_read_instead(empty_folder):
    (empty_folder / "pairings.yaml").write_text(PAIRINGS)
    ran = specbench("list pairings --config other.yaml", cwd=empty_folder)
    assert ran.code == 2
    assert re.fullmatch("error: other.yaml: .*: No such file .*\n", ran.err)


def test_a_pairings_file_that_is_a_folder_is_refused(empty_folder):
    (empty_folder / "pairings.yaml").mkdir()
    ran = specbench("list", "pairings", cwd=empty_folder)
    assert ran.code == 2
    assert re.fullmatch("error: pairings.yaml: .*directory\n", ran.err)


def test_broken_files_have_distinct_names():
    names = [f"{broken.workload}/{broken.name}" for broken in BROKEN_PAIRINGS + BROKEN_WORKLOADS]
    assert len(set(names)) == len(names) > 50
