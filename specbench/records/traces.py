"""What a drafter would do along a target's own text: the ground that a forecast stands on."""

from dataclasses import dataclass
from typing import Literal

Drafting = Literal["own", "greedy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRecord:
    """Every round that could start in one text of the target, and how far it would get.

    Start s = 0 .. n - 2 is a round after output token s; its drafts are guesses of tokens s + 1,
    s + 2 and so on. The text does not depend on where rounds start, so rounds are replayed over
    it for every K without running anything (`pairing.replay`).
    """

    target: str
    drafter: str
    method: str
    workload: str
    prompt_id: str
    turn: int
    repeat: int
    temperature: float
    num_speculative_tokens: int  # the depth that was traced
    is_chain: bool  # every smaller K drafts a prefix of it: this one trace serves all of them
    is_exact: bool  # False: what it drafts depends on where earlier rounds began, or on others
    num_prompt_tokens: int
    output_ids: tuple[int, ...]  # the target's own text, n tokens; the first is from prefill
    # Per start, of a tree nodes; without those that the budget leaves no room for.
    num_drafted: tuple[int, ...]
    # Per start and depth: P(the draft there is accepted | the text, and those before it were
    # accepted); 0 or 1 where the text decides it. It ends where the budget, the text or the drafts
    # end.
    chances: tuple[tuple[float, ...], ...]
    drafting: Drafting = "own"  # greedy: the likeliest tokens at any temperature, as vLLM drafts
    context: int | None = None  # as in CellKey
    seconds: float | None = None  # that tracing it took; the text itself is not in it
