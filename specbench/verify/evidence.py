"""What was collected about one pairing at one K and temperature; numbers only, no torch.

Shape suffixes: N tokens, C cells of a joint distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Answer = tuple[str, tuple[int, ...]]  # its prompt's name, and its tokens

CONTROL = 0.8  # a temperature so much lower must be what the tokens could have shown


class Expected(NamedTuple):
    """What a sum over tokens will be near."""

    mean: float
    variance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Whose output it is. `lossy` names an option that changes the distribution on purpose."""

    pairing: str  # the bare target for K = 0
    engine: str
    method: str
    num_speculative_tokens: int
    temperature: float
    lossy: str | None = None

    @property
    def lossy_words(self) -> str:
        """`typical is lossy by choice; `, which begins reasons; empty without an option."""
        return f"{self.lossy} is lossy by choice; " if self.lossy else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """Where a greedy text leaves the expected one; a token is None where a text has ended.

    `gap` lies between the target's two best logits. `steps` lie between the best and the worse
    of the two tokens, counted in units in the last place of the logits' dtype at their
    magnitude; `tie_steps` is what other shapes of the same sums may be off by. None of them is
    known where the target was not asked.
    """

    prompt_id: str
    position: int  # in the output, from 0; of an engine without token ids: in characters
    expected: int | str | None  # a token, or text where there are no tokens
    found: int | str | None
    gap: float | None
    steps: float | None  # None where one text has ended
    tie_steps: float | None
    below: float | None = None  # the same distance as `steps`, in logits


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyEvidence:
    """Greedy texts beside the expected ones; at most one divergence a prompt, the first.

    Those of a server's K = 0 are what its others are held to, whatever the target says of them.
    """

    subject: Subject
    num_prompts: int
    num_tokens: int
    divergences: tuple[Divergence, ...]
    is_own: bool = False  # a server's K = 0
    unseen: str = ""  # why the target's logits were not looked at
    rule: str | None = None  # by which a serving engine accepts drafts


@dataclass(frozen=True, kw_only=True, slots=True)
class JointCounts:
    """How often each short text came, beside its exact probability."""

    observed_C: Floats
    probability_C: Floats
    num_tokens: int  # of each text


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledEvidence:
    """Sampled tokens placed in the target's distribution given what precedes them.

    Each column has one number in [0, 1] a token: randomised probability integral transforms,
    independent and uniform where, and only where, every token was drawn from the target's
    distribution. `surprise_N` is the mass of the tokens that are less likely than the one drawn,
    `identity_N` that of the tokens with smaller ids. `log_likelihoods` are of all tokens together,
    under the distribution at other temperatures: by the factor they are colder (below 1) or hotter,
    1 being the distribution itself. `colder` is what the ratio of two of them would be, were the
    tokens drawn at the lower temperature.
    """

    subject: Subject
    surprise_N: Floats
    identity_N: Floats
    log_likelihoods: Mapping[float, float]
    colder: Expected  # of the temperature that the judge's control is about
    num_texts: int
    num_outside: int  # tokens that top-k or top-p exclude
    num_at_edge: int  # excluded by no more than rounding; they are in no column
    misshapen: tuple[str, ...] = ()  # prompts whose text goes on after its end, or has none
    joint: JointCounts | None = None  # of a small vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """How far sampled tokens at one position are from what they should be, over all prompts.

    `floor` is what tokens drawn as they should be give on the mean: a number of draws is not a
    distribution.
    """

    position: int  # in the answer, from 0
    total_variation: float
    floor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineSample:
    """Answers of a server beside those of its K = 0, each with its prompt's name.

    `colder` are answers of K = 0 at a lower temperature, which must be told apart. A token is a
    number, be it that of a character where the server tells no tokens.
    """

    own: Subject  # the server's K = 0
    answers: tuple[Answer, ...]
    own_answers: tuple[Answer, ...]
    colder: tuple[Answer, ...]
    distances: tuple[Distance, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedEvidence:
    """Short sampled answers of a server: along the target, beside those of its K = 0, or both."""

    subject: Subject
    num_texts: int
    num_tokens: int
    along: SampledEvidence | None
    beside: BaselineSample | None  # None: it is K = 0
    distances: tuple[Distance, ...] = ()  # from the target's distribution
    unseen: str = ""  # why the target's logits were not looked at
    rule: str | None = None  # by which a serving engine accepts drafts


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedEvidence:
    """What could not be decoded, and why."""

    subject: Subject
    reason: str


Evidence = GreedyEvidence | SampledEvidence | ServedEvidence | FailedEvidence
