"""Every message in the source of specbench/, with its exception or stream."""

import ast
import re
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).parents[2] / "specbench"
_NO_MESSAGES = {"demo", "kernels"}  # a corpus and programs


def all_facts(folder: Path) -> dict[str, dict[str, str]]:  # noqa: ARG001
    """Messages by file, then by template: the exception or stream that it is given to, or "text".

    A "text" has at least four words; docstrings are excluded.
    """
    facts = {}
    for path in _SOURCE.rglob("*.py"):
        name = path.relative_to(_SOURCE)
        if name.parts[0] not in _NO_MESSAGES:
            facts[name.as_posix()] = _messages(ast.parse(path.read_text(encoding="utf-8")))
    return {name: messages for name, messages in facts.items() if messages}


def _messages(node: ast.AST, receiver: str = "text") -> dict[str, str]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return {}
    if isinstance(node, ast.Call):
        receiver = _receiver(node) or receiver
    template = _template(node)
    num_words = len(re.findall(r"\b[^\W\d_]{2,}\b", re.sub(r"{.*?}", "", template)))
    is_message = num_words >= (4 if receiver == "text" else 2)
    messages = {template: receiver} if is_message else {}
    for child in ast.iter_child_nodes(node):
        if not (is_message and isinstance(child, ast.Constant)):  # a part of this one
            messages |= _messages(child, receiver)
    return messages


def _receiver(call: ast.Call) -> str:
    """The exception that a call makes, or "stderr"."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name == "echo" and any(keyword.arg == "err" for keyword in call.keywords):
        return "stderr"
    return name if re.fullmatch(r"[A-Z]\w*Error", name) else ""


def _template(node: Any) -> str:
    """The text of a node, with `{name}` for a variable and `{...}` for what is computed; "" if it
    is not a string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        is_plain = isinstance(node.value, ast.Name | ast.Attribute)
        return f"{{{ast.unparse(node.value) if is_plain else '...'}}}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
