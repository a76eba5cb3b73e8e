"""A model is loaded once for all users, and freed by the last one."""

import gc
import weakref

import pytest

from specbench.engines.model_pool import ModelPool, identity
from tests.decoding.models import random_prompt


def test_the_model_pool_returns_the_same_model(pool, target):
    assert pool.load(target.model) is pool.load(target.model)


def test_a_target_and_its_draft_are_two_models(pool, target):
    draft = target.drafters[0].model
    assert pool.load(target.model).num_parameters > pool.load(draft).num_parameters


def test_a_model_stays_loaded_until_its_last_release(pool, target):
    model = weakref.ref(pool.load(target.model).model)
    pool.load(target.model)

    pool.release(target.model)
    gc.collect()
    assert model() is not None

    pool.release(target.model)
    assert model() is None


def test_a_released_model_is_loaded_again(pool, target):
    first = pool.load(target.model)
    pool.release(target.model)
    assert pool.load(target.model) is not first


def test_releasing_an_unused_model_is_a_bug(pool, target):
    with pytest.raises(KeyError):
        pool.release(target.model)


def test_a_dtype_given_to_the_pool_applies_to_every_model(pool, target):
    assert ModelPool(pool.device, "float64").load(target.model).dtype == "float64"


def test_a_tokenizer_is_read_once_and_needs_no_weights(pool, target):
    tokenizer = pool.tokenizer(target.model)
    assert pool.tokenizer(target.model) is tokenizer
    assert tokenizer.text(random_prompt(3, seed=1))


def test_an_identity_names_weights_and_tokenizer_and_no_folder_above_them(pool, target):
    tokenizer = pool.tokenizer(target.model)
    of = identity("tiny", target.model, pool.load(target.model), tokenizer)
    assert (of.name, of.source, of.dtype) == ("tiny", "target", "float32")
    assert of.tokenizer_sha256 == tokenizer.sha256
    assert len(of.content_sha256) == 64
