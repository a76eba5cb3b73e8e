"""What a shell completes: commands, options, and the names that they take."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.methods import listed_methods
from specbench.settings.words import ENGINES, EXPORTED
from tests.cli.calls import specbench
from tests.test_layering import HEAVY, modules_after

PAIRINGS = "targets: {big: {model: owner/big, drafters: {copy: {method: ngram}}}}\n"
RUNS = ("20261121-010203-a1b2", "20261122-010203-c3d4")


def typed_in_bash(line: str) -> dict[str, str]:
    """The variables that bash's script passes on for a line; its last word is incomplete."""
    num = len(line.split(" ")) - 1
    return {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(num)}


def completed(variables: dict[str, str], cwd: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        ran = specbench(cwd=cwd)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pairings file, a workload and two runs; a folder without run.json is no run."""
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    (tmp_path / "other.yaml").write_text(PAIRINGS.replace("big", "huge"))
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "chess.jsonl").touch()
    for name in RUNS:
        (tmp_path / "reports" / name).mkdir(parents=True)
        (tmp_path / "reports" / name / "run.json").touch()
    (tmp_path / "reports" / "20261123-none").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "variables",
    [
        typed_in_bash("specbench sw"),
        {"_SPECBENCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "specbench sw"},
        {
            "_SPECBENCH_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": "specbench sw",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    ],
    ids=lambda variables: variables["_SPECBENCH_COMPLETE"],
)
def test_shells_complete_commands(variables: dict[str, str], tmp_path: Path) -> None:
    assert any("sweep-k" in word for word in completed(variables, tmp_path))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("run bi", ["big", "big/copy"]),
        ("run big/copy demo/eagle3", ["demo/eagle3", "demo/eagle3-tree"]),
        ("run --config other.yaml hu", ["huge", "huge/copy"]),
        ("run --config other.yaml bi", []),
        *((f"{command} big/", ["big/copy"]) for command in ("sweep-k", "verify", "doctor")),
        *((f"{command} big/", ["big/copy"]) for command in ("inspect", "export")),
        ("history --pairing big/", ["big/copy"]),
        ("pair bi", ["big"]),
        ("run -w ch", ["chat", "chess"]),
        ("run --workload qa,ch", ["qa,chat", "qa,chess"]),
        ("run --workload chat --workload che", ["chess"]),
        ("recommend -w che", ["chess"]),
        ("run --engine ", [*ENGINES]),
        ("verify --engine builtin,v", ["builtin,vllm"]),
        ("export big --engine ", [*EXPORTED]),
        ("run --method ", [method.name for method in listed_methods()]),
        *((f"{command} 2026112", [*RUNS]) for command in ("report", "recommend", "baseline")),
        ("report 20261121-010203-a1b2 20261122", [RUNS[1]]),
        ("check baseline.json 20261122", [RUNS[1]]),
        ("run --resume la", ["latest"]),
        ("pair --resume 20261121", [RUNS[0]]),
        ("export big --run 20261121", [RUNS[0]]),
        ("report --runs-dir nowhere 2026", []),
        ("list wor", ["workloads"]),
    ],
)
def test_names_are_completed(line: str, names: list[str], folder: Path) -> None:
    assert sorted(completed(typed_in_bash(f"specbench {line}"), folder)) == sorted(names)


@pytest.mark.parametrize("text", ["targets: {big: {modle: x}}", "[", "\0", None])
def test_a_pairings_file_that_cannot_be_read_has_no_names(text: str | None, folder: Path) -> None:
    (folder / "pairings.yaml").unlink()
    if text is None:
        (folder / "pairings.yaml").mkdir()
    else:
        (folder / "pairings.yaml").write_text(text)
    assert completed(typed_in_bash("specbench run big"), folder) == []


def test_completing_a_pairing_imports_nothing_heavy(folder: Path) -> None:
    variables = typed_in_bash("specbench run bi")
    code = (
        f"import os\nos.environ |= {variables!r}\nsys.argv = ['specbench']\n"
        "from specbench.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
    )
    modules = modules_after(code, folder)
    assert "specbench.inputs.config" in modules
    assert not modules & HEAVY


def test_bash_completes_with_the_script_that_it_installs(folder: Path) -> None:
    command = folder / "bin" / "specbench"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom specbench.cli import main\nmain()\n")
    command.chmod(0o755)
    environment = os.environ | {
        "HOME": str(folder),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    terminal, its_end = pty.openpty()
    install = ["bash", "-c", "specbench --install-completion; true"]
    subprocess.run(install, env=environment, cwd=folder, stdout=its_end, check=True)
    os.close(its_end)
    assert "\N{SYMBOL FOR ESCAPE}" not in os.read(terminal, 10_000).decode()
    os.close(terminal)
    script = (
        "source ~/.bashrc; COMP_WORDS=(specbench run big/); COMP_CWORD=2; "
        '$(complete -p specbench | sed "s/.*-F //; s/ .*//") specbench; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("big/copy\n", "")
