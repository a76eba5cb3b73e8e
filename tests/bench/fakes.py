"""An engine without a model, a clock without time: every number can be worked out by hand.

A step of the baseline takes 1 second, a round at K takes 1 + 0.1 K. The drafter `good` is
always right (K + 1 tokens per round), the drafter `bad` never (1 token per round).
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import torch

from specbench.bench.blocks import Block
from specbench.engines.engine import Load, RoundForward, ServedPass, TimedForwards, Work
from specbench.errors import ModelError, WorkloadError
from specbench.inputs.pairing import DrafterSpec
from specbench.records import (
    BlockRecord,
    EngineRecord,
    Message,
    ModelIdentity,
    Request,
    Result,
    RoundLog,
    RoundTimeline,
)
from specbench.stats.rounds import bytes_per_forward

ANSWER_TOKENS = 41  # the target's own greedy answer, its end token included
PREFILL_S = 0.5
REFUSED = "refuse me"  # the template refuses a conversation with these words
END = 0


class FakeClock:
    """The seconds that the fake engine has worked."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class RecordingWatch:
    """Stores all messages; `on_advance` receives the number of finished blocks."""

    def __init__(self, on_advance: Callable[[int], None] = lambda _: None) -> None:
        self.ids: list[str] = []
        self.stages: list[str] = []
        self.blocks: list[str] = []
        self.warnings: list[str] = []
        self.messages: list[str] = []
        self.advances: list[tuple[int, int, float | None]] = []
        self._on_advance = on_advance

    def run_id(self, run_id: str) -> None:
        self.ids.append(run_id)

    def stage(self, text: str, part: str = "") -> None:
        self.stages.append(f"{text} {part}".rstrip())

    def advance(self, done: int, total: int, seconds_left: float | None) -> None:
        self.advances.append((done, total, seconds_left))
        self._on_advance(done)

    def measured(self, block: Block, record: BlockRecord) -> None:  # noqa: ARG002
        self.blocks.append(record.block_id)

    def info(self, text: str) -> None:
        self.messages.append(text)

    detail = info

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C pressed by a test."""


def stop_after(num_blocks: int = 1) -> RecordingWatch:
    """A watch that presses Ctrl-C when this number of blocks, or units of a cluster, is done."""

    def on_advance(done: int) -> None:
        if done == num_blocks:
            raise Interrupted

    return RecordingWatch(on_advance)


class BytesTokenizer:
    """A tokenizer whose tokens are bytes; a conversation is written as `role: text` lines."""

    location = "fake"
    sha256 = "0" * 64

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] = (),  # noqa: ARG002
        template_args: Mapping[str, object] | None = None,  # noqa: ARG002
    ) -> tuple[int, ...]:
        text = "".join(f"{message.role}: {message.content}\n" for message in messages)
        if REFUSED in text:
            raise WorkloadError("the chat template of fake refuses the conversation: no")
        return tuple(text.encode())

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def text(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token != END).decode()


class Call(NamedTuple):
    """One request as the engine got it."""

    request: Request
    drafter: str
    k: int

    @property
    def text(self) -> str:
        return bytes(self.request.prompt_ids).decode()


@dataclass
class FakeProtocolEngine:
    """An engine that implements only the protocol, like a serving engine.

    `noise` makes speculation up to that share slower, by prompt; `room` is the number of drafters
    that fit next to the target.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    context: int = 10_000
    noise: float = 0.0
    room: int = 10
    refuses: Mapping[str, Exception] = field(default_factory=dict)  # by drafter, when loaded
    breaks: Callable[[Call], Exception | None] = lambda _: None  # when it generates
    calls: list[Call] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    name = "builtin"
    eos_ids = (END,)
    baseline = Work(drafter="none", method="none", k=0)
    record = EngineRecord(target="big", engine="builtin", forward="stock")
    tokenizer = BytesTokenizer()
    identity = ModelIdentity(
        name="big",
        source="owner/big",
        revision=None,
        content_sha256="1" * 64,
        tokenizer_sha256="0" * 64,
        dtype="float32",
        num_parameters=1_000,
    )

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        if drafter.name in self.refuses:
            raise self.refuses[drafter.name]
        if len(self.loaded) == self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.loaded.append(drafter.name)
        return None

    def remove_drafter(self, name: str) -> None:
        if name in self.loaded:
            self.loaded.remove(name)

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        """One request after the other in each of `concurrency` rows, all rows at equal speed."""
        began_s = self.clock.now_s
        results = []
        for request in requests:
            arrived_s = self.clock.now_s - began_s
            results.append(replace(self.generate(request, work), arrived_s=arrived_s))
        seconds = (self.clock.now_s - began_s) / load.concurrency
        logs = [result.rounds for result in results if result.rounds]
        columns = list(zip(*(row for log in logs for row in _rows(log, work.k)), strict=True))
        at_s = list(accumulate(columns[0], initial=0.0))[:-1]
        rounds = RoundTimeline(
            at_s=tuple(at_s),
            seconds=columns[0],
            num_speculative_tokens=columns[1],
            num_live=(load.concurrency,) * len(at_s),
            num_rows=(load.concurrency,) * len(at_s),
            num_emitted=columns[2],
        )
        return ServedPass(results=tuple(results), seconds=seconds, rounds=rounds, cpu_s=seconds)

    def generate(self, request: Request, work: Work) -> Result:
        drafter, k = work.drafter, work.k
        assert drafter in ("none", *self.loaded)
        call = Call(request, drafter, k)
        self.calls.append(call)
        if error := self.breaks(call):
            raise error
        needed = len(request.prompt_ids) + request.max_new_tokens
        if needed > self.context:
            raise ModelError(f"prompt and output take {needed} tokens of {self.context}")
        num_tokens = request.max_new_tokens
        if request.stop_at_eos:
            num_tokens = min(num_tokens, ANSWER_TOKENS)
        letters = tuple(ord("a") + i % 26 for i in range(num_tokens))
        output_ids = (*letters[:-1], END) if num_tokens == ANSWER_TOKENS else letters
        rounds = self._rounds(num_tokens - 1, drafter, k, self._slowness(call))
        decode_s = sum(rounds.round_s)
        self.clock.now_s += PREFILL_S + decode_s
        return Result(
            output_ids=output_ids,
            finish_reason="eos" if output_ids[-1] == END else "length",
            prefill_s=PREFILL_S,
            ttft_s=PREFILL_S,
            decode_s=decode_s,
            total_s=PREFILL_S + decode_s,
            cpu_s=PREFILL_S + decode_s,
            rounds=rounds,
        )

    def _slowness(self, call: Call) -> float:
        draw = zlib.crc32(bytes(call.request.prompt_ids)) % 1000 / 1000
        return 1.0 + (self.noise * draw if call.k else 0.0)

    def _rounds(self, num_tokens: int, drafter: str, k: int, slowness: float) -> RoundLog:
        emitted = list(_emitted(num_tokens, k + 1 if drafter == "good" else 1))
        draft_s, verify_s = 0.1 * k * slowness, 1.0 * slowness
        return RoundLog(
            num_drafted=(k,) * len(emitted),
            num_accepted=tuple(e - 1 if drafter == "good" else 0 for e in emitted),
            num_emitted=tuple(emitted),
            round_s=(draft_s + verify_s,) * len(emitted),
            draft_s=(draft_s,) * len(emitted),
            verify_s=(verify_s,) * len(emitted),
        )


@dataclass
class FakeEngine(FakeProtocolEngine):
    """An engine in this process: its bytes are known and its rounds can be taken apart."""

    def weights_bytes(self, drafter: str) -> int:
        return 1_000 if drafter == "none" else 1_100

    def bytes_read(self, drafter: str, forward: RoundForward, rows: int, context: int) -> int:  # noqa: ARG002
        weights, kv = (900, 64) if forward.role == "target" else (100, 8)
        return bytes_per_forward(weights, rows, context, kv)

    def kv_bytes_per_token(self, drafter: str) -> int:
        return 64 if drafter == "none" else 72

    def state_bytes_per_row(self, drafter: str) -> int:  # noqa: ARG002
        return 0

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        target = RoundForward(role="target", num_tokens=k + 1, times=1)
        draft = RoundForward(role="drafter", num_tokens=1, times=k)
        return (target,) if drafter == "none" else (target, draft)

    def time_forwards(self, request: Request, work: Work) -> TimedForwards:
        """Takes no time: it is not part of the measurement. Every fifth time is an outlier."""
        rounds = self._rounds(request.max_new_tokens - 1, work.drafter, work.k, 1.0)
        forward_s = {
            forward: tuple(
                9.0 if i % 5 == 4 else 0.8 if forward.role == "target" else 0.05
                for i in range(forward.times * len(rounds))
            )
            for forward in self.forwards(work.drafter, work.k)
        }
        result = Result(
            output_ids=(),
            finish_reason="length",
            prefill_s=None,
            ttft_s=None,
            decode_s=None,
            total_s=0.0,
            cpu_s=None,
            rounds=rounds,
        )
        return TimedForwards(result=result, forward_s=forward_s)


def _emitted(num_tokens: int, per_round: int) -> Iterator[int]:
    while num_tokens > 0:
        yield min(per_round, num_tokens)
        num_tokens -= per_round


def _rows(log: RoundLog, k: int) -> Iterator[tuple[float, int, int]]:
    return ((s, k, e) for s, e in zip(log.round_s, log.num_emitted, strict=True))
