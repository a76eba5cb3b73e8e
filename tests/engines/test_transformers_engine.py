"""transformers compared with our decoder: the same text, lengths and K; its refusals and log."""

import logging
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, StaticCache
from transformers.utils import logging as transformers_logging

from specbench.engines.engine import InProcess, InstrumentedEngine, Load
from specbench.engines.transformers import BASELINES, COUNTERPARTS
from specbench.engines.transformers_engine import (
    GenerationLog,
    TransformersEngine,
    generate_errors_translated,
    make_peer,
    timeline,
    twin,
)
from specbench.errors import ModelError, UsageError
from specbench.forward.attention import stock
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner, check_context
from specbench.inputs.pairing import DrafterSpec
from specbench.records import RequestSettings, Result, RoundLog, Sampling
from specbench.records.lossy import LossyRule
from tests.decoding.models import ARCHITECTURES, build, plain_logits, random_prompt, tiny_llama
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


@pytest.mark.parametrize("work", ALL, ids=by_method)
def test_tokens_that_come_with_the_first_are_not_timed(engine, work):
    result = engine.generate(request(), work)
    log = result.rounds
    timed = [n for n, s in zip(log.num_emitted, log.round_s, strict=True) if s > 0]
    assert result.num_timed_tokens == sum(timed)
    assert result.num_first > 1 or work is not ASSISTED


def test_tokens_after_a_stop_string_do_not_come_with_the_first(engine):
    whole = engine.generate(request(), ASSISTED)
    stop = RequestSettings(stop=(engine.tokenizer.text(whole.output_ids[:1]),))
    result = engine.generate(request(stop_at_eos=True, settings=stop), ASSISTED)
    assert (len(result.output_ids), result.num_first, result.num_timed_tokens) == (1, 1, 0)


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
    """The log of transformers, including warnings that it emits only once."""
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


def test_a_lossy_rule_of_the_built_in_decoder_is_refused(engine):
    rule = LossyRule(name="typical", parameters={"threshold": 0.09, "alpha": 0.3})
    with pytest.raises(UsageError, match=r"bold.*typical.*--engine builtin"):
        engine.add_drafter(DrafterSpec(name="bold", method="ngram", lossy=rule))


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
    assert not isinstance(engine, InstrumentedEngine)


def test_the_methods_of_transformers_are_listed_without_torch():
    assert COUNTERPARTS == {
        "draft_model": ("assisted", "assisted_default"),
        "ngram": ("prompt_lookup",),
    }
    assert BASELINES == ("generate", "generate_static")
    assert {w.method for w in DRAFTING} == {m for methods in COUNTERPARTS.values() for m in methods}
    code = "import sys, specbench.engines.transformers; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


PROMPT_1T = torch.tensor([random_prompt(9, seed=3)])


def tensors_of(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def storages_of(*models):
    return {
        tensor.untyped_storage().data_ptr()
        for model in models
        for tensor in tensors_of(model).values()
    }


def attention_of(model):
    return model.config.get_text_config()._attn_implementation


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_peer_module_shares_weights_and_has_equal_logits(name):
    model = build(ARCHITECTURES[name]())
    model.set_attn_implementation("eager")
    expected = plain_logits(model, PROMPT_1T)

    peer = make_peer(model)

    assert tensors_of(peer).keys() == tensors_of(model).keys()
    assert storages_of(peer, model) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)


def test_a_peer_module_shares_buffers_that_no_file_has():
    model = tiny_llama()
    first, second = (
        dict(m.named_buffers())["model.rotary_emb.inv_freq"] for m in (model, twin(model))
    )
    assert first.data_ptr() == second.data_ptr()


def test_tied_weights_stay_tied():
    peer = twin(tiny_llama(tie_word_embeddings=True))
    assert peer.get_input_embeddings().weight is peer.get_output_embeddings().weight


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_our_attention_and_that_of_the_peer_stay_separate(is_ours_first):
    model = tiny_llama()
    expected = plain_logits(model, PROMPT_1T)
    if is_ours_first:
        StockRunner(model)
        peer = make_peer(model)
    else:
        peer = make_peer(model)
        StockRunner(model)

    assert attention_of(model) == stock.NAME
    assert attention_of(peer) == "sdpa"
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-5)


@pytest.mark.parametrize("is_fused_first", [True, False])
def test_weights_that_become_views_of_a_fused_matrix_stay_shared(is_fused_first):
    model = tiny_llama()
    expected = plain_logits(model, PROMPT_1T)

    def fuse():
        mlp = model.model.layers[0].mlp
        fused = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        mlp.gate_proj.weight.data, mlp.up_proj.weight.data = fused.chunk(2)

    if is_fused_first:
        fuse()
    peer = make_peer(model)
    if not is_fused_first:
        fuse()

    assert storages_of(peer) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-5)


@pytest.mark.parametrize("is_ours_first", [True, False])
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral + window"])
def test_a_fused_runner_and_a_peer_hold_one_set_of_weights(name, is_ours_first):
    model = build(ARCHITECTURES[name]())
    expected = plain_logits(model, PROMPT_1T)

    with torch.inference_mode():  # as the decoder makes its runners
        if is_ours_first:
            FusedRunner(model)
            peer = make_peer(model)
        else:
            peer = make_peer(model)
            FusedRunner(model)

    assert storages_of(peer) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)
    with torch.inference_mode():
        assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["Gemma2 + window", "GPT-OSS + window"])
def test_attention_that_the_kernel_lacks_runs_eagerly(name):
    assert attention_of(make_peer(build(ARCHITECTURES[name]()))) == "eager"


def test_settings_of_the_checkpoint_stay_with_the_checkpoint():
    model = tiny_llama()
    model.generation_config.repetition_penalty = 3.0

    peer = make_peer(model)

    assert peer.generation_config.repetition_penalty is None
    assert model.generation_config.repetition_penalty == 3.0


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

    with pytest.raises(ModelError) as caught:
        engine.generate(request(4, prompt=prompt), work)

    with pytest.raises(ModelError, match=r"257.*256") as decoders:
        check_context(CONTEXT, CONTEXT + 1)
    assert str(caught.value) == str(decoders.value)


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
    new_engine, work, attribute, value, words
):
    setattr(new_engine._module, attribute, value)
    with pytest.raises(ModelError, match=words):
        new_engine.generate(request(), work)

    delattr(new_engine._module, attribute)
    assert new_engine.generate(request(), work) is not None


@pytest.mark.parametrize("kind", [ValueError, NotImplementedError, RuntimeError])
def test_a_transformers_error_becomes_one_line_with_its_cause_chained(kind):
    with pytest.raises(ModelError) as caught, generate_errors_translated(tiny_llama(), "assisted"):
        raise kind("no such cache\nand a page about it")
    assert re.fullmatch(
        "transformers .*assisted .*LlamaForCausalLM: no such cache; .*--engine", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, KeyError, ModelError])
def test_other_errors_inside_transformers_are_raised_unchanged(kind):
    with (
        pytest.raises(kind, match="as it was"),
        generate_errors_translated(tiny_llama(), "assisted"),
    ):
        raise kind("as it was")


def test_a_longer_static_cache_is_made_ready_before_the_request_that_needs_it(new_engine):
    def decode(num_tokens):
        return static_lengths(lambda: new_engine.generate(request(num_tokens), STATIC))

    prompt = len(PROMPT)
    assert decode(6) == [prompt + 6] * (4 + 6)  # a few tokens first
    assert decode(6) == [prompt + 6] * 6
    assert decode(2) == [prompt + 6] * 2  # a shorter one changes nothing
    assert decode(9) == [prompt + 9] * (4 + 9)


def test_a_pass_makes_the_static_cache_ready_once_for_its_longest_request(new_engine):
    requests = [request(5), request(9), request(7)]
    prompt = len(PROMPT)

    lengths = static_lengths(lambda: new_engine.serve(requests, STATIC, Load()))

    assert lengths == [prompt + 9] * (4 + 5 + 9 + 7)


def test_preparing_a_static_cache_is_not_timed(new_engine, monkeypatch):
    """The clock advances only by the forwards, because a busy machine may slow either part."""
    now = 0.0

    def forward(_module, _output):
        nonlocal now
        now += 1.0

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    served = []
    ran = passes_of(lambda: served.append(new_engine.serve([request(4)], STATIC, Load())), forward)
    assert len(ran) == 4 + 4  # its preparation, and the pass
    assert served[0].seconds == 4.0
    assert served[0].results[0].total_s == 4.0


def test_only_the_static_baseline_is_made_ready(new_engine):
    ran = passes_of(lambda: new_engine.generate(request(5), BASELINE), by_kind)
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
    sent = request(prompt=PROMPT[:num_prompt])
    whole = engine.generate(sent, BASELINE).output_ids
    assert len(whole) == NUM_TOKENS

    result = engine.generate(replace(sent, max_new_tokens=num_tokens), work)

    assert result.output_ids == whole[:num_tokens]
    assert sum(result.rounds.num_emitted) == num_tokens - 1


def log_of(fed, put):
    """A log of a two-token prompt (1, 2): token ids fed to each forward, tokens put after it."""
    log = GenerationLog(num_prompt_tokens=2)
    log.put(torch.tensor([[1, 2]]))
    for tokens, num_put in zip(fed, put, strict=True):
        log.feed(None, (), {"input_ids": torch.tensor([tokens])})
        log.put(torch.zeros(1, num_put))
    return log


def counts(rounds):
    columns = (rounds.num_drafted, rounds.num_accepted, rounds.num_emitted)
    return list(zip(*columns, strict=True))


def test_a_rejected_first_draft_leaves_no_round_before_the_second():
    # Drafts 7 8 9; the target says 3. Then drafts 4 5 6 after 3; it says 4 5 0.
    log = log_of(fed=[[1, 2, 7, 8, 9], [3, 4, 5, 6]], put=[1, 3])
    assert counts(log.rounds((3, 4, 5, 0), k=3)) == [(3, 2, 3)]


def test_drafts_verified_in_prefill_form_a_round_of_zero_time():
    # Drafts 3 4 9: the first is prefill's token, 4 is accepted, 5 replaces 9.
    log = log_of(fed=[[1, 2, 3, 4, 9], [5, 6, 7, 8]], put=[3, 4])
    rounds = log.rounds((3, 4, 5, 6, 7, 8, 0), k=3)
    assert counts(rounds) == [(2, 1, 2), (3, 3, 4)]
    assert rounds.round_s[0] == 0.0
    assert sum(rounds.round_s) == log.last_token_s - log.first_token_s


def test_a_round_that_the_end_of_text_cuts_counts_the_drafts_in_the_text():
    # Drafts 4 0 6, all right, but 0 ends the text.
    log = log_of(fed=[[1, 2], [3, 4, 0, 6]], put=[1, 2])
    assert counts(log.rounds((3, 4, 0), k=3)) == [(3, 2, 2)]


def test_a_lookup_that_misses_drafts_nothing():
    log = log_of(fed=[[1, 2], [3]], put=[1, 1])
    assert counts(log.rounds((3, 4), k=3)) == [(0, 0, 1)]


def test_without_a_drafter_every_token_is_a_round():
    log = GenerationLog(num_prompt_tokens=2)
    log.put(torch.tensor([[1, 2]]))
    for _ in range(3):
        log.put(torch.tensor([5]))
    assert counts(log.rounds((5, 5, 5), k=0)) == [(0, 0, 1), (0, 0, 1)]


def test_rounds_that_drafted_beyond_k_are_not_reported():
    log = log_of(fed=[[1, 2], [3, 4, 5, 6]], put=[1, 2])
    assert log.rounds((3, 4, 0), k=2) is None


def result(*, arrived_s, round_s):
    ones = (1,) * len(round_s)
    return Result(
        output_ids=(1,) * (1 + len(round_s)),
        finish_reason="length",
        prefill_s=None,
        ttft_s=0.5,
        decode_s=sum(round_s),
        total_s=0.5 + sum(round_s),
        cpu_s=None,
        rounds=RoundLog(num_drafted=ones, num_accepted=ones, num_emitted=ones, round_s=round_s),
        arrived_s=arrived_s,
    )


def test_a_timeline_lays_requests_one_after_the_other():
    rounds = timeline(
        [result(arrived_s=0.0, round_s=(1.0, 2.0)), result(arrived_s=4.0, round_s=(0.25,))], k=3
    )
    assert rounds.at_s == pytest.approx((0.5, 1.5, 4.5))
    assert rounds.seconds == (1.0, 2.0, 0.25)
    assert rounds.num_speculative_tokens == (3, 3, 3)
    assert rounds.num_live == rounds.num_rows == (1, 1, 1)
