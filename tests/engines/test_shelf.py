"""A model is loaded once, for everybody, and leaves with its last holder."""

import gc
import weakref

import pytest

from specbench.engines.shelf import Shelf, identity, model_source
from tests.decoding.models import random_prompt


def test_everybody_gets_the_same_model(shelf, target):
    assert shelf.load(target.model) is shelf.load(target.model)


def test_a_target_and_its_draft_are_two_models(shelf, target):
    draft = target.drafters[0].model
    assert shelf.load(target.model).num_parameters > shelf.load(draft).num_parameters


def test_a_model_stays_while_one_holder_is_left(shelf, target):
    model = weakref.ref(shelf.load(target.model).model)
    shelf.load(target.model)

    shelf.release(target.model)
    gc.collect()
    assert model() is not None

    shelf.release(target.model)
    assert model() is None


def test_a_released_model_is_loaded_anew(shelf, target):
    first = shelf.load(target.model)
    shelf.release(target.model)
    assert shelf.load(target.model) is not first


def test_releasing_what_nobody_holds_is_a_bug(shelf, target):
    with pytest.raises(KeyError):
        shelf.release(target.model)


def test_one_dtype_for_every_model(shelf, target):
    assert Shelf(shelf.device, "float64").load(target.model).dtype == "float64"
    assert model_source(target.model, None).dtype == "auto"


def test_a_tokenizer_is_read_once_and_needs_no_weights(shelf, target):
    tokenizer = shelf.tokenizer(target.model)
    assert shelf.tokenizer(target.model) is tokenizer
    assert tokenizer.text(random_prompt(3, seed=1))


def test_an_identity_names_weights_and_tokenizer_and_no_folder_above_them(shelf, target):
    tokenizer = shelf.tokenizer(target.model)
    of = identity("tiny", target.model, shelf.load(target.model), tokenizer)
    assert (of.name, of.source, of.dtype) == ("tiny", "target", "float32")
    assert of.tokenizer_sha256 == tokenizer.sha256
    assert len(of.content_sha256) == 64
