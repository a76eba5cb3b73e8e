"""Imports point down through the layers, and analyzing commands start without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from specbench.methods import METHODS

PACKAGE = Path(__file__).parents[1] / "specbench"
DOCUMENTS = ("run", "verify", "check", "history", "recommend", "row")  # of `specbench schema`
BASE = {"", "errors", "stats", "settings", "records", "footprint"}
BASE |= {"whole_file", "untrusted", "doc", "library_facts", "own_process"}
FILES = {"shipped", "inputs", "files", "topology", "methods"}
DECIDING = {*BASE, *FILES, "metrics", "decide"}
ANALYZING = {*DECIDING, "words", "runs", "gate", "importers", "fit", "forecast", "export"}
DECODING = {*BASE, *FILES, "models", "forward", "decode"}
DRIVING = {*DECODING, "drafters", "engines"}

# Package, or file -> packages that it may import; "" is specbench itself (its version).
MAY_IMPORT = {
    "": {"notebook"},  # for type checkers; at run time at the first use of `load`
    "errors": set(),
    "whole_file": {"errors"},
    "untrusted": set(),
    "library_facts": {"errors"},
    "own_process": set(),
    "shipped": set(),
    "footprint": set(),
    "doc": set(),
    "stats": {"errors", "doc"},  # its functions take numbers, not records
    "settings": {"errors", "doc"},
    "records": {"stats", "settings", "doc"},
    "topology": {"errors", "footprint"},
    "files": {"errors", "shipped", "topology", "library_facts"},
    "methods": {"errors", "footprint", "files", "topology", "settings"},
    "inputs": {*BASE, "shipped", "files", "methods"},
    "runs": BASE,
    "metrics": {*BASE, "runs"},
    "gate": {*BASE, "runs", "metrics", "words"},
    "importers": {*BASE, "inputs", "methods", "metrics", "words", "engines"},
    "decide": {*BASE, "methods", "metrics"},
    "words": {*BASE, "metrics"},
    "fit": {*BASE, *FILES},
    "forecast": {*DECIDING, "runs", "importers"},
    "export": {*DECIDING, "words", "engines", "importers"},  # whose files both formats are
    "frames": {*BASE, "runs", "metrics", "decide", "words"},
    "report": {*ANALYZING, "frames"},
    "notebook": {*ANALYZING, "frames", "report"},
    "models": {*BASE, *FILES, "fit"},
    "forward": {*BASE, *FILES, "models"},
    "decode": {*BASE, *FILES, "models", "forward"},
    "drafters": {*BASE, *FILES, "models", "forward", "decode"},
    "engines": {*DRIVING, "servers"},
    "probes": BASE,
    "servers": {"errors", "untrusted", "inputs", "records"},
    "demo": set(),
    "verify": {*DRIVING, "words"},
    "tracing": DRIVING,
    "watch": {*DRIVING, *ANALYZING, "servers"} - {"gate"},
    "bench": {*DRIVING, *ANALYZING, "probes", "servers", "verify", "tracing"} - {"gate"},
    "cli": {*DRIVING, *ANALYZING, "report", "probes", "verify", "bench", "watch"},
    "__main__": {"cli"},
}
LOOP = {f"specbench.decode.{name}" for name in ("serving", "scheduler", "decoder")}
AUTOTUNE = "specbench.forward.autotune"
MAY_NOT_IMPORT = {"decode": {AUTOTUNE}, "drafters": {AUTOTUNE, *LOOP}}
TORCH = {"torch", "transformers"}
MEASURING = {*DRIVING, "probes", "verify", "tracing", "bench", "cli"}
MEASURING -= {*BASE, *FILES}


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


FILES_OF_OURS = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports_of(source: str) -> set[str]:
    """Dotted names of everything that a file imports, also within functions."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def packages_imported(source: str) -> set[str]:
    ours = {name for name in imports_of(source) if name.split(".")[0] == "specbench"}
    return {"" if name == "specbench.__version__" else name.split(".")[1] for name in ours}


def files_imported(source: str, names: Iterable[str]) -> set[str]:
    """The imported ones of these files: `from specbench.cli import options` imports the file."""
    imported = imports_of(source)
    return {name if name in names else name.rpartition(".")[0] for name in imported} & {*names}


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def first_cycle(imported: Mapping[str, set[str]]) -> list[str]:
    """Files of the first import cycle; empty if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_packages_import_only_allowed_packages():
    for path, source in FILES_OF_OURS.items():
        package = package_of(path)
        assert packages_imported(source) <= MAY_IMPORT[package] | {package}, path
        names = {name.split(".")[0] for name in imports_of(source)}
        assert not names & TORCH or package in MEASURING, path
        assert not names & {"tools", "tests", "benchmarks"}, path  # not in the wheel


def test_one_file_without_torch_names_a_module_that_has_it_and_starts_a_process_for_it():
    below = {
        path: text for path, text in FILES_OF_OURS.items() if package_of(path) not in MEASURING
    }
    naming = {path.name for path, text in below.items() if '"specbench.models.' in text}
    assert naming == {"loaded_tensors.py"}


def test_there_is_no_import_cycle():
    sources = {dotted(path): source for path, source in FILES_OF_OURS.items()}
    imported = {name: files_imported(source, sources) for name, source in sources.items()}
    assert len(imported) > 100
    assert first_cycle(imported) == []


def test_a_round_imports_neither_its_callers_nor_the_autotuner():
    for path, source in FILES_OF_OURS.items():
        assert not files_imported(source, MAY_NOT_IMPORT.get(package_of(path), ())), path


def test_an_upward_import_and_a_cycle_are_detected():
    assert not packages_imported("from specbench.cli.measure import run") <= MAY_IMPORT["decode"]
    assert files_imported("from specbench.cli import measure", ["specbench.cli.measure"])
    assert files_imported("from specbench.decode.serving import ServingLoop", LOOP)
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


# Only these files may name methods: the table, a method's drafter and files, and the engines.
NAMES_METHODS = ("methods.py", "drafters/*.py", "files/*.py", "engines/served/*.py")
NAMES_METHODS += ("engines/transformers.py",)


def methods_named(source: str) -> set[str]:
    """Names of methods that are compared, matched, or listed with other methods."""
    imports: set[str] = set()
    if not any(f'"{name}"' in source for name in METHODS):
        return imports
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare | ast.MatchValue):
            parts, least = list(ast.walk(node)), 1
        elif isinstance(node, ast.Dict):
            parts, least = node.keys, 2
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):
            parts, least = node.elts, 2
        else:
            continue
        names = {part.value for part in parts if isinstance(part, ast.Constant)} & {*METHODS}
        imports |= names if len(names) >= least else set()
    return imports


def test_method_names_occur_only_in_the_allowed_files():
    for path, source in FILES_OF_OURS.items():
        place = path.relative_to(PACKAGE)
        if not any(place.match(pattern) for pattern in NAMES_METHODS):
            assert methods_named(source) == set(), path


def test_a_comparison_a_table_and_a_case_are_detected():
    assert methods_named('if method != "mtp": ...') == {"mtp"}
    assert methods_named('if method in ("ngram", given): ...') == {"ngram"}
    assert methods_named('RATES = {"mtp": 1, "eagle": 2}') == {"mtp", "eagle"}
    assert methods_named('match method:\n    case "medusa": ...') == {"medusa"}
    assert methods_named('ROW = {"suffix": 1}') == set()


def modules_after(code: str, cwd: Path) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=cwd
    )
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"torch", "transformers", "numpy", "pandas", "matplotlib", "scipy"}


def test_the_statistics_import_no_records():
    allowed = {"__future__", "specbench", "numpy", "scipy", *sys.stdlib_module_names}
    for path in (PACKAGE / "stats").glob("*.py"):
        source = path.read_text()
        assert packages_imported(source) <= {"doc", "errors", "stats"}, path
        assert {name.split(".")[0] for name in imports_of(source)} <= allowed, path


def test_the_statistics_of_the_decoder_and_the_records_import_nothing_heavy(tmp_path):
    code = "import specbench.records, specbench.stats.summaries, specbench.stats.rounds"
    assert not modules_after(code, tmp_path) & HEAVY


@pytest.mark.slow
def test_planning_and_analysis_commands_do_not_import_torch(tmp_path):
    """In one process. An engine may be a server, so its protocol and evidence belong here."""
    results = Path(__file__).parent / "importers" / "files" / "vllm_spec.json"
    given = ["--pairing", "llama/head", "--method", "eagle3", "-w", "mtbench", "--temperature", "0"]
    commands = (
        *(["list", kind] for kind in ("pairings", "workloads", "methods", "metrics", "runs")),
        *(["schema", command, "--json"] for command in DOCUMENTS),
        ["doctor", "demo/ngram", "--json"],
        ["run", "--dry-run"],
        ["pair", "demo", "--draft", "demo:draft", "--draft", "ngram", "--dry-run"],
        ["export", "demo/draft", "--engine", "transformers", "-k", "4"],
        ["import", str(results), *given],
        ["history", "--metric", "mean_acceptance_length"],
    )
    code = "\n".join(
        [
            "import specbench",
            "assert {'load', 'LoadedRun', '__version__'} <= set(dir(specbench))",
            "assert not hasattr(specbench, 'lod')",
            f"assert not {HEAVY!r} & set(sys.modules)",
            "import specbench.report.document, specbench.report.history, specbench.report.terminal",
            "import specbench.watch.traffic",
            "assert not {'jinja2', 'scipy.stats'} & set(sys.modules)",
            "import specbench.bench.served.verification, specbench.engines.engine",
            "import specbench.verify.judge, specbench.verify.report",
            "import specbench.cli as c, specbench.fit.loaded_tensors as compared",
            "compared._Process.ask = lambda *_: {}",  # it has torch: test_loaded_tensors.py
            "sys.modules['specbench.cli.doctor'].check_gpu = lambda: sys.exit('started')",
            f"for command in {commands!r}:",
            "    try:\n        c.app(command)",
            "    except SystemExit as done:\n        assert not done.code, command",
        ]
    )
    assert not modules_after(code, tmp_path) & {"torch", "transformers", "matplotlib"}
