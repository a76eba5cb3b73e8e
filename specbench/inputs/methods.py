"""The drafting methods there are, read from their source: no torch is imported to list them.

A drafter is one file `drafters/<name>.py` whose class carries `@drafter("name", ...)`. The class
docstring is its summary; the keyword-only arguments of `__init__` are its parameters, and
their annotations say what is allowed: int, float, bool, str, tuple[int, ...] (a tree's widths),
Annotated[int, range(1, 33)], Literal["a", "b"].
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from specbench.errors import UsageError
from specbench.footprint import MOST_DRAFTS, num_static_drafts
from specbench.shipped import PACKAGE

FOLDER = PACKAGE / "drafters"
Setting = int | float | str | bool | tuple[int, ...]

_WIDTHS = "tuple[int, ...]"  # a tree's, level by level
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
    _WIDTHS: (tuple,),
}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    _WIDTHS: "a list of whole numbers above 0",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A setting of a drafter under `parameters:` in pairings.yaml."""

    name: str
    type: str
    default: Setting
    allowed: range | tuple[str, ...] | None = None

    def complaint(self, value: object) -> str | None:
        """What is wrong with a value; None where nothing is."""
        if self.type == _WIDTHS and isinstance(value, tuple):
            return _complaint_of_widths(value)
        right_type = isinstance(value, _TYPES[self.type])
        if isinstance(value, bool) and self.type != "bool":
            right_type = False
        if right_type and (self.allowed is None or value in self.allowed):
            return None
        return f"is {value!r}; {self.wanted} is allowed"

    @property
    def wanted(self) -> str:
        if isinstance(self.allowed, range):
            return f"a whole number from {self.allowed.start} to {self.allowed.stop - 1}"
        if self.allowed is not None:
            *others, last = self.allowed
            return f"{', '.join(others)} or {last}" if others else last
        return _WORDS[self.type]


def _complaint_of_widths(widths: tuple[object, ...]) -> str | None:
    numbers = [width for width in widths if type(width) is int and width > 0]
    if len(numbers) < len(widths):
        return f"is {list(widths)!r}; {_WORDS[_WIDTHS]} is allowed"
    if len(numbers) > MOST_DRAFTS or num_static_drafts(numbers, len(numbers)) > MOST_DRAFTS:
        return f"is {list(widths)!r}; at most {MOST_DRAFTS} drafts in all its levels are allowed"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A drafting method. `is_head`: its model is a head for one target, not a model by itself.

    `draws`: above temperature 0 drafts are drawn from their own distribution, except those of a
    dynamic tree, which are its likeliest. `learns`: it drafts from the answers of other requests.
    `retokenizes`: its model may have another tokenizer than the target.
    """

    name: str
    module: str
    summary: str
    model: Literal["required", "optional", "refused"]
    is_head: bool
    draws: bool
    learns: bool
    retokenizes: bool
    parameters: tuple[Parameter, ...]

    def parameter(self, name: str) -> Parameter:
        """UsageError names those there are."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        allowed = ", ".join(parameter.name for parameter in self.parameters) or "none"
        raise UsageError(f"{self.name}: unknown parameter {name!r}; allowed: {allowed}")


def all_methods(folder: Path = FOLDER) -> tuple[Method, ...]:
    """Every drafter in the folder, by name."""
    return tuple(sorted(_read_folder(folder), key=lambda method: method.name))


def find_method(name: str) -> Method:
    """The method of that name; UsageError names those there are."""
    methods = {method.name: method for method in all_methods()}
    if name not in methods:
        raise UsageError(f"there is no method {name!r}; allowed: {', '.join(methods)}")
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
    marks: dict[str | None, Any] = {kw.arg: ast.literal_eval(kw.value) for kw in mark.keywords}
    return Method(
        name=ast.literal_eval(mark.args[0]),
        module=f"specbench.drafters.{stem}",
        summary=" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()),
        model=marks.get("model", "refused"),
        is_head=bool(marks.get("is_head", False)),
        draws=bool(marks.get("draws", False)),
        learns=bool(marks.get("learns", False)),
        retokenizes=bool(marks.get("retokenizes", False)),
        parameters=tuple(
            _parameter(arg, default)
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            for arg, default in zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
        ),
    )


def _parameter(arg: ast.arg, default: ast.expr | None) -> Parameter:
    allowed: range | tuple[str, ...] | None = None
    annotation = arg.annotation
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = ast.literal_eval(annotation.slice)
        allowed = choices if isinstance(choices, tuple) else (choices,)
        annotation = ast.Name("str")
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation, limits = annotation.slice.elts
        assert isinstance(limits, ast.Call), "Annotated[int, range(first, last + 1)]"
        allowed = range(*(ast.literal_eval(limit) for limit in limits.args))
    assert annotation is not None, f"{arg.arg} needs a type"
    assert default is not None, f"{arg.arg} needs a default"
    return Parameter(
        name=arg.arg,
        type=ast.unparse(annotation),
        default=ast.literal_eval(default),
        allowed=allowed,
    )
