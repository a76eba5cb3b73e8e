"""transformers compared with us: the same text, lengths and K for each of its methods."""

import logging
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, StaticCache
from transformers.utils import logging as transformers_logging

from specbench.engines.engine import InProcess, Instrumented, Load
from specbench.engines.transformers import BASELINES, COUNTERPARTS
from specbench.engines.transformers_engine import TransformersEngine
from specbench.errors import UsageError
from specbench.records import Sampling
from tests.decoding.models import random_prompt
from tests.engines.peer_work import (
    ALL,
    ASSISTED,
    BASELINE,
    DRAFTING,
    NUM_TOKENS,
    PROMPT,
    STATIC,
    by_method,
    request,
    saved,
    watched,
)
from tests.tiny_pair import make_pair


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_greedy_text_of_every_mode_equals_generate(engine, target, work):
    model = LlamaForCausalLM.from_pretrained(target.model.location)
    model.generation_config.eos_token_id = None
    text_1T = model.generate(torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False)
    expected = tuple(text_1T[0, len(PROMPT) :].tolist())

    assert engine.generate(request(), work).output_ids == expected


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("work", ALL, ids=by_method)
@pytest.mark.parametrize("num_tokens", [1, 2, 19])
def test_every_mode_generates_the_requested_number_of_tokens(engine, work, num_tokens):
    assert len(engine.generate(request(num_tokens), work).output_ids) == num_tokens


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_the_end_of_text_ends_generation_only_on_request(engine, work):
    whole = engine.generate(request(), BASELINE).output_ids
    first_end = whole.index(0)  # the tiny pair's only end-of-text id
    assert 5 < first_end < NUM_TOKENS - 1

    result = engine.generate(request(stop_at_eos=True), work)

    assert result.output_ids == whole[: first_end + 1]
    assert result.finish_reason == "eos"


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_rounds_and_seconds_add_up(engine, work):
    result = engine.generate(request(), work)
    rounds = result.rounds
    assert len(result.output_ids) == 1 + sum(rounds.num_emitted)
    assert all(
        a <= d <= work.k for a, d in zip(rounds.num_accepted, rounds.num_drafted, strict=True)
    )
    assert sum(rounds.round_s) == pytest.approx(result.decode_s)
    assert 0 < result.ttft_s < result.ttft_s + result.decode_s <= result.total_s
    assert result.cpu_s > 0


def test_rounds_emit_what_was_accepted_and_one_more(engine):
    rounds = engine.generate(request(), ASSISTED).rounds
    assert rounds.num_emitted == tuple(a + 1 for a in rounds.num_accepted)
    assert sum(rounds.num_accepted) > 0


def test_prefill_is_reported_only_if_it_runs_separately(engine):
    alone = engine.generate(request(), BASELINE)
    assert alone.prefill_s == alone.ttft_s
    assert engine.generate(request(), ASSISTED).prefill_s is None


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_only_the_static_baseline_has_a_static_cache(engine, work):
    caches = set()

    def note(module, _inputs, output):
        if isinstance(module, LlamaForCausalLM):
            caches.add(type(output.past_key_values))

    with watched(note):
        engine.generate(request(4), work)
    assert caches == {StaticCache if work is STATIC else DynamicCache}


def test_sampling_settings_of_the_checkpoint_are_ignored(engine, target, pool, tmp_path):
    model, _ = make_pair()
    model.generation_config.do_sample = True
    model.generation_config.temperature = 3.0
    model.generation_config.repetition_penalty = 5.0
    spec = saved(tmp_path / "target", model)
    other = TransformersEngine(replace(target, model=spec), pool)

    assert other.generate(request(), BASELINE).output_ids == (
        engine.generate(request(), BASELINE).output_ids
    )


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_sampled_text_follows_from_the_seed(engine, work):
    texts = [
        engine.generate(request(temperature=1.0, seed=seed), work).output_ids for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_top_k_and_top_p_reach_the_sampler(engine):
    greedy = engine.generate(request(), BASELINE).output_ids
    for narrow in (
        Sampling(temperature=2.0, top_k=1),
        Sampling(temperature=2.0, top_p=1e-6),
        Sampling(temperature=1e-4),
    ):
        sampled = replace(request(), sampling=narrow)
        assert engine.generate(sampled, BASELINE).output_ids == greedy
    assert engine.generate(request(temperature=2.0), BASELINE).output_ids != greedy


def test_the_callers_random_state_is_restored(engine):
    before = torch.get_rng_state()
    engine.generate(request(temperature=1.0, seed=5), ASSISTED)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def logged():
    """What transformers logs, warnings that it gives only once included."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    transformers_logging.warning_once.cache_clear()
    transformers_logging.add_handler(handler)
    yield records
    transformers_logging.remove_handler(handler)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_transformers_generation_prints_and_logs_nothing(engine, logged, capfd, temperature):
    for work in ALL:
        engine.generate(request(temperature=temperature, stop_at_eos=True), work)
    assert not logged
    assert capfd.readouterr() == ("", "")


def test_the_callers_logging_level_is_restored(engine):
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_info()
    try:
        engine.generate(request(4), ASSISTED)
        assert transformers_logging.get_verbosity() == transformers_logging.INFO
    finally:
        transformers_logging.set_verbosity(before)


def test_requests_are_served_one_after_the_other(engine):
    requests = [request(seed=i, prompt=random_prompt(8, i)) for i in range(3)]

    served = engine.serve(requests, ASSISTED, Load())

    texts = [result.output_ids for result in served.results]
    assert texts == [engine.generate(r, ASSISTED).output_ids for r in requests]
    arrivals = [result.arrived_s for result in served.results]
    assert arrivals == sorted(arrivals)
    assert arrivals[2] >= served.results[0].total_s + served.results[1].total_s
    assert served.seconds >= sum(result.total_s for result in served.results)
    assert 3 + sum(served.rounds.num_emitted) == 3 * NUM_TOKENS


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(request_rate=1.0)])
def test_more_than_one_row_or_open_arrivals_are_refused(engine, load):
    with pytest.raises(UsageError, match="--concurrency 1"):
        engine.serve([request()], BASELINE, load)


def test_an_adaptive_k_is_refused(engine):
    with pytest.raises(UsageError, match="-k auto"):
        engine.generate(request(), replace(ASSISTED, adaptive=True))


@pytest.mark.parametrize(
    "work", [replace(BASELINE, k=4), replace(ASSISTED, k=0), replace(ASSISTED, method="ngram")]
)
def test_a_method_that_is_not_transformers_own_is_a_bug(engine, work):
    with pytest.raises(ValueError, match="has no method"):
        engine.generate(request(), work)


def test_bytes_are_known_and_rounds_cannot_be_split_into_parts(engine):
    assert isinstance(engine, InProcess)
    assert not isinstance(engine, Instrumented)


def test_the_methods_of_transformers_are_listed_without_torch():
    assert COUNTERPARTS == {
        "draft_model": ("assisted", "assisted_default"),
        "ngram": ("prompt_lookup",),
    }
    assert BASELINES == ("generate", "generate_static")
    assert {w.method for w in DRAFTING} == {m for methods in COUNTERPARTS.values() for m in methods}
    code = "import sys, specbench.engines.transformers; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
