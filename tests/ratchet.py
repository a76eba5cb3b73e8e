"""Numbers of the source that may fall and not rise, stored one per line in ratchet.json.

`python -m tests.ratchet` stores those that fell, and resolves a merge conflict in ratchet.json.
A rise is typed by hand and explained in its commit.
"""

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_suffix(".json")

WORDS = re.compile(
    r"\b(?:tells?|told|alone|beside|besides|anew|likewise|amiss|nobody|anybody|whoever|lies|rooms?)\b"
    r"|(?<!\bplace )(?<!\bline )(?<!\bfile )(?<!\bposition )\bwhere\b"
    r"|\bof (?:(?:its|their|our|your|a) own|ours)\b"
    r"|\bso (?:many|much|deep|few)\b(?! (?:that|as)\b)"
    r"|s an? (?:round|token|second|request|row|prompt|workload|level|weight|step|turn|pairing)\b"
    r"|(?:^|[.:] )Of (?:a|an|the|each|several|what|its|all|such)\b"
    r"|\b(?:is|are) no\b(?! (?:longer|more)\b)"
    r"|\b(?:held|holds?) (?:\w+ ){0,2}(?:to|against)\b"
    r"|\bgo(?:es)? on\b|\bwhat (?:became|becomes|came) of\b|, too\b|\bin turns?\b|\bmade[- ]up\b"
    r"|\bgiv(?:es?|ing|en) up\b|\btold apart\b|\bthe house\b"
)
_OPENERS = re.compile(r"(?:Of|As|Such|Those|By|None|And|Likewise|To|With|Its|What)\b")
_CLASSES = re.compile(
    r"_?(?:Told|Tell|Heard|Seen|Kept|Held|Asked|Where|Here|Beside|Along|Warned|Refused|Raised"
    r"|Examined|Answered|Decided|Paired|Placed)"
)
_FUNCTIONS = re.compile(r"_?(?:told|said|says|beside|own|put_off|brought_back|look|hold|again)")
_VARIABLES = {"one", "own", "others", "found", "asked", "said", "what", "told"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def measure(root: Path) -> dict[str, int]:
    """Sizes and names of specbench/ and tests/; words of specbench/ and of the pages."""
    numbers: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    pages = [*(root / "docs").rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    texts = [
        prose(page.read_text(encoding="utf-8"))
        for page in pages
        if page.exists() and page.name != "families.md"
    ]
    for folder in ("specbench", "tests"):
        sources = [path.read_text(encoding="utf-8") for path in (root / folder).rglob("*.py")]
        numbers[f"files in {folder}"] = len(sources)
        numbers[f"lines in {folder}"] = sum(len(source.splitlines()) for source in sources)
        for source in sources:
            nodes = list(ast.walk(ast.parse(source)))
            numbers[f"unclear names in {folder}"] += sum(map(_is_odd, nodes))
            if folder == "tests":
                continue
            docstrings = [
                ast.get_docstring(n, clean=False) or "" for n in nodes if isinstance(n, _DOCUMENTED)
            ]
            classes.update(n.name.lstrip("_") for n in nodes if isinstance(n, ast.ClassDef))
            numbers["docstrings with an odd first word"] += sum(
                _OPENERS.match(docstring.lstrip()) is not None for docstring in docstrings
            )
            texts += re.findall(r"(?:^|\s)# (.*)", source, re.MULTILINE)
            texts += [n.value for n in nodes if _is_text(n)]
    numbers["class names used more than once"] = sum(count > 1 for count in classes.values())
    numbers["private words"] = sum(len(WORDS.findall(" ".join(text.split()))) for text in texts)
    return dict(sorted(numbers.items()))


def prose(text: str) -> str:
    """The text of a page without its code."""
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    """A docstring or a message: at least four words."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(node.value.split()) >= 4
    )


def _is_odd(node: ast.AST) -> bool:
    """Whether it gives a class, a function or a variable a meaningless name."""
    if isinstance(node, ast.ClassDef):
        return _CLASSES.fullmatch(node.name) is not None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _FUNCTIONS.fullmatch(node.name) is not None
    if isinstance(node, ast.arg):
        return node.arg in _VARIABLES
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _VARIABLES


def stored(text: str) -> dict[str, int]:
    """The stored numbers; the larger of both sides of a merge conflict."""
    pairs = re.findall(r'"(.+)": (\d+)', text)
    return {name: max(int(n) for other, n in pairs if other == name) for name, _ in pairs}


def lowered(limits: dict[str, int], numbers: dict[str, int]) -> str:
    """The file with the numbers that fell; those that rose stay unchanged."""
    return json.dumps({n: min(limits.get(n, v), v) for n, v in numbers.items()}, indent=1) + "\n"


if __name__ == "__main__":
    STORED.write_text(lowered(stored(STORED.read_text()), measure(ROOT)))
