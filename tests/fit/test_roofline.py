"""The minimum bytes of a round, counted from files, against the bytes that its forwards read."""

from dataclasses import replace

import pytest

from specbench.fit.memory_plan import DeploymentSpec, plan_pair
from specbench.inputs.pairing import DrafterSpec
from specbench.stats.rounds import bytes_per_forward, roofline_s
from tests.fit.tiny_drafters import TinyDrafters
from tests.tiny_models import VOCAB_SIZE

K, CONTEXT, ROWS = 4, 100, 3
WIDTH, INNER = 32, 48  # of the tiny target, with half as many key heads as query heads
# One byte per second: seconds are bytes.
PLACE = DeploymentSpec(
    device="cpu", context=CONTEXT, concurrency=ROWS, num_speculative_tokens=K, bytes_per_s=1.0
)
HEAD = 4 * VOCAB_SIZE * WIDTH  # the target's
LAYER = 4 * (3 * WIDTH * WIDTH + 3 * WIDTH * INNER)
KV = 4 * WIDTH  # of a token in one layer


def drafting_bytes(
    tiny: TinyDrafters, drafter: DrafterSpec, place: DeploymentSpec = PLACE
) -> float:
    """Bytes that a round reads in addition to a step."""
    plan = plan_pair(tiny.files, drafter, place)
    assert plan is not None
    assert plan.step_s is not None
    assert plan.round_s is not None
    return plan.round_s - plan.step_s


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("draft_model", {}), ("eagle", {"tree": "chain"}), ("medusa", {"tree": "chain"}), ("mtp", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_drafting_reads_what_its_forwards_read(tiny, method, parameters):
    drafter = tiny.drafter(method, **parameters)
    engine = tiny.decoded(drafter, K)
    target, *passes = engine.forwards(method, K)

    def read(forward) -> int:
        return forward.times * engine.bytes_read(method, forward, ROWS, CONTEXT)

    plan = plan_pair(tiny.files, drafter, PLACE)
    assert plan is not None
    assert plan.step_s == read(target)
    assert drafting_bytes(tiny, drafter) == sum(map(read, passes)) > 0


def test_eagle_reads_its_layer_and_the_targets_head_in_every_forward(tiny):
    joined = 4 * 2 * WIDTH * WIDTH
    norm = 4 * WIDTH  # of EAGLE's layer, which has none before its attention
    once = joined + LAYER + norm + HEAD + ROWS * CONTEXT * KV
    assert drafting_bytes(tiny, tiny.drafter("eagle", tree="chain")) == K * once


def test_medusa_reads_its_own_heads_once_and_no_keys(tiny):
    block_bytes = 4 * (WIDTH * WIDTH + WIDTH) + HEAD  # a block with a bias, and a separate matrix
    medusa = tiny.drafter("medusa", tree="chain")
    assert drafting_bytes(tiny, medusa) == K * block_bytes
    longer = replace(PLACE, context=2 * CONTEXT)
    assert drafting_bytes(tiny, medusa, longer) == K * block_bytes


def test_eagle3_has_its_own_head_and_does_not_read_the_targets(tiny):
    """A step short of exact: the matrix that joins three layers' states is read once per round."""
    drafter = tiny.drafter("eagle3", tree="chain")
    engine = tiny.decoded(drafter, K)
    _, *passes = engine.forwards("eagle3", K)
    read = sum(f.times * engine.bytes_read("eagle3", f, ROWS, CONTEXT) for f in passes)
    assert drafting_bytes(tiny, drafter) == read + (K - 1) * 4 * 3 * WIDTH * WIDTH


def test_dflash_reads_the_targets_head_once_per_block(tiny):
    drafter = tiny.drafter("dflash")
    plan = plan_pair(tiny.files, drafter, PLACE)
    assert plan is not None
    assert plan.draft is not None
    once = plan.draft.nbytes + HEAD + ROWS * CONTEXT * plan.draft.kv_bytes_per_token
    assert drafting_bytes(tiny, drafter) == once
    engine = tiny.decoded(drafter, K)
    _, *passes = engine.forwards("dflash", K)
    read = sum(f.times * engine.bytes_read("dflash", f, ROWS, CONTEXT) for f in passes)
    assert once < read < once + plan.draft.nbytes, "a lower bound, and not far below"


@pytest.mark.parametrize("method", ["ngram", "lookahead", "token_recycling"])
def test_drafting_without_own_layers_reads_nothing(tiny, method):
    assert drafting_bytes(tiny, tiny.drafter(method)) == 0


def test_a_forward_takes_its_bytes_over_the_bandwidth():
    assert bytes_per_forward(1_000, 3, 10, 8) == 1_000 + 3 * 10 * 8
    assert roofline_s(3_000, 1_500.0) == 2.0


def test_the_targets_first_layers_read_its_whole_head(tiny):
    """Exact except for the final norm, of which a share is counted: 0.1%."""
    drafter = tiny.drafter("self_speculation", num_layers=2)
    engine = tiny.decoded(drafter, K)
    _, *passes = engine.forwards("self_speculation", K)
    read = sum(f.times * engine.bytes_read("self_speculation", f, ROWS, CONTEXT) for f in passes)
    assert drafting_bytes(tiny, drafter) == pytest.approx(read, rel=2e-3)
