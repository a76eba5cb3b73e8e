"""The peer at its edges: too long a text, a refusal, a cache that must grow, one token."""

import re
import time
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM, StaticCache

from specbench.engines.engine import Load
from specbench.engines.transformers_engine import generate_errors_translated
from specbench.errors import ModelError
from specbench.forward.runner import check_context
from tests.decoding.models import random_prompt, tiny_llama
from tests.engines.peer_work import (
    ALL,
    ASSISTED,
    BASELINE,
    NUM_TOKENS,
    PROMPT,
    STATIC,
    by_method,
    request,
    watched,
)

CONTEXT = 256  # of the tiny pair


def passes_of(run, of):
    """`of(module, output)` of every forward of a whole model during `run()`, in order."""
    seen = []

    def note(module, _inputs, output):
        if isinstance(module, LlamaForCausalLM):
            seen.append(of(module, output))

    with watched(note):
        run()
    return seen


def static_lengths(run):
    """The static cache's length in every forward."""

    def length(_module, output):
        assert isinstance(output.past_key_values, StaticCache)
        return output.past_key_values.get_max_length()

    return passes_of(run, length)


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_a_text_beyond_the_context_gives_the_error_of_the_decoder(engine, work):
    prompt = tuple(random_prompt(CONTEXT - 3, seed=1))
    assert len(engine.generate(request(3, prompt=prompt), work).output_ids) == 3

    with pytest.raises(ModelError) as told:
        engine.generate(request(4, prompt=prompt), work)

    with pytest.raises(ModelError, match=r"257.*256") as decoders:
        check_context(CONTEXT, CONTEXT + 1)
    assert str(told.value) == str(decoders.value)


def test_a_pass_with_one_request_too_long_is_refused_before_any_is_decoded(engine):
    requests = [request(), request(CONTEXT)]

    def serve():
        with pytest.raises(ModelError, match="take 276 tokens"):
            engine.serve(requests, BASELINE, Load())

    assert passes_of(serve, by_kind) == []


def by_kind(module, _output):
    return type(module)


@pytest.mark.parametrize(
    ("work", "attribute", "value", "words"),
    [
        (ASSISTED, "_is_stateful", True, "cannot run assisted on LlamaForCausalLM: assisted gen"),
        (STATIC, "_supported_generation_modes", (), "cannot run generate_static on .* only supp"),
    ],
)
def test_a_mode_refused_by_transformers_is_reported_and_others_run(
    own_engine, work, attribute, value, words
):
    setattr(own_engine._module, attribute, value)
    with pytest.raises(ModelError, match=words):
        own_engine.generate(request(), work)

    delattr(own_engine._module, attribute)
    assert own_engine.generate(request(), work) is not None


@pytest.mark.parametrize("kind", [ValueError, NotImplementedError, RuntimeError])
def test_a_transformers_error_becomes_one_line_with_its_cause_chained(kind):
    with pytest.raises(ModelError) as told, generate_errors_translated(tiny_llama(), "assisted"):
        raise kind("no such cache\nand a page about it")
    assert re.fullmatch(
        "transformers .*assisted .*LlamaForCausalLM: no such cache; .*--engine", str(told.value)
    )
    assert isinstance(told.value.__cause__, kind)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, KeyError, ModelError])
def test_other_errors_inside_transformers_are_raised_unchanged(kind):
    with (
        pytest.raises(kind, match="as it was"),
        generate_errors_translated(tiny_llama(), "assisted"),
    ):
        raise kind("as it was")


def test_a_longer_static_cache_is_made_ready_before_the_request_that_needs_it(own_engine):
    def decode(num_tokens):
        return static_lengths(lambda: own_engine.generate(request(num_tokens), STATIC))

    prompt = len(PROMPT)
    assert decode(6) == [prompt + 6] * (4 + 6)  # a few tokens first
    assert decode(6) == [prompt + 6] * 6
    assert decode(2) == [prompt + 6] * 2  # a shorter one changes nothing
    assert decode(9) == [prompt + 9] * (4 + 9)


def test_a_pass_makes_the_static_cache_ready_once_for_its_longest_request(own_engine):
    requests = [request(5), request(9), request(7)]
    prompt = len(PROMPT)

    lengths = static_lengths(lambda: own_engine.serve(requests, STATIC, Load()))

    assert lengths == [prompt + 9] * (4 + 5 + 9 + 7)


def test_preparing_a_static_cache_is_not_timed(own_engine, monkeypatch):
    """On a clock that goes on by the forwards alone: a busy machine is slow in either part."""
    now = 0.0

    def forward(_module, _output):
        nonlocal now
        now += 1.0

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    served = []
    ran = passes_of(lambda: served.append(own_engine.serve([request(4)], STATIC, Load())), forward)
    assert len(ran) == 4 + 4  # what makes it ready, and the pass
    assert served[0].seconds == 4.0
    assert served[0].results[0].total_s == 4.0


def test_the_plain_baseline_runs_no_preparation(own_engine):
    ran = passes_of(lambda: own_engine.generate(request(5), BASELINE), by_kind)
    assert len(ran) == 5


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_generation_keeps_no_record_for_gradients(engine, work):
    def is_inference(_module, output):
        return torch.is_inference_mode_enabled() and output.logits.is_inference()

    assert set(passes_of(lambda: engine.generate(request(6), work), is_inference)) == {True}


def test_a_longer_conversation_is_prefilled_whole_and_that_is_noted(engine):
    (note,) = [note for note in engine.record.notes if "conversation" in note]
    assert "prefills the earlier turns" in note

    first = engine.generate(request(4, conversation="a"), BASELINE)
    history = (*PROMPT, *first.output_ids, 7)

    def fed(_module, output):
        return output.past_key_values.get_seq_length()

    second = request(1, prompt=history, conversation="a")
    assert passes_of(lambda: engine.generate(second, BASELINE), fed) == [len(history)]


@pytest.mark.sampled(one_in=4, every=["work", "num_prompt", "num_tokens"])
@pytest.mark.slow
@pytest.mark.parametrize("work", ALL, ids=by_method)
@pytest.mark.parametrize("num_prompt", [1, 2, 3, len(PROMPT)])
@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_a_short_text_is_a_prefix_of_a_longer_one(engine, work, num_prompt, num_tokens):
    asked = request(prompt=PROMPT[:num_prompt])
    whole = engine.generate(asked, BASELINE).output_ids
    assert len(whole) == NUM_TOKENS

    result = engine.generate(replace(asked, max_new_tokens=num_tokens), work)

    assert result.output_ids == whole[:num_tokens]
    assert sum(result.rounds.num_emitted) == num_tokens - 1
