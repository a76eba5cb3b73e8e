"""The demo models: forecast counts equal measured counts.

Greedy, float32, for K from 1 to 8; every third K is measured.
"""

from collections.abc import Sequence
from functools import cache

import pytest

from specbench.engines.builtin import BuiltinEngine
from specbench.forecast.forecast import replay_one, serves
from specbench.records import TraceRecord
from specbench.tracing.trace import TargetText, trace_conversation
from tests.tracing.answers import (
    WORKLOADS,
    Options,
    conversations,
    counted,
    measured,
    method_of,
    open_demo,
)

pytestmark = pytest.mark.slow  # rounds of the bundled pair

KS = range(1, 9)
EVERYWHERE = ("draft", "ngram")
ON_EDIT = ("eagle", "eagle-tree", "medusa", "medusa-tree", "draft-tree", "self", "suffix")
ON_EDIT += ("previous-turn", "poor")
LIKE = ("draft-tree", "poor", "eagle-tree")  # another of the same method is replayed


@cache
def engine() -> BuiltinEngine:
    return open_demo(*EVERYWHERE, *ON_EDIT, "token-recycling")


@cache
def texts(workload: str) -> tuple[tuple[TargetText, ...], ...]:
    return tuple(
        tuple(conversation)
        for conversation in conversations(engine(), workload, 2, Options(max_new_tokens=20))
    )


def traces(drafter: str, conversation: Sequence[TargetText]) -> tuple[TraceRecord, ...]:
    return trace_conversation(engine(), drafter, method_of(drafter), conversation, KS)


def assert_equal_counts(drafter: str, conversation: Sequence[TargetText]) -> None:
    records = traces(drafter, conversation)
    for k in KS[: engine().record.max_k.get(drafter, max(KS)) : 3]:
        logs = measured(engine(), drafter, conversation, k)
        serving = [record for record in records if serves(record, k)]
        for record, log in zip(serving, logs, strict=True):
            assert replay_one(record, k) == counted([log], k), f"turn {record.turn}, K = {k}"


@pytest.mark.sampled(one_in=5, every=["drafter"])
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("drafter", EVERYWHERE)
def test_every_k_is_replayed_to_the_round_on_every_workload(drafter: str, workload: str):
    for conversation in texts(workload):
        assert_equal_counts(drafter, conversation)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    "drafter",
    [pytest.param(name, marks=pytest.mark.long if name in LIKE else ()) for name in ON_EDIT],
)
def test_every_other_method_is_replayed_to_the_round(drafter: str):
    """One of the editing prompts has a second turn."""
    assert max(len(conversation) for conversation in texts("edit")) > 1
    for conversation in texts("edit"):
        assert_equal_counts(drafter, conversation)
