"""Converts conversations to token ids with chat templates, and compares vocabularies."""

import hashlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import psutil
from jinja2 import TemplateError
from transformers import AutoTokenizer

from specbench import library_facts
from specbench.errors import CompatibilityError, ModelError, WorkloadError
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer import (
    TEMPLATE_CLOCK,
    Vocabulary,
    VocabularyDifference,
    compare_vocabularies,
    mismatch_words,
    prints_clock,
    read_vocabulary,
    spelling_of,
)
from specbench.models.library_errors import load_advice
from specbench.models.loading import load_config
from specbench.records import Message

MOST_S = 30.0  # of processor time, so that a busy machine makes no difference
MOST_GROWTH = 2**31  # bytes of additional memory
_CHECK_S = 0.1  # interval between checks


class TooMuchWorkError(Exception):
    """The work exceeds a limit, which the message states."""


@contextmanager
def limited_work() -> Iterator[None]:
    """TooMuchWorkError if the block exceeds a limit; only in the main thread (signals)."""
    if current_thread() is not main_thread():
        yield
        return
    process = psutil.Process()
    most_bytes = process.memory_info().rss + MOST_GROWTH
    left_s = MOST_S

    def check(*_: object) -> None:
        nonlocal left_s
        left_s -= _CHECK_S
        if left_s <= 0:
            raise TooMuchWorkError(f"{MOST_S:g} s of processor time")
        if process.memory_info().rss > most_bytes:
            raise TooMuchWorkError(f"{MOST_GROWTH / 2**30:g} GiB of memory")

    before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CHECK_S, _CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # By default the signal ends the process, and a last one may still be pending.
        signal.signal(signal.SIGVTALRM, before if callable(before) else lambda *_: None)


# Errors of transformers for arbitrary files, and of its sandbox for templates.
_READ_ERRORS = (
    *(OSError, ValueError, ImportError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, TemplateError),
)


class _TemplateClock(datetime):
    """The clock that chat templates see."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
        return TEMPLATE_CLOCK


_module, _name = library_facts.TEMPLATE_CLOCK
if not hasattr(import_module(_module), _name):
    raise library_facts.outdated_fact(f"{_module} has no {_name}")
setattr(import_module(_module), _name, _TemplateClock)  # templates take no functions as arguments


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, location: str, *, revision: str | None, trust_remote_code: bool) -> None:
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(
                location, revision=revision, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            if Path(location, "config.json").exists():  # invalid files have their own messages
                folder, trusts = Path(location), trust_remote_code
                load_config(ModelSpec(source=location, folder=folder, trust_remote_code=trusts))
                read_vocabulary(folder)
            advice = load_advice(error)
            raise ModelError(f"{location}: its tokenizer cannot be loaded: {advice}") from error
        self._inner.model_max_length = sys.maxsize  # the model's limit is checked elsewhere
        self.location = location
        self.ids_by_token: dict[str, int] = self._inner.get_vocab()

    @property
    def vocabulary(self) -> Vocabulary:
        """All tokens, their special ids, and their spelling."""
        added = self._inner.added_tokens_decoder
        special_ids = frozenset(i for i, token in added.items() if token.special)
        inner = getattr(self._inner, "backend_tokenizer", None)
        spelling = None if inner is None else spelling_of(inner.decoder)
        return Vocabulary(self.ids_by_token, special_ids, spelling)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The tokens that the model expects before any text, such as a beginning-of-text token."""
        ids, single = self._inner("a")["input_ids"], self.ids("a")
        start = next((i for i in range(len(ids)) if tuple(ids[i : i + len(single)]) == single), 0)
        return tuple(ids[:start])

    @property
    def sha256(self) -> str:
        """A hash of the vocabulary, its ids and the chat template."""
        facts = json.dumps([sorted(self.ids_by_token.items()), self._inner.chat_template])
        return hashlib.sha256(facts.encode()).hexdigest()

    @property
    def template_sha256(self) -> str:
        """A hash of the chat template; "" without one."""
        template = self._inner.chat_template
        return hashlib.sha256(json.dumps(template).encode()).hexdigest() if template else ""

    @property
    def template_clock(self) -> str:
        """The date at which the chat template is rendered; "" if it prints no date."""
        is_printed = prints_clock(json.dumps(self._inner.chat_template))
        return f"{TEMPLATE_CLOCK:%Y-%m-%d}" if is_printed else ""

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """The token ids of the prompt for a conversation.

        The template sees TEMPLATE_CLOCK as the time. Without a chat template, the prompt is the
        messages' text, separated by empty lines. WorkloadError if the template rejects the
        conversation, renders no token of it, or exceeds the limits of `limited_work`.
        """
        if self._inner.chat_template is None:
            text = "\n\n".join(message.content for message in messages)
            return tuple(self._inner(text)["input_ids"])
        try:
            with limited_work():
                ids = self._inner.apply_chat_template(
                    [m.as_dict(parses_arguments=True) for m in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    add_generation_prompt=True,
                    return_dict=True,
                    **(template_args or {}),
                )["input_ids"]
        except TooMuchWorkError as error:
            raise WorkloadError(
                f"{self.location}: its chat template takes more than {error} for one "
                "conversation; repair chat_template.jinja or tokenizer_config.json"
            ) from error
        except _READ_ERRORS as error:
            raise WorkloadError(
                f"the chat template of {self.location} refuses the conversation: {error}"
            ) from error
        if not ids:
            raise WorkloadError(
                f"{self.location}: its chat template renders no token of the conversation; repair "
                "chat_template.jinja or tokenizer_config.json"
            )
        return tuple(ids)

    def ids(self, text: str) -> tuple[int, ...]:
        """The token ids of a text, without special tokens around it."""
        return tuple(self._inner(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text without special tokens."""
        decoded: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return decoded


def require_same_vocabulary(target: ChatTokenizer, draft: ChatTokenizer) -> VocabularyDifference:
    """The other differences; CompatibilityError unless every common id is the same token in both.

    Special tokens may have different names.
    """
    vocabularies = target.vocabulary, draft.vocabulary
    difference = compare_vocabularies(*vocabularies)
    if difference.wrong:
        raise CompatibilityError(
            f"{draft.location} cannot draft for {target.location}: "
            f"{mismatch_words(*vocabularies, difference)}"
        )
    return difference
