"""Controllers of adaptive K: which passes share one, and which share round costs."""

from dataclasses import replace

import pytest

from specbench.decode.adaptive_k import Calibration, RoundCostModel
from specbench.engines import builtin
from specbench.engines.builtin import Controllers
from specbench.engines.engine import Load, Work
from specbench.records import Request, Sampling

REQUEST = Request(prompt_ids=(1,), max_new_tokens=8, sampling=Sampling(), seed=0)
WARM = replace(REQUEST, sampling=Sampling(temperature=0.7))
CHAT = Work(drafter="draft", method="draft_model", k=2, adaptive=True, workload="chat")
OTHER = replace(CHAT, drafter="other")


@pytest.fixture
def measured(monkeypatch):
    """The batch sizes for which rounds were measured; each time takes a second."""
    batch_sizes = []

    def measure(_, prompt_ids, ks, num_rows, sampler):  # noqa: ARG001
        batch_sizes.append(num_rows)
        costs = RoundCostModel({(num_rows, k): (1.0 + k,) for k in ks})
        return Calibration(costs, 1.0)

    monkeypatch.setattr(builtin, "measure_round_costs", measure)
    return batch_sizes


def opened(made, work=CHAT, request=REQUEST, load=Load()):  # noqa: B008 - frozen
    return made.open(request, work, load, work.k, lambda: None)


def test_workloads_share_the_costs_of_rounds_and_not_the_controller(measured):
    made = Controllers()
    chat, chat_s = opened(made)
    code, code_s = opened(made, replace(CHAT, workload="code"))
    assert (chat_s, code_s) == (1.0, 0.0)
    assert code is not chat
    assert opened(made) == (chat, 0.0)
    assert measured == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"work": replace(CHAT, context=4096)},
        {"work": replace(CHAT, k=3)},
        {"work": OTHER},
        {"request": WARM},
        {"load": Load(concurrency=2)},
    ],
    ids=["context", "k", "drafter", "sampling", "rows"],
)
def test_a_change_that_affects_round_cost_recalibrates_the_controller(measured, other):
    made = Controllers()
    first, _ = opened(made)
    second, seconds = opened(made, **other)
    assert second is not first
    assert seconds == 1.0
    assert len(measured) == 2


def test_the_controller_of_a_removed_drafter_is_forgotten(measured):
    made = Controllers()
    (draft, _), (other, _) = opened(made), opened(made, OTHER)
    made.forget("draft")
    assert opened(made, OTHER) == (other, 0.0)
    again, seconds = opened(made)
    assert again is not draft
    assert seconds == 1.0
    assert len(measured) == 3
