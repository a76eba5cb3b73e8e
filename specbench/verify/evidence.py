"""Evidence about one pairing at one K and temperature, as numbers; no torch.

Shape suffixes: N tokens, C cells of a joint distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.doc import Doc

Floats = NDArray[np.float64]
Output = tuple[str, tuple[int, ...]]  # the name of its prompt, and its tokens

CONTROL = 0.8  # a verdict needs enough tokens to detect a temperature that is this factor lower


class SumMoments(NamedTuple):
    """Mean and variance of a sum over tokens."""

    mean: float
    variance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The engine and setting whose output was tested."""

    pairing: str  # the target at K = 0
    engine: str
    method: str
    num_speculative_tokens: int
    temperature: float
    lossy: str | None = None  # the option that changes the distribution on purpose


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A position at which a greedy text differs from the expected one.

    A step is one unit in the last place of the logits, in their dtype and at their magnitude.
    """

    prompt_id: Annotated[str, Doc("the prompt")]
    position: Annotated[
        int, Doc("in the output, from 0; in characters for a server without token ids")
    ]
    expected: Annotated[
        int | str | None,
        Doc("a token, or text for a server without token ids; absent: that text has ended"),
    ]
    found: Annotated[int | str | None, Doc("the same, of the output")]
    gap: Annotated[
        float | None,
        Doc("between the target's two best logits; absent without its logits, as the two steps"),
    ] = None
    steps: Annotated[
        float | None,
        Doc("distance from the best to the worse of the two tokens, in rounding steps"),
    ] = None
    tie_steps: Annotated[float | None, Doc("steps up to which it is a tie")] = None
    below: Annotated[float | None, Doc("the distance of `steps`, in logits")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyEvidence:
    """The divergences of greedy texts from the expected ones.

    A server's texts at K = 0 are the baseline of its other texts, even if they differ from the
    target's.
    """

    subject: Subject
    num_prompts: int
    num_tokens: int
    divergences: tuple[Divergence, ...]
    is_baseline: bool = False  # a server at K = 0
    not_scored_because: str = ""  # why the target's logits were not computed
    rule: str | None = None  # by which a serving engine accepts draft tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class JointCounts:
    """The count of each short text, and its exact probability."""

    observed_C: Floats
    probability_C: Floats
    num_tokens: int  # of each text


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledEvidence:
    """Sampled tokens as quantiles of the target's distribution given the tokens before them.

    Each column has one number in [0, 1] per token, a randomized probability integral transform. The
    numbers are independent and uniform if, and only if, every token was drawn from the target's
    distribution. `surprise_N` is the mass of the tokens less likely than the drawn one,
    `identity_N` that of the tokens with smaller ids. `log_likelihoods` has the log-likelihood of
    all tokens at several temperatures, by the factor to the requested one. `colder` is the expected
    log-likelihood ratio of tokens that are drawn at the lower temperature.
    """

    subject: Subject
    surprise_N: Floats
    identity_N: Floats
    log_likelihoods: Mapping[float, float]
    colder: SumMoments  # for the factor CONTROL
    num_texts: int
    num_outside: int  # tokens that top-k or top-p exclude
    num_at_edge: int  # excluded by no more than rounding; they are in no column
    wrongly_ended: tuple[str, ...] = ()  # prompts whose text runs past its end or stops early
    joint: JointCounts | None = None  # for a small vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """The distance of sampled tokens at one position from the expected distribution, over all
    prompts. It is above 0 for every finite sample.
    """

    position: Annotated[
        int, Doc("in the output, from 0; in characters for a server without token ids")
    ]
    total_variation: Annotated[
        float,
        Doc("from the target's distribution, or from K = 0 if that was the reference"),
    ]
    floor: Annotated[float, Doc("mean `total_variation` of the same number of exact draws")]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineSample:
    """Outputs of a server, and of the same server at K = 0.

    `colder` has outputs at K = 0 and a lower temperature, which the test must detect. If the server
    reports no tokens, characters count as tokens.
    """

    outputs: tuple[Output, ...]
    baseline_outputs: tuple[Output, ...]
    colder: tuple[Output, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedEvidence:
    """Short sampled outputs of a server: K = 0 is scored by the target, any other K compared with
    K = 0."""

    subject: Subject
    num_texts: int
    num_tokens: int
    scored: SampledEvidence | None  # None above K = 0, or without the target's logits
    sample: BaselineSample | None  # None at K = 0
    distances: tuple[Distance, ...] = ()  # at K = 0 from the target's distribution
    not_scored_because: str = ""  # why the target's logits were not computed
    rule: str | None = None  # by which a serving engine accepts draft tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedEvidence:
    """A subject that could not be decoded, with the reason."""

    subject: Subject
    reason: str


Evidence = GreedyEvidence | SampledEvidence | ServedEvidence | FailedEvidence
