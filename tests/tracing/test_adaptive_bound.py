"""Decoding that is forced to the best K of every round accepts what the bound says."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from specbench.decode.scheduler import FixedK
from specbench.engines.engine import Load, Work
from specbench.forecast.adaptive_bound import cheapest
from specbench.forecast.forecast import steps
from specbench.records import RoundLog
from specbench.tracing.trace import TargetText, trace_conversation
from tests.tracing.answers import Options, conversations, method_of, open_demo, request_of

pytestmark = pytest.mark.slow  # rounds of the bundled pair

KS = range(9)
COST_K = 1 + 0.15 * np.arange(len(KS))


class ScheduledK(FixedK):
    """The given K of each round, for one row."""

    def __init__(self, ks: list[int]) -> None:
        super().__init__(max(KS))
        self._ks = iter(ks)

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        return next(self._ks, 0)  # a round may start before the last one is known to end the text


def decode(engine, drafter: str, text: TargetText, ks: list[int]) -> RoundLog:
    work = Work(drafter=drafter, method=method_of(drafter), k=max(KS))
    (result,) = engine._serve([request_of(text)], work, Load(), ScheduledK(ks)).results
    assert result.output_ids == text.output_ids
    assert result.rounds is not None
    return result.rounds


MIXED = ("code", "chat", "creative")


@pytest.mark.sampled(one_in=2, every=["drafter", "workloads"])
@pytest.mark.parametrize("workloads", [*((name,) for name in MIXED), MIXED], ids="+".join)
@pytest.mark.parametrize("drafter", ["draft", "ngram"])
def test_a_decode_at_the_best_k_accepts_what_the_walk_does(drafter: str, workloads: Sequence[str]):
    engine = open_demo(drafter)
    used = set()
    options = Options(max_new_tokens=40)
    prompts = [conversations(engine, workload, 2, options) for workload in workloads]
    for conversation in chain.from_iterable(zip(*prompts, strict=True)):
        text = conversation[0]
        (record,) = trace_conversation(engine, drafter, method_of(drafter), [text], KS)
        at_k = [steps(record, k) for k in KS]
        schedule, ks, accepted, start = cheapest(at_k, COST_K), [], [], 0
        while start < text.num_starts:
            k = schedule.choice_S[start]
            ks.append(k)
            accepted.append(int(at_k[k].accepted_SA[start].argmax()))
            start = at_k[k].next_SA[start, accepted[-1]]
        assert COST_K[ks].sum() == pytest.approx(schedule.cost)
        assert decode(engine, drafter, text, ks).num_accepted == tuple(accepted)
        used |= {*ks}
    assert len(used) > 1
