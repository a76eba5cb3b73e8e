"""What drafters there are, read from their source: no torch is imported to list them.

A drafter is one file of this folder whose class carries `@drafter("name", ...)`; the class
docstring is its summary and the keyword-only arguments of `__init__` are its parameters.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specbench.errors import UsageError

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A setting of a drafter under `parameters:` in pairings.yaml."""

    name: str
    type: str
    default: int | float | str | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A drafting method the built-in decoder has."""

    name: str
    module: str
    summary: str
    needs_model: bool
    parameters: tuple[Parameter, ...]


def catalogue(folder: Path = FOLDER) -> tuple[Method, ...]:
    """Every drafter in the folder, by name."""
    return tuple(sorted(_read_folder(folder), key=lambda method: method.name))


def find_method(name: str) -> Method:
    """The method of that name; UsageError names those there are."""
    methods = {method.name: method for method in catalogue()}
    if name not in methods:
        raise UsageError(
            f"the built-in decoder has no method {name!r} in this version; "
            f"it has: {', '.join(methods)}"
        )
    return methods[name]


@cache
def _read_folder(folder: Path) -> tuple[Method, ...]:
    found = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found += [
                    _method(node, mark, path.stem)
                    for mark in node.decorator_list
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "drafter"
                ]
    return tuple(found)


def _method(node: ast.ClassDef, mark: ast.Call, stem: str) -> Method:
    flags = {kw.arg: ast.literal_eval(kw.value) for kw in mark.keywords}
    return Method(
        name=ast.literal_eval(mark.args[0]),
        module=f"specbench.drafters.{stem}",
        summary=(ast.get_docstring(node) or "").split("\n\n")[0],
        needs_model=bool(flags.get("needs_model", False)),
        parameters=tuple(
            Parameter(
                name=arg.arg,
                type=ast.unparse(arg.annotation) if arg.annotation else "",
                default=ast.literal_eval(default) if default else "",
            )
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            for arg, default in zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
        ),
    )
