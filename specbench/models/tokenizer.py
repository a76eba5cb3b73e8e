"""Text to token ids: chat templates, and the comparison of vocabularies."""

import hashlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import psutil
from jinja2 import TemplateError
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from specbench.errors import CompatibilityError, ModelError, WorkloadError
from specbench.files.model_spec import ModelSpec
from specbench.files.tokenizer import (
    TEMPLATE_CLOCK,
    Difference,
    Vocabulary,
    compare_vocabularies,
    mismatch_words,
    prints_clock,
    spelling_of,
)
from specbench.models.library_errors import load_advice
from specbench.models.loading import load_config
from specbench.records import Message

MOST_S = 30.0  # of processor time, so that a busy machine changes nothing
MOST_GROWTH = 2**31  # bytes of memory
_LOOK_S = 0.1


class TooMuchWorkError(Exception):
    """The work takes more than is allowed; the text names the resource."""


@contextmanager
def limited_work() -> Iterator[None]:
    """TooMuchWorkError if the block takes more. Only in the main thread, which has signals."""
    if current_thread() is not main_thread():
        yield
        return
    process = psutil.Process()
    most_bytes = process.memory_info().rss + MOST_GROWTH
    left_s = MOST_S

    def check(*_: object) -> None:
        nonlocal left_s
        left_s -= _LOOK_S
        if left_s <= 0:
            raise TooMuchWorkError(f"{MOST_S:g} s of processor time")
        if process.memory_info().rss > most_bytes:
            raise TooMuchWorkError(f"{MOST_GROWTH / 2**30:g} GiB of memory")

    before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # Its default is to end the process, and a last signal may be on its way to another thread.
        signal.signal(signal.SIGVTALRM, before if callable(before) else lambda *_: None)


# What transformers raises for arbitrary files, and its sandbox for templates.
_READ_ERRORS = (
    *(OSError, ValueError, ImportError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, TemplateError),
)


class _TemplateClock(datetime):
    """The clock that chat templates see."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
        return TEMPLATE_CLOCK


chat_template_utils.datetime = _TemplateClock  # templates take no functions as arguments


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, location: str, *, revision: str | None, trust_remote_code: bool) -> None:
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(
                location, revision=revision, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            if Path(location, "config.json").exists():  # read first, and its faults are its own
                folder, trusts = Path(location), trust_remote_code
                load_config(ModelSpec(source=location, folder=folder, trust_remote_code=trusts))
            advice = load_advice(error)
            raise ModelError(f"{location}: its tokenizer cannot be loaded: {advice}") from error
        self._inner.model_max_length = sys.maxsize  # what is too long is for the model to say
        self.location = location
        self.ids_by_token: dict[str, int] = self._inner.get_vocab()

    @property
    def vocabulary(self) -> Vocabulary:
        """All tokens, and which of them are special."""
        added = self._inner.added_tokens_decoder
        special_ids = frozenset(i for i, token in added.items() if token.special)
        inner = getattr(self._inner, "backend_tokenizer", None)
        spelling = None if inner is None else spelling_of(inner.decoder)
        return Vocabulary(self.ids_by_token, special_ids, spelling)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Tokens that the model expects before any text, such as one for its beginning."""
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
        """The date at which the chat template is rendered; "" if it prints none."""
        is_printed = prints_clock(json.dumps(self._inner.chat_template))
        return f"{TEMPLATE_CLOCK:%Y-%m-%d}" if is_printed else ""

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """The ids that the model sees before it answers.

        The template sees TEMPLATE_CLOCK as the time. A model without a chat template gets the
        messages' text, parted by empty lines. Raises WorkloadError if the template refuses the
        conversation or does not come to an end.
        """
        if self._inner.chat_template is None:
            text = "\n\n".join(message.content for message in messages)
            return tuple(self._inner(text)["input_ids"])
        try:
            with limited_work():
                ids = self._inner.apply_chat_template(
                    [{"role": m.role, "content": m.content, **m.extra} for m in messages],
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
        return tuple(ids)

    def ids(self, text: str) -> tuple[int, ...]:
        """The token ids of a text within an answer, without special tokens around it."""
        return tuple(self._inner(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text without special tokens."""
        decoded: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return decoded


def require_same_vocabulary(target: ChatTokenizer, draft: ChatTokenizer) -> Difference:
    """CompatibilityError unless every id that both know stands for the same token in both.

    Special tokens may be named otherwise.
    """
    vocabularies = target.vocabulary, draft.vocabulary
    difference = compare_vocabularies(*vocabularies)
    if difference.wrong:
        raise CompatibilityError(
            f"{draft.location} cannot draft for {target.location}: "
            f"{mismatch_words(*vocabularies, difference)}"
        )
    return difference
