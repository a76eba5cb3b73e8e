"""Formulas for rounds: acceptance, from counts and from rates, and cost. They import only the
standard library, because the decoder's controller uses them between rounds.

Per round: d draft tokens, a of them accepted (at most K), e tokens emitted. N rounds in all.
Position i has the joint rate #(a >= i) / N, and the conditional rate #(a >= i) / #(a >= i - 1).
Bytes are those that a forward must read from the device's memory.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import TypeVar

from specbench.errors import UsageError

N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCounts:
    """Counts of rounds at one K, or their expected values; a rate without data is None or ()."""

    num_rounds: float
    num_drafted: float
    num_accepted: float
    num_emitted: float
    num_drafting: float  # rounds with at least one draft token
    # Rounds that rejected a draft token and emitted the correction; None: unknown.
    num_rejecting: float | None
    reached: tuple[float, ...]  # rounds that accepted at least 0, 1 .. K; (): unknown

    @classmethod
    def of_rounds(
        cls, drafted: Sequence[int], accepted: Sequence[int], emitted: Sequence[int], k: int
    ) -> "RoundCounts":
        """Sum the counts of each round.

        A round in which the text ends within the drafts emits only what it accepted, and is not
        counted as a rejection.
        """
        return cls(
            num_rounds=len(accepted),
            num_drafted=sum(drafted),
            num_accepted=sum(accepted),
            num_emitted=sum(emitted),
            num_drafting=len(drafted) - drafted.count(0),
            num_rejecting=sum(
                n
                for (d, a, e), n in Counter(zip(drafted, accepted, emitted, strict=True)).items()
                if a < d and e > a
            ),
            reached=num_reaching(Counter(accepted), k),
        )

    @classmethod
    def of_sums(
        cls,
        *,
        num_rounds: int,
        num_drafted: int | None,
        num_accepted: int,
        num_emitted: int,
        num_drafting: int | None,
        num_rejecting: int | None,
        by_accepted: Sequence[int] | None,
    ) -> "RoundCounts":
        """Convert the totals that a server reports.

        `num_drafting` None: all rounds drafted. `by_accepted[a]` is the number of rounds that
        accepted a draft tokens, without rounds that drafted nothing; None: unknown, and so are
        the rates per position.
        """
        reached: list[float] = []
        if by_accepted is not None:
            reached = [num_rounds, *accumulate(reversed(by_accepted[1:]))]
            reached[1:] = reversed(reached[1:])
        return cls(
            num_rounds=num_rounds,
            num_drafted=num_drafted or 0,
            num_accepted=num_accepted,
            num_emitted=num_emitted,
            num_drafting=num_rounds if num_drafting is None else num_drafting,
            num_rejecting=num_rejecting,
            reached=tuple(reached),
        )

    def __add__(self, other: "RoundCounts") -> "RoundCounts":
        """The pooled counts; ValueError if their K differ."""
        if self.k != other.k:
            raise ValueError("rounds at different K cannot be pooled")
        return RoundCounts(
            num_rounds=self.num_rounds + other.num_rounds,
            num_drafted=self.num_drafted + other.num_drafted,
            num_accepted=self.num_accepted + other.num_accepted,
            num_emitted=self.num_emitted + other.num_emitted,
            num_drafting=self.num_drafting + other.num_drafting,
            num_rejecting=None
            if self.num_rejecting is None or other.num_rejecting is None
            else self.num_rejecting + other.num_rejecting,
            reached=tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)),
        )

    @property
    def k(self) -> int:
        """Maximum number of draft tokens that a round can accept."""
        return len(self.reached) - 1

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + sum(a) / N."""
        return mean_length(self.num_accepted, self.num_rounds) if self.num_rounds else None

    @property
    def mean_acceptance_length_when_drafted(self) -> float | None:
        """1 + sum(a) / (rounds with d > 0)."""
        return mean_length(self.num_accepted, self.num_drafting) if self.num_drafting else None

    @property
    def acceptance_rate(self) -> float | None:
        """sum(a) / sum(d)."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_rate_per_position(self) -> tuple[float, ...]:
        """Joint rates: #(a >= i) / N for i = 1 .. K."""
        if not any(self.reached):
            return ()
        rounds, *reached = self.reached
        return tuple(n / rounds for n in reached)

    @property
    def conditional_acceptance_rate(self) -> tuple[float, ...]:
        """#(a >= i) / #(a >= i - 1), up to the last i with a nonzero denominator."""
        return tuple(n / previous for previous, n in pairwise(self.reached) if previous)

    @property
    def alpha(self) -> float | None:
        """sum(a) / (sum(a) + rounds with a rejection): the probability of accepting one token.

        Maximum-likelihood estimate under Leviathan et al. 2023 (arXiv:2211.17192), definition 3.1,
        which stops at the first rejection. None for trees, whose rejected tokens may have siblings.
        """
        if self.num_rejecting is None or self.num_drafted > self.k * self.num_drafting:
            return None
        num_tested = self.num_accepted + self.num_rejecting
        return self.num_accepted / num_tested if num_tested else None


def num_reaching(rounds_by_accepted: Mapping[int, int], k: int) -> tuple[int, ...]:
    """The rounds that accepted at least 0, 1 .. K draft tokens."""
    return tuple(sum(n for a, n in rounds_by_accepted.items() if a >= i) for i in range(k + 1))


def rounds_counted(num_later: N, num_accepted: N, num_drafting: N) -> N:
    """Rounds of a server by its counters, for the tokens after the first of each output.

    A round emits one token in addition to its accepted draft tokens. Most servers do not count
    rounds that drafted nothing, and count draft tokens that are accepted past an output's end.
    """
    return max(num_later - num_accepted, num_drafting)


def mean_length(num_accepted: float, num_rounds: float) -> float:
    """Mean acceptance length, 1 + sum(a) / N: tokens emitted per round, with the bonus token."""
    return 1 + num_accepted / num_rounds


def mean_length_from_rates(per_position: Iterable[float]) -> float:
    """Mean acceptance length from joint rates: 1 + their sum."""
    return 1 + sum(per_position)


# The acceptance to simulate: one chance of every draft token, joint rates, or joint rates by K.
Acceptance = Sequence[float] | Mapping[int, Sequence[float]]


def acceptance_rates(values: Acceptance, k: int) -> tuple[float, ...]:
    """a_1 .. a_k, in which a_i is the share of rounds that accept at least i drafts.

    A single value is alpha, the conditional probability of each draft: a_i = alpha**i. Several
    values are a_1, a_2 .., and 0 past their end. A mapping has these values for each K. UsageError
    unless they are shares in descending order (two drafts cannot be accepted more often than one),
    and for a K that a mapping does not have.
    """
    if isinstance(values, Mapping):
        if k and k not in values:
            known = ", ".join(map(str, values))
            raise UsageError(f"--simulate-acceptance: the file has K={known}, not {k}")
        return tuple(values[k]) if k else ()
    if not values or not all(a >= b for a, b in pairwise((1.0, *values, 0.0))):
        raise UsageError(
            f"synthetic acceptance {', '.join(map(str, values)) or '(none)'}: expected one or "
            "more shares from 0 to 1, each no larger than the one before"
        )
    if len(values) == 1:
        return tuple(joint_rates([values[0]] * k))
    return (*values, *(0.0,) * k)[:k]


def rates_of_length(length: float, k: int) -> tuple[float, ...]:
    """The joint rates a_1 .. a_k with this mean acceptance length and the least variance: ones, and
    then a fraction. vLLM, SGLang and TensorRT-LLM simulate a length in this way."""
    return tuple(round(min(max(length - 1 - i, 0.0), 1.0), 6) for i in range(k))


def conditional_rates(per_position: Sequence[float]) -> tuple[float, ...]:
    """c_i = a_i / a_(i-1), a_0 = 1, from joint rates; 0 if a_(i-1) is 0."""
    pairs = pairwise((1.0, *per_position))
    return tuple(rate / previous if previous else 0.0 for previous, rate in pairs)


def joint_rates(conditional: Iterable[float]) -> list[float]:
    """a_i = c_1 c_2 .. c_i: the probability that all draft tokens up to i are accepted."""
    return list(accumulate(conditional, mul))


def expected_tokens_by_k(conditional: Iterable[float]) -> list[float]:
    """Tokens emitted per round at K = 0, 1, .. n, from conditional rates."""
    return list(accumulate(joint_rates(conditional), initial=1.0))


def expected_tokens_iid(alpha: float, k: int) -> float:
    """(1 - alpha^(K+1)) / (1 - alpha): tokens per round if each draft token is accepted
    independently with probability alpha.

    Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1.
    """
    return expected_tokens_by_k([alpha] * k)[-1]


def goodput(tokens: float, *, num_live: int, round_s: float) -> float:
    """Tokens per second of a batch with `num_live` rows that each emit `tokens` per `round_s`.

    Source: Liu et al. 2024 (arXiv:2406.14066), the goodput of a speculation length.
    """
    return num_live * tokens / round_s


def amortized_goodput(rate: float, *, stay_s: float, once_s: float) -> float:
    """Tokens per second at a rate that lasts `stay_s`, after a one-time cost of `once_s`."""
    return rate * stay_s / (stay_s + once_s)


def bytes_per_forward(weights_bytes: int, rows: int, context: int, kv_bytes_per_token: int) -> int:
    """W + B L kv: every weight once and the keys and values of every row.

    Checking a few tokens reads as much as one step. W contains the embedding table only if it is
    also the output matrix: otherwise single rows of it are looked up. Source: the memory side of
    the roofline (Williams et al. 2009).
    """
    return weights_bytes + rows * context * kv_bytes_per_token


def roofline_s(num_bytes: float, bytes_per_s: float) -> float:
    """bytes / bandwidth: reading them from memory takes at least that long."""
    return num_bytes / bytes_per_s


def break_even_acceptance(k: int, round_steps: float) -> float | None:
    """The acceptance probability at which a round of K draft tokens emits as many tokens as it
    costs in baseline steps.

    (1 - a^(K+1)) / (1 - a) = B, solved for a to 2e-12. 0: a round costs no more than a step; None:
    not even a = 1 is enough. Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1, with
    the costs of verification and overhead.
    """
    if round_steps > k + 1:
        return None
    if round_steps <= 1:
        return 0.0
    # Bisection: scipy.optimize takes longer to import than most commands run.
    low, high = 0.0, 1.0
    while high - low > 2e-12:
        middle = (low + high) / 2
        if expected_tokens_iid(middle, k) < round_steps:
            low = middle
        else:
            high = middle
    return high
