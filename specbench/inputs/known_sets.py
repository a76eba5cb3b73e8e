"""Sets of prompts as they are published: which fields give a set away, and what is read of it."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Form = Literal["text", "turns", "history", "questions", "speech", "request"]


class KnownSet(NamedTuple):
    """Rows that have all `fields`; the first of them is read, in its form:

    text: one user message; turns: a list of them; history: messages up to the one to answer;
    questions: as history, but user messages alone are a turn each; speech: as history, where what
    cannot be asked is skipped; request: the body of an API call.
    """

    name: str
    fields: tuple[str, ...]
    form: Form
    id: tuple[str, ...] = ("id", "question_id")  # the first that a row has; else its number
    then: str = ""  # a field whose text follows the prompt, if there is any
    is_whole: bool = False  # a row has no other fields

    def fits(self, entry: Mapping[str, Any]) -> bool:
        """Whether the row is of this set, as far as its fields tell."""
        has_all = all(field in entry for field in self.fields)
        return has_all and (not self.is_whole or len(entry) == len(self.fields))


# The first that fits is read: a conversation counts before the text that it began with.
KNOWN_SETS = (
    KnownSet("SPEED-Bench, prepared", ("messages", "question_id"), "questions"),
    KnownSet("OpenAI chat", ("messages",), "history"),
    KnownSet("ShareGPT", ("conversations",), "speech"),
    KnownSet("MT-bench, Spec-Bench, SPEED-Bench", ("turns",), "turns"),
    KnownSet("OpenAI batch", ("body", "custom_id"), "request", id=("custom_id",)),
    KnownSet("HumanEval", ("prompt", "task_id", "entry_point"), "text", id=("task_id",)),
    KnownSet("vLLM custom, plain lists", ("prompt",), "text"),
    KnownSet("Alpaca", ("instruction", "input", "output"), "text", then="input"),
    KnownSet("GSM8K", ("question", "answer"), "text", is_whole=True),
    KnownSet("plain text", ("text",), "text"),
)


def known_set(entry: Mapping[str, Any]) -> KnownSet | None:
    """The set that the row is of; None where it is of none."""
    return next((known for known in KNOWN_SETS if known.fits(entry)), None)


def field_of(entry: Mapping[str, Any], path: str) -> Any:
    """The value of a field, or of one inside another: `body.messages`; None where it is not."""
    if path in entry:
        return entry[path]
    first, _, rest = path.partition(".")
    inner = entry.get(first)
    return field_of(inner, rest) if rest and isinstance(inner, dict) else None


def named_set(field: str, value: Any) -> KnownSet:
    """How the field that --prompt-field names is read: by what it holds."""
    form: Form = "text"
    if isinstance(value, list):
        form = "history" if value and all(isinstance(v, dict) for v in value) else "turns"
    return KnownSet("--prompt-field", (field,), form, id=())
