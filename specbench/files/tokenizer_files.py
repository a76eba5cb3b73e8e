"""A tokenizer's vocabulary and a chat template, read from their files; no code of theirs runs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.errors import ModelError
from specbench.files.folder import LARGEST_JSON, local_file, read_json
from specbench.files.spelling import spelling_of
from specbench.files.vocabulary import Vocabulary

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
NO_TOKENIZER = (
    "there is no tokenizer.json, nor another tokenizer file; copy the tokenizer's files of the "
    "model it was made from"
)
# Without tokenizer.json these make the vocabulary: equal files are equal vocabularies.
OTHER_VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
# The time at which chat templates are rendered, so that prompts are the same on every day. It is
# the date that Llama 3's own template has if it is given none.
TEMPLATE_CLOCK = datetime(2024, 7, 26, tzinfo=UTC)


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The tokens of tokenizer.json and tokenizer_config.json; None without the former.
    ModelError."""
    inner = read_tokenizer(folder)
    if inner is None:
        return None
    ids_by_token: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    special = {i for i, token in inner.get_added_tokens_decoder().items() if token.special}
    for i, content, is_special in _added(_config(folder)):
        ids_by_token.setdefault(content, i)
        if is_special:
            special.add(i)
    return Vocabulary(ids_by_token, frozenset(special), spelling_of(inner.decoder))


def read_tokenizer(folder: Path) -> Any:
    """tokenizer.json as the tokenizers library has it; None if there is none. ModelError."""
    file = local_file(folder, "tokenizer.json")
    if file is None:
        return None
    from tokenizers import Tokenizer  # noqa: PLC0415 - not needed for --help

    if file.stat().st_size > LARGEST_JSON:
        raise ModelError(f"{file} has more than {LARGEST_JSON} bytes; that is not a tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        # The tokenizers library calls a damaged file a plain Exception.
        if type(error) is not Exception:
            raise
        raise ModelError(f"{file} cannot be read: {error}") from error


def read_chat_template(folder: Path) -> str | None:
    """The template that prompts are made with; None where there is none. ModelError."""
    file = local_file(folder, "chat_template.jinja")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    beside = local_file(folder, "chat_template.json")
    given = _config(folder).get("chat_template")
    if given is None and beside is not None:
        given = read_json(beside).get("chat_template")
    if isinstance(given, list):  # several by name, of which `default` is used
        named = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def prints_clock(template: str) -> bool:
    """Whether a chat template asks for the time."""
    return "strftime_now" in template


def _config(folder: Path) -> Mapping[str, Any]:
    file = local_file(folder, "tokenizer_config.json")
    return {} if file is None else read_json(file)


def _added(config: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """Id, text and whether it is special, of tokens that only tokenizer_config.json has."""
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return []
    return [
        (int(i), str(entry["content"]), bool(entry.get("special")))
        for i, entry in entries.items()
        if str(i).isdecimal() and isinstance(entry, dict) and "content" in entry
    ]
