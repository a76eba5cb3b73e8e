import re
import shlex
from dataclasses import replace
from importlib.metadata import version

import pytest
from typer.main import get_command

from specbench.bench.planning import plan_run
from specbench.cli import app, prepare_arguments
from specbench.cli.measure import over_budget
from specbench.gate.check import default_tolerances
from specbench.inputs.config import load_pairings
from specbench.settings import ForecastSettings, RunSettings
from tests.cli.calls import specbench

COMMANDS = (
    "run",
    "sweep-k",
    "verify",
    "inspect",
    "pair",
    "report",
    "export",
    "import",
    "watch",
    "history",
    "check",
    "baseline",
    "schema",
    "list",
    "doctor",
    "init",
    "recommend",
)


def test_help_names_every_command_in_its_group(tmp_path):
    ran = specbench("--help", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    groups = dict(re.findall(r"^([A-Z][a-z ]+):\n((?:  .+\n)+)", ran.out, re.MULTILINE))
    listed = {
        heading: re.findall("^  ([a-z]\\S+) ", lines, re.MULTILINE)
        for heading, lines in groups.items()
    }
    assert listed == {
        "Options": [],
        "Measure": ["run", "sweep-k", "pair", "verify", "inspect", "watch"],
        "Read results": ["report", "recommend", "history", "check", "baseline", "schema"],
        "Deploy and exchange": ["export", "import"],
        "Set up": ["init", "doctor", "list"],
    }


@pytest.mark.parametrize("command", ["run", "sweep-k", "verify"])
def test_rare_options_are_in_help_all_only(command, tmp_path):
    usual, everything = (
        set(
            re.findall(
                "^  (-.*?)(?:  |$)", specbench(command, option, cwd=tmp_path).out, re.MULTILINE
            )
        )
        for option in ("--help", "--help-all")
    )
    rare = everything - usual
    assert usual - everything == {"--help-all"}
    assert {"--threads N", "-c, --config FILE"} <= rare
    words = f"with {len(rare)} more options."
    assert words in specbench(command, "--help", cwd=tmp_path).out
    assert len(usual) <= 27


def test_help_all_without_a_command_has_every_option_of_every_command(tmp_path):
    ran = specbench("--help-all", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    parts = ran.out.split("\nUsage: specbench ")
    assert [part.split()[0] for part in parts[1:]] == [*get_command(app).commands]
    for command, part in zip(get_command(app).commands, parts[1:], strict=True):
        alone = specbench(command, "--help-all", cwd=tmp_path).out
        assert part.strip() == alone.removeprefix("Usage: specbench ").strip()


@pytest.mark.parametrize("command", ["run", "sweep-k", "verify"])
@pytest.mark.parametrize(
    ("words", "has_them"),
    [
        ("", False),
        ("--engine builtin,transformers", False),
        ("--engine vllm", True),
        ("--engine=builtin,llama.cpp", True),
        ("--base-url http://localhost:1", True),
    ],
)
def test_options_of_servers_are_in_the_help_of_a_server(command, words, has_them, tmp_path):
    out = specbench(command, *words.split(), "--help", cwd=tmp_path).out
    options = set(re.findall("^  (?:-., )?(--[a-z-]+)", out, re.MULTILINE))
    of_servers = {"--base-url", "--engine-args", "--engine-version", "--startup-timeout"}
    assert of_servers & options == (of_servers if has_them else set())
    assert "--threads" not in options


@pytest.mark.parametrize(("command", "forecast"), [("pair", True), ("run", True), ("run", False)])
def test_help_states_how_many_prompts_are_measured(command, forecast, tmp_path):
    settings = replace(RunSettings.unset(), forecasting=ForecastSettings(forecast=forecast))
    (plan,) = plan_run(settings, load_pairings().select(["demo/draft"])).targets
    num_measured = len(plan.measured(plan.workloads[0]))
    text = " ".join(specbench(command, "--help", cwd=tmp_path).out.split())
    (default,) = re.findall("--num-prompts N .*? Default: (.*?);", text)
    assert str(num_measured) in re.findall(r"\d+", default)


def test_bounds_and_defaults_are_in_words(tmp_path):
    out = " ".join(specbench("run", "--help-all", cwd=tmp_path).out.split())
    assert "--top-p N Nucleus sampling; 1 is off. From 0 to 1. Default: 1." in out
    assert "--threads N CPU threads. At least 1. Default: the fastest in a short trial." in out
    assert "--runs-dir DIR Folder of stored runs. Default: reports." in out
    assert "<=x" not in out
    required = " ".join(specbench("check", "--help", cwd=tmp_path).out.split())
    assert re.search(r"BASELINE [^.]*\. Required\.", required)


def test_inspect_states_its_own_defaults(tmp_path):
    out = " ".join(specbench("inspect", "--help", cwd=tmp_path).out.split())
    assert "Maximum tokens per answer. From 2 to 131,072. Default: 128." in out
    assert "that the file names" not in out  # it needs one pairing


def test_every_value_except_numbers_has_its_own_placeholder(tmp_path):
    numbers = set()
    for command in COMMANDS:
        out = specbench(command, "--help-all", cwd=tmp_path).out
        numbers |= set(re.findall("^  (?:-., )?(--\\S+) N(?:  |$)", out, re.MULTILINE))
        assert not re.search(r"<(?:list|int|float|str|path)", out), command
    kinds = {
        (", ".join(parameter.opts), str(parameter.type_descriptor.annotation))
        for command in get_command(app).commands.values()
        for parameter in command.params
        if numbers.intersection(parameter.opts)
    }
    lists = {name for name, kind in kinds if "int" not in kind and "float" not in kind}
    assert lists == {
        "--temperature",
        "--concurrency, --max-concurrency",
        "--prompt-tokens",
        "--plan-context",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_within_80_columns(command, tmp_path):
    ran = specbench(command, "--help", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert f"specbench {command}" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_every_option_has_a_description(tmp_path):
    for command in COMMANDS:
        lines = specbench(command, "--help", cwd=tmp_path).out.splitlines()
        options = [line for line in lines if line.startswith("  -")]
        assert options
        for line in options:
            # An option has a help text, on the next line if its names are long.
            name = line.split("  ")[1]
            described = line.removeprefix(f"  {name}").strip() or lines[lines.index(line) + 1]
            assert described.strip(), f"{command} {name}"


def test_options_are_listed_under_the_heading_of_their_group(tmp_path):
    lines = specbench("run", "-h", cwd=tmp_path).out.splitlines()
    headings = [n for n, line in enumerate(lines) if line.endswith(":") and line[0] != " "]
    assert len(headings) >= 8
    index = lines.index("Your own pair, without a pairings file:")
    assert lines[index + 1].startswith("  --target MODEL")
    assert lines[headings[-1]] == "Options:"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_that_it_understands(command, tmp_path):
    out = specbench(command, "--help", cwd=tmp_path).out
    example = " ".join(out.partition("Example: specbench ")[2].split())
    name, *arguments = shlex.split(example)
    assert name == command
    parser = get_command(app).get_command(None, command)
    assert parser.make_context(command, prepare_arguments([name, *arguments])[1:]).params


def test_specbench_without_a_command_prints_three_first_commands(tmp_path):
    ran = specbench(cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("\n  specbench ") == 3
    assert max(map(len, ran.out.splitlines())) <= 80


def test_the_version_is_the_packages(tmp_path):
    assert specbench("--version", cwd=tmp_path).out == f"specbench {version('specbench-llm')}\n"


def test_the_help_of_check_lists_the_default_tolerances(tmp_path):
    help_text = "".join(specbench("check", "--help", cwd=tmp_path).out.split())
    gpu, cpu = (default_tolerances(device) for device in ("cuda", "cpu"))
    for tolerance in {*gpu, *cpu}:
        assert f"{tolerance.metric}:{100 * tolerance.share:.3g}%" in help_text
    assert "onaCPU" in help_text


def test_a_run_far_over_its_budget_has_a_note():
    assert over_budget(25, 37) is None
    assert over_budget(None, 1000) is None
    assert re.match("took 133 s .*25 s: ", over_budget(25, 133) or "")
