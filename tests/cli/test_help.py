import pytest

from specbench.gate.check import default_tolerances
from tests.cli.calls import specbench

COMMANDS = (
    "run",
    "sweep-k",
    "verify",
    "pair",
    "report",
    "export",
    "import",
    "history",
    "check",
    "baseline",
    "list",
    "doctor",
)


def test_help_names_every_command(tmp_path):
    ran = specbench("--help", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert all(f"\n  {command} " in ran.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_within_80_columns(command, tmp_path):
    ran = specbench(command, "--help", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert f"specbench {command}" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_every_option_says_what_it_does(tmp_path):
    for command in COMMANDS:
        lines = specbench(command, "--help", cwd=tmp_path).out.splitlines()
        options = [line for line in lines if line.startswith("  -")]
        assert options
        for line in options:
            # An option's own help, or where its names are long the next line, says something.
            name = line.split("  ")[1]
            described = line.removeprefix(f"  {name}").strip() or lines[lines.index(line) + 1]
            assert described.strip(), f"{command} {name}"


def test_without_a_command_help_is_shown(tmp_path):
    ran = specbench(cwd=tmp_path)
    assert "Usage: " in ran.out + ran.err
    assert "sweep-k" in ran.out + ran.err


def test_the_gates_help_has_the_tolerances_that_it_judges_by(tmp_path):
    said = "".join(specbench("check", "--help", cwd=tmp_path).out.split())
    gpu, cpu = (default_tolerances(device) for device in ("cuda", "cpu"))
    for one in {*gpu, *cpu}:
        assert f"{one.metric}:{100 * one.share:.3g}%" in said
    assert "onaCPU" in said
