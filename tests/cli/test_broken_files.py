"""Every broken file through the command line: exit 2, file and line, no traceback."""

import pytest

from tests.broken_pairings import BROKEN_PAIRINGS
from tests.broken_workloads import BROKEN_WORKLOADS
from tests.cli.calls import specbench
from tests.test_broken_inputs import write

PAIRINGS = "targets: {big: {model: owner/big, drafters: {copy: {method: ngram}}}}\n"


def check(ran, broken, folder):
    assert ran.code == 2
    assert ran.out == ""
    assert f"\nerror: {broken.place}" in f"\n{ran.err}"
    assert broken.says in ran.err
    assert "Traceback" not in ran.err
    assert not (folder / "reports").exists()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry-run"])
@pytest.mark.parametrize("broken", BROKEN_PAIRINGS, ids=lambda broken: broken.name)
def test_a_broken_pairings_file_is_a_message_and_exit_code_2(broken, dry, empty_folder):
    write(broken, empty_folder)
    check(specbench("run", *dry, cwd=empty_folder), broken, empty_folder)


@pytest.mark.slow
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry-run"])
@pytest.mark.parametrize("broken", BROKEN_WORKLOADS, ids=lambda broken: broken.name)
def test_a_broken_workload_is_a_message_and_exit_code_2(broken, dry, empty_folder):
    (empty_folder / "pairings.yaml").write_text(PAIRINGS)
    write(broken, empty_folder)
    ran = specbench("run", "-w", broken.workload, "--device", "cpu", *dry, cwd=empty_folder)
    check(ran, broken, empty_folder)


def test_a_pairings_file_given_by_name_is_read_instead(empty_folder):
    (empty_folder / "pairings.yaml").write_text(PAIRINGS)
    ran = specbench("list", "pairings", "--pairings", "other.yaml", cwd=empty_folder)
    assert ran.code == 2
    assert ran.err == "error: other.yaml: cannot be read: No such file or directory\n"
