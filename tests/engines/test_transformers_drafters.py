"""Drafters of transformers' engine: how each drafts, what it accepts, and which are refused."""

import json
from dataclasses import replace
from itertools import takewhile

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.engines.engine import Work
from specbench.engines.transformers import ASSISTED_DEFAULT_K
from specbench.errors import CompatibilityError, UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import DrafterSpec
from specbench.records import NO_DRAFTER
from tests.engines.peer_work import ASSISTED, DEFAULT, LOOKUP, request, saved, watched
from tests.tiny_pair import make_pair, make_tokenizer


def forwards_of(engine, work):
    """The models that ran, in order: `d` the draft of one layer, `t` the target."""
    ran = []

    def note(module, _inputs, _output):
        if isinstance(module, LlamaForCausalLM):
            ran.append("d" if module.config.num_hidden_layers == 1 else "t")

    with watched(note):
        engine.generate(request(), work)
    return "".join(ran)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_transformers_drafts_a_fixed_k_tokens_in_every_round(engine, k):
    rounds = forwards_of(engine, replace(ASSISTED, k=k)).split("t")
    assert rounds.pop() == ""
    # Only near the end the budget is too small for K drafts and the bonus token.
    whole = list(takewhile(lambda drafts: len(drafts) == k, rounds))
    assert len(whole) > 3
    assert len(rounds) - len(whole) <= k


def test_default_assisted_generation_drafts_differently(engine):
    assert forwards_of(engine, DEFAULT) != forwards_of(engine, replace(ASSISTED, k=20))


def test_a_method_leaves_no_setting_for_the_next(engine):
    alone = forwards_of(engine, DEFAULT)
    forwards_of(engine, ASSISTED)
    assert forwards_of(engine, DEFAULT) == alone


def test_the_librarys_defaults_are_recorded(engine):
    (note,) = [note for note in engine.record.notes if note.startswith("draft:")]
    assert {"20", "(constant),"} <= set(note.split())
    assert "0.4" in note


def test_the_checkpoints_assistant_settings_are_the_default(engine, tmp_path):
    _, draft = make_pair()
    draft.generation_config.num_assistant_tokens = 2
    draft.generation_config.assistant_confidence_threshold = 0.0
    model = saved(tmp_path / "draft", draft)
    engine.add_drafter(DrafterSpec(name="own", method="draft_model", model=model))

    assert "up to 2 tokens" in engine.record.notes[-1]
    default = Work(drafter="own", method="assisted_default", k=ASSISTED_DEFAULT_K)
    assert forwards_of(engine, default).startswith("ddtddt")


def test_a_number_of_drafts_that_transformers_adapts_does_not_reach_the_next_request(
    engine, tmp_path
):
    _, draft = make_pair()
    draft.generation_config.num_assistant_tokens = 2
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"
    draft.generation_config.assistant_confidence_threshold = 0.0
    model = saved(tmp_path / "draft", draft)
    engine.add_drafter(DrafterSpec(name="adapted", method="draft_model", model=model))
    work = Work(drafter="adapted", method="assisted_default", k=ASSISTED_DEFAULT_K)
    first = forwards_of(engine, work)
    assert "dddt" in first
    assert forwards_of(engine, work) == first


def test_a_method_without_a_counterpart_is_refused_by_name(engine):
    with pytest.raises(UsageError, match=r"suffix.*draft_model, ngram"):
        engine.add_drafter(DrafterSpec(name="s", method="suffix"))


def test_a_draft_of_another_vocab_size_is_refused_and_leaves_no_memory(new_engine, pool, tmp_path):
    _, draft = make_pair()
    draft.resize_token_embeddings(280)
    model = saved(tmp_path / "wide", draft)

    with pytest.raises(CompatibilityError, match=r"272.*280"):
        new_engine.add_drafter(DrafterSpec(name="wide", method="draft_model", model=model))

    with pytest.raises(KeyError):  # it is released
        pool.release(model)


def test_a_draft_of_another_tokenizer_is_refused(engine, tmp_path):
    _, draft = make_pair()
    draft.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    file.write_text(json.dumps(content))
    model = ModelSpec(source="other", folder=tmp_path)

    with pytest.raises(CompatibilityError, match="cannot draft for"):
        engine.add_drafter(DrafterSpec(name="other", method="draft_model", model=model))


def test_a_removed_drafter_releases_its_model(new_engine, pool, target):
    draft = target.drafters[0].model
    new_engine.remove_drafter("draft")
    new_engine.remove_drafter("never loaded")
    with pytest.raises(KeyError):
        pool.release(draft)


def test_memory_is_that_of_the_models_in_use(new_engine, pool, target):
    loaded_target, draft = pool.load(target.model), pool.load(target.drafters[0].model)
    assert (
        new_engine.weights_bytes(NO_DRAFTER)
        == new_engine.weights_bytes("ngram")
        == loaded_target.weights_bytes
    )
    assert new_engine.weights_bytes("draft") == loaded_target.weights_bytes + draft.weights_bytes
    # Layers, keys and values, one KV head of 16 float32.
    assert new_engine.kv_bytes_per_token(NO_DRAFTER) == 4 * 2 * 16 * 4
    assert new_engine.kv_bytes_per_token("draft") == (4 + 1) * 2 * 16 * 4


def test_a_target_that_drafts_for_itself_is_in_memory_once(engine, target):
    engine.add_drafter(DrafterSpec(name="self", method="draft_model", model=target.model))
    assert engine.weights_bytes("self") == engine.weights_bytes(NO_DRAFTER)
    assert engine.kv_bytes_per_token("self") == 2 * engine.kv_bytes_per_token(NO_DRAFTER)
    result = engine.generate(request(), Work(drafter="self", method="assisted", k=4))
    assert set(result.rounds.num_accepted[:-1]) == {4} | set(result.rounds.num_accepted[:1])


@pytest.mark.parametrize(("parameters", "copied"), [({}, 60), ({"max_ngram": 3}, 70)])
def test_the_ngram_length_comes_from_the_pairing(engine, parameters, copied):
    # 3 4 was followed by 60 first, 7 3 4 by 70; only the library looks up two tokens.
    prompt = (8, 3, 4, 60, 61, 7, 3, 4, 70, 71, 9, 7, 3, 4)
    engine.add_drafter(DrafterSpec(name="n", method="ngram", parameters=parameters))
    fed = []

    def note(module, inputs, _output):
        if isinstance(module, torch.nn.Embedding):
            fed.append(tuple(inputs[0][0].tolist()))

    with watched(note):
        engine.generate(request(prompt=prompt), replace(LOOKUP, drafter="n", k=1))
    assert fed[0] == (*prompt, copied)


def test_a_setting_that_the_library_lacks_is_noted(engine):
    engine.add_drafter(DrafterSpec(name="m", method="ngram", parameters={"min_ngram": 2}))
    assert engine.record.notes[-1].startswith("m: prompt_lookup has no min_ngram")
