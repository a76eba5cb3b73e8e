"""Training texts: prompts, the target's answers, and the file that stores them.

The built-in decoder generates many answers concurrently, some greedily and some sampled. The first
line of the file states the sources of the texts; every other line is one text. A line that a killed
run left incomplete is dropped.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import NoDrafter
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.errors import StoreError, UsageError, WorkloadError
from specbench.forward.runner import Runner
from specbench.inputs.workloads import find_workloads, load_workload
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Message, Prompt, Request, Sampling
from specbench.records.requests import TEMPLATE_SETTINGS
from tools.demo.corpus import DRAFT_START, END, training_conversations
from tools.demo.corpus import SEED as CORPUS_SEED
from tools.training.settings import not_written

HELD_OUT_ONE_IN = 20

Ids = tuple[int, ...]
T = TypeVar("T")


class TrainingPrompt(NamedTuple):
    """The token ids of a prompt, and whether its answer is only used to measure heads."""

    ids: Ids
    is_held_out: bool


class TrainingPrompts(NamedTuple):
    """All questions, held-out ones first, and the hashes of their sources. `notes` state which
    settings of the prompts were ignored."""

    questions: tuple[TrainingPrompt, ...]
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


def workload_questions(
    names: Sequence[str],
    tokenizer: ChatTokenizer,
    most_tokens: int,
    seed: int,
    field: str | None = None,
) -> TrainingPrompts:
    """The first turns of named or all shipped workloads; `field`: the prompt's field in rows."""
    workloads = [load_workload(name, field=field) for name in (names or find_workloads())]
    prompts = [prompt for workload in workloads for prompt in workload.prompts]

    def ids(prompt: Prompt) -> Ids:
        return tokenizer.prompt_ids(prompt.turns[0], prompt.tools, prompt.template_args)

    sources = {workload.name: workload.sha256 for workload in workloads}
    notes = [note for workload in workloads for note in workload.notes]
    given = [(w.name, name) for w in workloads for p in w.prompts for name in p.settings.given]
    notes += (
        f"{workload}: training texts are made without {name}"
        for workload, name in dict.fromkeys(given)
        if name not in TEMPLATE_SETTINGS
    )
    return TrainingPrompts(_questions(prompts, ids, most_tokens, seed), sources, tuple(notes))


def corpus_questions(
    tokenizer: ChatTokenizer, most_tokens: int, seed: int, *, end: int = END
) -> TrainingPrompts:
    """Conversations from the bundled target's corpus that neither its training nor its workloads
    contain.

    In a longer conversation, earlier turns may precede the question, as they were written.
    """
    conversations = training_conversations(CORPUS_SEED, DRAFT_START, end)
    chats = []
    for number, conversation in enumerate(conversations):
        messages = conversation.messages()
        num_turns = 1 + number % len(conversation.turns)
        has_system = conversation.system is not None
        chats.append(messages[: 2 * num_turns - 1 + has_system])

    def ids(messages: list[dict[str, str]]) -> Ids:
        chat = [Message(role=m["role"], content=m["content"]) for m in messages]  # type: ignore[arg-type]
        return tokenizer.prompt_ids(chat)

    name = f"the embedded corpus, seed {CORPUS_SEED}, conversations {DRAFT_START} to {end - 1}"
    digest = hashlib.sha256(repr(chats).encode()).hexdigest()
    return TrainingPrompts(_questions(chats, ids, most_tokens, seed), {name: digest})


def _questions(
    prompts: Sequence[T], ids_of: Callable[[T], Ids], most_tokens: int, seed: int
) -> tuple[TrainingPrompt, ...]:
    by_ids: dict[Ids, TrainingPrompt] = {}
    refused: WorkloadError | None = None
    for prompt in prompts:
        try:
            ids = ids_of(prompt)
        except WorkloadError as error:  # a chat template may reject some conversations
            refused = error
            continue
        if 1 < len(ids) <= most_tokens:
            by_ids[ids] = TrainingPrompt(ids, is_held_out(ids))
    if not any(not q.is_held_out for q in by_ids.values()):
        if refused is not None:
            raise refused
        raise UsageError(
            f"no prompts are left for training of {len(prompts)}: 1 in {HELD_OUT_ONE_IN} is kept "
            f"for measuring, and none may exceed {most_tokens} tokens; give more with --workload"
        )
    if not any(q.is_held_out for q in by_ids.values()):  # few prompts: hold out one of them
        lowest = min(by_ids, key=_hash)
        by_ids[lowest] = TrainingPrompt(lowest, True)
        if len(by_ids) == 1:
            raise UsageError("training and measuring need two prompts; add some with --workload")
    return tuple(sorted(by_ids.values(), key=lambda q: (not q.is_held_out, _hash((seed, *q.ids)))))


def is_held_out(ids: Ids) -> bool:
    """Whether a prompt is held out: the same for every seed, so that heads are comparable."""
    return _hash(ids) % HELD_OUT_ONE_IN == 0


def _hash(ids: Ids) -> int:
    return int.from_bytes(hashlib.sha256(repr(ids).encode()).digest()[:8], "big")


_LARGEST_LINE = 2**24


class TrainingText(NamedTuple):
    """The token ids of a prompt and its answer; heads learn to predict the answer."""

    ids: tuple[int, ...]
    num_prompt: int
    is_held_out: bool


class TextFile:
    """The texts of one target, in the order of their questions. Only one process may add texts."""

    def __init__(self, path: Path, origin: dict[str, Any], vocab_size: int) -> None:
        """Read the stored texts; StoreError if they have another origin or the file is damaged."""
        self.path = path
        self.texts: list[TrainingText] = []
        self._size = 0  # bytes of complete lines
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from error
        self._file_size = len(content)
        first = json.dumps(origin)
        if first.startswith(content.decode(errors="replace")):  # empty, or a truncated first line
            self._append([first])
            return
        self._size = content.rfind(b"\n") + 1
        stored, *texts = self._lines(content[: self._size]) or [None]
        if stored != origin:
            differing = [
                k for k in origin if not isinstance(stored, dict) or stored.get(k) != origin[k]
            ]
            raise StoreError(
                f"{path} holds texts of another training: {', '.join(differing)} differ; choose "
                "another --output or --texts"
            )
        self.texts = [self._text(i, line, vocab_size) for i, line in enumerate(texts, 2)]

    def add(self, texts: Sequence[TrainingText]) -> None:
        """Write the texts to disk; StoreError if another process has added texts."""
        self._append([json.dumps([list(t.ids), t.num_prompt, t.is_held_out]) for t in texts])
        self.texts += texts

    def _append(self, lines: list[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        try:
            with self.path.open("ab") as stream:
                if stream.tell() != self._file_size:
                    raise StoreError(
                        f"{self.path}: another training is writing to it; wait for it to end, "
                        "then --resume"
                    )
                stream.truncate(self._size)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._size)
                self._file_size = self._size
            raise not_written(self.path, error) from error
        self._file_size = self._size = self._size + len(content)

    def _lines(self, content: bytes) -> list[Any]:
        parsed = []
        for number, line in enumerate(content.splitlines(), 1):
            try:
                if len(line) > _LARGEST_LINE:
                    raise ValueError(f"longer than {_LARGEST_LINE} bytes")
                parsed.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise StoreError(
                    f"{self.path}:{number}: {error}; remove the file to start again"
                ) from error
        return parsed

    def _text(self, number: int, line: Any, vocab_size: int) -> TrainingText:
        match line:
            case [list() as ids, int() as num_prompt, bool() as is_held_out] if (
                0 < num_prompt < len(ids)
                and all(type(i) is int and 0 <= i < vocab_size for i in ids)
            ):
                return TrainingText(tuple(ids), num_prompt, is_held_out)
        raise StoreError(f"{self.path}:{number}: not a text of this target; remove the file")


MOST_HELD_OUT = 200
_CHUNK = 2  # answers that are stored together, per row
_RUN = 64  # consecutive answers at one temperature


class PlannedOutput(NamedTuple):
    question: TrainingPrompt
    temperature: float
    seed: int


def plan_answers(
    questions: Sequence[TrainingPrompt], temperatures: Sequence[float], most: int, seed: int
) -> list[PlannedOutput]:
    """Plan greedy answers to the held-out questions, then up to `most` answers to the others,
    alternating between the temperatures.

    If there are fewer questions than `most`, they are asked again at temperatures above 0, at which
    the answers differ. A plan with a smaller `most` is a prefix of one with a larger `most`.
    """
    held_out = [q for q in questions if q.is_held_out][:MOST_HELD_OUT]
    to_train = [q for q in questions if not q.is_held_out]
    jobs = [PlannedOutput(question, 0.0, seed) for question in held_out]
    sampled = [t for t in temperatures if t > 0]
    for i in range(most):
        iteration, index = divmod(i, len(to_train))
        if iteration and not sampled:
            break
        allowed = temperatures if iteration == 0 else sampled
        jobs.append(PlannedOutput(to_train[index], allowed[(i // _RUN) % len(allowed)], seed + i))
    return jobs


def answer(
    runner: Runner,
    eos_ids: Sequence[int],
    jobs: Sequence[PlannedOutput],
    file: TextFile,
    *,
    max_new_tokens: int,
    num_rows: int,
    report: Callable[[int, int], None],
) -> None:
    """Add the missing answers to the file; `report` gets the numbers of stored and all answers."""
    decoder = Decoder(runner, NoDrafter(), eos_ids=eos_ids, clock=make_clock(runner.device))
    while len(file.texts) < len(jobs):
        report(len(file.texts), len(jobs))
        first = jobs[len(file.texts)]
        waiting = islice(jobs, len(file.texts), len(file.texts) + num_rows * _CHUNK)
        chunk: list[PlannedOutput] = []
        for job in waiting:
            if job.temperature != first.temperature:
                break
            chunk.append(job)
        requests = [
            Request(
                prompt_ids=job.question.ids,
                max_new_tokens=min(max_new_tokens, _most_new_tokens(runner, job)),
                seed=job.seed,
            )
            for job in chunk
        ]
        sampler = Sampler(Sampling(temperature=first.temperature))
        rows = min(num_rows, len(chunk))
        results = decoder.serve(requests, sampler, FixedK(0), num_rows=rows).results
        file.add(
            [
                TrainingText(
                    (*job.question.ids, *result.output_ids),
                    len(job.question.ids),
                    job.question.is_held_out,
                )
                for job, result in zip(chunk, results, strict=True)
            ]
        )
    report(len(jobs), len(jobs))


def _most_new_tokens(runner: Runner, job: PlannedOutput) -> int:
    limit = runner.max_position
    return 2**30 if limit is None else limit - len(job.question.ids)
