"""`specbench schema`: the keys of a command's JSON document."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.listing import print_rows
from specbench.settings.words import one_of

if TYPE_CHECKING:
    from specbench.doc import JsonObject

_COMMANDS = ("run", "sweep-k", "report", "verify", "check", "history", "recommend", "watch", "row")


def schema(
    command: Annotated[
        str,
        typer.Argument(
            help="Command whose --json is described; row: `report --row`.",
            metavar="|".join(_COMMANDS),
            autocompletion=lambda: [*_COMMANDS],
        ),
    ] = "run",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON Schema (draft 2020-12).")
    ] = False,
) -> None:
    """Describe the keys of a command's JSON: path, unit and meaning."""
    described = json_schema(one_of("schema", command, *_COMMANDS))
    if as_json:
        options.print_json(described)
    else:
        print_rows(("key", "unit", "meaning"), [*_keys(described, described["$defs"])])


def json_schema(command: str) -> dict[str, Any]:
    """JSON Schema of what the command prints with --json."""
    from specbench.doc import schema_of

    draft = "https://json-schema.org/draft/2020-12/schema"
    title = f"specbench {'report --row' if command == 'row' else command} --json"
    return {"$schema": draft, "title": title, **schema_of(_document(command).type)}


def _document(command: str) -> "JsonObject":
    match command:
        case "verify":
            from specbench.verify.report import DOCUMENT
        case "check":
            from specbench.report.gate import DOCUMENT
        case "history":
            from specbench.report.history import DOCUMENT
        case "recommend":
            from specbench.report.recommendation import DOCUMENT
        case "row":
            from specbench.report.rows import ROW as DOCUMENT
        case "watch":
            from specbench.watch.report import DOCUMENT
        case _:
            from specbench.report.document_json import DOCUMENT
    return DOCUMENT


def _keys(
    part: Mapping[str, Any], objects: Mapping[str, Any], path: str = ""
) -> Iterator[dict[str, str]]:
    """A row per key, those of nested objects after the key that has them; `[]`: of a list."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        part = objects[name]
        objects = {**objects, name: {}}  # one that contains itself is described once
    for name, key in part.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield {"key": below, "unit": key.get("unit", ""), "meaning": key["description"]}
        yield from _keys(key, objects, below)
    if "items" in part:
        yield from _keys(part["items"], objects, f"{path}[]")
    if isinstance(values := part.get("additionalProperties"), dict):
        yield from _keys(values, objects, f"{path}.NAME")
    for choice in part.get("anyOf", ()):
        yield from _keys(choice, objects, path)
