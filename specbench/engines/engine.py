"""The protocol of an engine: it takes requests and returns results.

`InProcess` and `InstrumentedEngine` are the protocols of engines in this process, which a caller
checks with isinstance. No torch here, since an engine may be a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from specbench.inputs.pairing import DrafterSpec
from specbench.records import (
    EngineRecord,
    Message,
    ModelIdentity,
    Request,
    Result,
    RoundTimeline,
)
from specbench.records.requests import poisson_arrivals


class Tokenizer(Protocol):
    """The target's tokens and chat template."""

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] = (),
        template_args: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a prompt; WorkloadError if the chat template raises an error."""
        ...

    def ids(self, text: str) -> tuple[int, ...]:
        """The token ids of a text within an output, without special tokens around it."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text without special tokens."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """When requests arrive. In a closed loop, the next one starts when a row is free."""

    concurrency: int = 1
    request_rate: float | None = None  # open loop: Poisson arrivals of first turns per second
    seed: int = 0  # of the arrivals


def arriving(requests: Sequence[Request], load: Load) -> Iterator[Request]:
    """The requests with Poisson arrival times, drawn with the load's seed; None in a closed loop.

    The rate counts first turns. A later turn arrives when the user has the previous output.
    """
    times_s = poisson_arrivals(load.request_rate, load.seed) if load.request_rate else None
    begun: set[str] = set()
    for request in requests:
        is_later_turn = request.conversation in begun
        at_s = None if times_s is None or is_later_turn else next(times_s)
        yield replace(request, at_s=at_s)
        if request.conversation is not None:
            begun.add(request.conversation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The target's log-probability of each output of a pass, and the seconds of the scoring."""

    log_probs: tuple[float, ...]  # mean over an output's tokens, in nats, at temperature 1
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPass:
    """The results of a pass's requests, in their order, and the rounds that served them."""

    results: tuple[Result, ...]
    seconds: float
    rounds: RoundTimeline
    cpu_s: float
    calibration_s: float = 0.0
    kv_bytes: int | None = None
    scores: Scores | None = None  # only for samples of one prompt
    num_discarded: int = 0  # passes before it, such as those that captured graphs


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundForward:
    """A forward over `num_tokens` tokens per row that a round runs `times` times."""

    role: Literal["target", "drafter"]
    num_tokens: int
    times: int
    part: str = ""  # for a head: the part that runs; "" for a model


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedForwards:
    """Rounds and their model forwards, timed alternately; seconds of each, in order."""

    result: Result
    forward_s: Mapping[RoundForward, tuple[float, ...]]

    @property
    def round_s(self) -> tuple[float, ...]:
        return self.result.rounds.round_s if self.result.rounds else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A drafting method and K. The baseline is the engine's method without drafts.

    With `adaptive` the engine chooses K round by round, from 0 to `k`, and continues from the
    statistics of earlier passes over the same `workload` and `context`.
    """

    drafter: str
    method: str
    k: int
    adaptive: bool = False
    workload: str = ""
    context: int | None = None


class Engine(Protocol):
    """A loaded target; drafters are added one after the other, so that the memory of each can be
    measured."""

    name: str
    eos_ids: tuple[int, ...]
    baseline: Work  # the method without drafts, which speedups are relative to
    identity: ModelIdentity  # the target's

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def record(self) -> EngineRecord:
        """The engine's configuration, with notes for readers of the results."""
        ...

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        """Load the drafter; returns its model's identity, None for a method without a model."""

    def remove_drafter(self, name: str) -> None:
        """Free the drafter's memory; does nothing if it is not loaded."""

    def generate(self, request: Request, work: Work) -> Result:
        """Decode one request while no other one runs."""
        ...

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        """Decode the requests, up to `load.concurrency` concurrently; UsageError if it cannot."""
        ...


@runtime_checkable
class InProcess(Protocol):
    """An engine with its weights and launches in this process, so that they can be counted."""

    def weights_bytes(self, drafter: str) -> int:
        """Bytes of the target's and the drafter's weights (NO_DRAFTER: only the target's)."""
        ...

    def kv_bytes_per_token(self, drafter: str) -> int:
        """KV-cache bytes per token of context in target and drafter, after a request."""
        ...

    def state_bytes_per_row(self, drafter: str) -> int:
        """Bytes of recurrent state per request in target and drafter, at any length."""
        ...


@runtime_checkable
class InstrumentedEngine(InProcess, Protocol):
    """An engine that can also run and time each model forward of a round separately."""

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        """The model forwards of one round at K = k; empty if not all of them are known."""
        ...

    def time_forwards(self, request: Request, work: Work) -> TimedForwards | None:
        """Decode one request at a fixed K, and time every model forward separately after each
        round; None if `forwards` is empty."""
        ...

    def bytes_read(self, drafter: str, forward: RoundForward, rows: int, context: int) -> int:
        """Bytes that the forward reads from memory for `rows` rows of `context` tokens: weights,
        keys and values.

        An input embedding is not counted, since only the looked-up rows are read.
        """
        ...
