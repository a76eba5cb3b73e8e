"""Keys, spare slots and buffers of a drafter: planned as the decoder allocates them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.fit.memory_plan import DeploymentSpec, plan_pair, plan_target
from specbench.fit.weights import kv_elements_per_token, model_weights
from specbench.forward.runner import StockRunner
from specbench.forward.workspace import JoinedCache
from tests.decoding.models import build
from tests.drafters.mtp_families import family_of
from tests.fit.tiny_drafters import CONTEXT
from tests.tiny_models import files_of

K = 3
PLACE = DeploymentSpec(device="cpu", context=CONTEXT, num_speculative_tokens=K)
# Their deepest levels take more slots than there are drafts.
BEAMS = [{"top_k": 4, "max_drafts": 16}, {"top_k": 10, "max_drafts": 12}]


def planned(tiny, drafter, place=PLACE):
    plan = plan_pair(tiny.files, drafter, place)
    assert plan is not None
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("eagle", {"tree": "chain"}),
        ("eagle3", {"tree": "chain"}),
        ("medusa", {"tree": "chain"}),
        ("mtp", {}),
        ("gemma4_mtp", {}),
        ("token_recycling", {"max_drafts": 16}),
        ("lookahead", {"ngram": 4, "window": 3, "guesses": 2}),
        ("previous_turn", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_memory_of_a_drafter_other_than_keys_is_planned(tiny, method, parameters):
    """Compared with n-grams, which store nothing, over the same rows and slots."""
    drafter = tiny.drafter(method, **parameters)
    drafting = tiny.decoded(drafter, K)._drafters[drafter.name]
    nbytes = sum(buffer.nbytes for buffer in drafting.buffers if isinstance(buffer, Tensor))
    assert nbytes > 0

    def rest(of, rows: int) -> int:
        # A lookahead checks more tokens than K: a round of as many drafts, and nothing kept.
        k = planned(tiny, of).num_drafts
        bare = tiny.drafter("ngram")
        at = replace(PLACE, concurrency=rows)
        whole = planned(tiny, of, at)
        alone = planned(tiny, bare, replace(at, num_speculative_tokens=k))
        return whole.peak.rest - alone.peak.rest

    shared = nbytes if method == "token_recycling" else 0  # by all rows
    if drafting.resources.cached_layers is not None:
        layers = drafting.resources.cached_layers.fused
        shared = layers._scratch.nbytes + layers.slots.rope.nbytes
    by_row = 0 if method == "token_recycling" else nbytes
    assert rest(drafter, 1) == by_row + shared
    assert rest(drafter, 3) == 3 * by_row + shared


@pytest.mark.parametrize("beam", BEAMS, ids=str)
def test_a_beam_has_separate_slots_in_the_heads_cache(tiny, beam):
    drafter = tiny.drafter("eagle3", tree="dynamic", **beam)
    engine = tiny.decoded(drafter, K)
    (cache,) = (b for b in engine._drafters["eagle3"].buffers if isinstance(b, JoinedCache))
    of_target = engine._runner.cache
    assert cache.max_len > of_target.max_len

    plan = planned(tiny, drafter)
    assert plan.peak.kv_cache == of_target.max_len * of_target.bytes_per_token + cache.nbytes
    three = planned(tiny, drafter, replace(PLACE, concurrency=3))
    assert three.peak.kv_cache == 3 * plan.peak.kv_cache


def test_a_chain_has_no_extra_slots(tiny):
    drafter = tiny.drafter("eagle3", tree="chain")
    engine = tiny.decoded(drafter, K)
    whole = engine._runner.cache.max_len * engine.kv_bytes_per_token("eagle3")
    assert planned(tiny, drafter).peak.kv_cache == whole


@pytest.mark.parametrize("num_drafts", [21, 25, 26])
def test_the_planned_kv_cache_includes_slots_for_drafts(tiny, num_drafts):
    """38 tokens, the drafts and one more: up to 25 drafts fit into 64 slots."""
    place = replace(PLACE, num_speculative_tokens=num_drafts)
    capacity = 64 if num_drafts <= 25 else 128
    alone = plan_target(tiny.files, place)
    assert alone is not None
    plan = planned(tiny, tiny.drafter("ngram"), place)
    assert plan.peak.kv_cache == capacity * plan.target.kv_bytes_per_token
    assert alone.peak.kv_cache == 64 * plan.target.kv_bytes_per_token


@torch.no_grad()
def test_latent_attention_caches_only_the_latents(tmp_path):
    model = build(family_of("deepseek_v3").config)
    model.save_pretrained(tmp_path)
    runner = StockRunner(model)
    runner.allocate(1, 64)
    tokens_1T = torch.tensor([[5, 6, 7]])
    runner.forward(tokens_1T, torch.arange(3)[None], 64)

    files = files_of(tmp_path)
    # 2 layers: a latent of 8 numbers and 4 rotated ones, whatever the heads unfold from them
    assert kv_elements_per_token(files) == 2 * (8 + 4)
    counted = model_weights(files, "float32")
    assert counted is not None
    assert counted.kv_bytes_per_token == runner.cache.bytes_per_token
    halved = model_weights(files, "bfloat16")
    assert halved is not None
    assert 2 * halved.kv_bytes_per_token == counted.kv_bytes_per_token
