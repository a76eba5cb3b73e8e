"""The protocol of an engine: it takes requests and yields what happened.

What only an engine in this process can tell comes in protocols of their own, which a caller asks
for with isinstance. No torch here: an engine may as well be a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from specbench.arrivals import poisson_arrivals
from specbench.inputs.pairing import DrafterSpec
from specbench.records import (
    EngineRecord,
    Message,
    ModelIdentity,
    Request,
    Result,
    RoundTimeline,
)


class Tokenizer(Protocol):
    """The target's tokens and chat template."""

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] = (),
        template_args: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """The ids that the model sees before it answers; WorkloadError if a template refuses."""
        ...

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text within an answer: nothing is put before or after it."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text without special tokens."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How requests come in. Closed loop: the next one starts when a row is free."""

    concurrency: int = 1
    request_rate: float | None = None  # open loop: Poisson arrivals a second, of first turns
    seed: int = 0  # of the arrivals


def arriving(requests: Sequence[Request], load: Load) -> Iterator[Request]:
    """Each with the time at which it arrives: at Poisson times drawn from the load's seed, or as
    soon as one before it has ended.

    The rate counts first turns; a later turn arrives when its user has the previous output.
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
    """How likely the target finds each of a pass's answers, and the seconds it took to say so."""

    log_probs: tuple[float, ...]  # mean of an answer's tokens, nats, at temperature 1
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPass:
    """All requests of a pass, in the order they were given, and the rounds that served them."""

    results: tuple[Result, ...]
    seconds: float
    rounds: RoundTimeline
    cpu_s: float
    calibration_s: float = 0.0
    kv_bytes: int | None = None
    scores: Scores | None = None  # of samples of one prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundForward:
    """A forward over `num_tokens` tokens a row that a round runs `times` times."""

    role: Literal["target", "drafter"]
    num_tokens: int
    times: int
    part: str = ""  # of a head: which part of its work; "" for a model's forward


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedForwards:
    """Rounds and the model forwards in them, measured in turns; seconds of each, in order."""

    result: Result
    forward_s: Mapping[RoundForward, tuple[float, ...]]

    @property
    def round_s(self) -> tuple[float, ...]:
        return self.result.rounds.round_s if self.result.rounds else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Which method at which K. The baseline is the engine's own method without drafts.

    With `adaptive` the engine picks K round by round, from 0 to `k`, and goes on from what it
    learnt in earlier passes over the same `workload` and `context`.
    """

    drafter: str
    method: str
    k: int
    adaptive: bool = False
    workload: str = ""
    context: int | None = None


class Engine(Protocol):
    """A loaded target; drafters are added to it one after the other, so that each one's memory
    can be told."""

    name: str
    eos_ids: tuple[int, ...]
    baseline: Work  # its method without drafts, which its speed-ups are over
    identity: ModelIdentity  # the target's

    @property
    def context(self) -> int | None:
        """Tokens that the target was made for; None: as many as there is memory for."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def record(self) -> EngineRecord:
        """How it runs, with what a reader of the results should know."""
        ...

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        """Load it; its model's identity, None for a method without a model."""

    def remove_drafter(self, name: str) -> None:
        """Give its memory back; a name that was never loaded is no mistake."""

    def generate(self, request: Request, work: Work) -> Result:
        """Decode one request alone."""
        ...

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        """Decode all of them, up to `load.concurrency` at once; UsageError if it cannot."""
        ...


@runtime_checkable
class InProcess(Protocol):
    """An engine whose weights and launches are this process's own, so that they can be counted."""

    def weights_bytes(self, drafter: str) -> int:
        """Weights of the target and the named drafter together (NO_DRAFTER: the target's)."""
        ...

    def kv_bytes_per_token(self, drafter: str) -> int:
        """KV-cache bytes a token of context takes in target and drafter, after a request."""
        ...

    def state_bytes_per_row(self, drafter: str) -> int:
        """Bytes of recurrent state that a request takes in both, however long it is."""
        ...


@runtime_checkable
class Instrumented(InProcess, Protocol):
    """One whose rounds can be taken apart into forwards, each of which also runs alone."""

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        """The model forwards that one round at K = k contains; none where not all are known."""
        ...

    def time_forwards(self, request: Request, work: Work) -> TimedForwards | None:
        """Decode one request at a fixed K with every model forward measured alone after each
        round; None where `forwards` names none."""
        ...

    def bytes_read(self, drafter: str, forward: RoundForward, rows: int, context: int) -> int:
        """What that forward must read from memory for so many rows of `context` tokens: weights,
        and keys and values in use.

        An input embedding is none of it, for only the looked-up rows are touched.
        """
        ...
