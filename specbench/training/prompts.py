"""What the target is asked, and which prompts are kept for measuring."""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from specbench.demo.conversations import DRAFT_START, END, training_conversations
from specbench.demo.conversations import SEED as CORPUS_SEED
from specbench.errors import UsageError, WorkloadError
from specbench.inputs.workloads import find_workloads, load_workload
from specbench.models.tokenizer import Tokenizer
from specbench.records import Message, Prompt

HELD_OUT_ONE_IN = 20

Ids = tuple[int, ...]
T = TypeVar("T")


class Question(NamedTuple):
    """A prompt as the target reads it, and whether heads are measured on its answer."""

    ids: Ids
    is_held_out: bool


class QuestionSet(NamedTuple):
    """All questions, held-out ones first, and hashes of their sources; `notes`: what was left
    out."""

    questions: tuple[Question, ...]
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


def workload_questions(
    names: Sequence[str],
    tokenizer: Tokenizer,
    most_tokens: int,
    seed: int,
    field: str | None = None,
) -> QuestionSet:
    """The first turns of named or all shipped workloads; `field`: where rows have the prompt."""
    workloads = [load_workload(name, field=field) for name in (names or find_workloads())]
    prompts = [prompt for workload in workloads for prompt in workload.prompts]

    def ids(prompt: Prompt) -> Ids:
        return tokenizer.prompt_ids(prompt.turns[0], prompt.tools, prompt.template_args)

    sources = {workload.name: workload.sha256 for workload in workloads}
    notes = tuple(note for workload in workloads for note in workload.notes)
    return QuestionSet(_questions(prompts, ids, most_tokens, seed), sources, notes)


def corpus_questions(
    tokenizer: Tokenizer, most_tokens: int, seed: int, *, end: int = END
) -> QuestionSet:
    """Conversations of the embedded target's corpus that its own workloads do not ask.

    The target was trained on others. Of a conversation of several turns the first ones may
    stand before the question, as they were written.
    """
    conversations = training_conversations(CORPUS_SEED, DRAFT_START, end)
    cut = []
    for number, conversation in enumerate(conversations):
        messages = conversation.messages()
        num_turns = 1 + number % len(conversation.turns)
        has_system = conversation.system is not None
        cut.append(messages[: 2 * num_turns - 1 + has_system])

    def ids(messages: list[dict[str, str]]) -> Ids:
        told = [Message(role=m["role"], content=m["content"]) for m in messages]  # type: ignore[arg-type]
        return tokenizer.prompt_ids(told)

    name = f"the embedded corpus, seed {CORPUS_SEED}, conversations {DRAFT_START} to {end - 1}"
    digest = hashlib.sha256(repr(cut).encode()).hexdigest()
    return QuestionSet(_questions(cut, ids, most_tokens, seed), {name: digest})


def _questions(
    prompts: Sequence[T], ids_of: Callable[[T], Ids], most_tokens: int, seed: int
) -> tuple[Question, ...]:
    found: dict[Ids, Question] = {}
    refused: WorkloadError | None = None
    for prompt in prompts:
        try:
            ids = ids_of(prompt)
        except WorkloadError as error:  # a chat template need not take every conversation
            refused = error
            continue
        if 1 < len(ids) <= most_tokens:
            found[ids] = Question(ids, is_held_out(ids))
    if not any(not q.is_held_out for q in found.values()):
        if refused is not None:
            raise refused
        raise UsageError(
            f"of {len(prompts)} prompts none is left to train on: one in {HELD_OUT_ONE_IN} is kept "
            f"for measuring, and they may have {most_tokens} tokens; give more with --workload"
        )
    if not any(q.is_held_out for q in found.values()):  # few prompts: the one that is nearest
        nearest = min(found, key=_hash)
        found[nearest] = Question(nearest, True)
        if len(found) == 1:
            raise UsageError("one prompt cannot be trained and measured on; give --workload more")
    return tuple(sorted(found.values(), key=lambda q: (not q.is_held_out, _hash((seed, *q.ids)))))


def is_held_out(ids: Ids) -> bool:
    """By the prompt alone, whatever the seed: heads of one target can be compared."""
    return _hash(ids) % HELD_OUT_ONE_IN == 0


def _hash(ids: Ids) -> int:
    return int.from_bytes(hashlib.sha256(repr(ids).encode()).digest()[:8], "big")
