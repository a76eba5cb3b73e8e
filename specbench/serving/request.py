"""What the decoder is asked and what it answers."""

from dataclasses import dataclass, field
from typing import NamedTuple

from specbench.records import AnswerCheck, RoundLog, RoundTimeline
from specbench.serving.scheduler import Arrival


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt as token ids, how many tokens to emit at most, the seed of its noise, and when.

    `prediction_ids` is a text that the answer may resemble, for drafters that copy from one.
    Samples of one prompt that start together share its prefill.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int = 0
    arrival: Arrival = field(default_factory=Arrival)
    prediction_ids: tuple[int, ...] = ()
    is_sample: bool = False  # one of several answers to its prompt

    @property
    def num_tokens(self) -> int:
        """Prompt and output together, at most."""
        return len(self.prompt_ids) + self.max_new_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A request's output and what happened when, in seconds since the pass began."""

    output_ids: tuple[int, ...]
    hit_eos: bool
    rounds: RoundLog
    arrived_s: float
    started_s: float
    first_token_s: float
    finished_s: float
    answer_check: AnswerCheck | None = None
    graph: str | None = None  # how much of its rounds one graph held, as in a RequestRecord


class Served(NamedTuple):
    """One result a request, in their order, and the rounds that served them."""

    results: list[Result]
    timeline: RoundTimeline
