"""Any compatible server: only what the API itself has is asked and read."""

import json
from dataclasses import replace

import pytest

from specbench.engines.served_engine import find_served
from specbench.records import Sampling
from tests.engines.served.replay import REQUEST, answer, facts


def test_k_of_an_openai_server_comes_from_the_address():
    assert facts("openai", {}, "#k=3").k == 3
    found = facts("openai", {})
    assert (found.k, found.model, found.prefix_cache) == (None, "tiny", "unknown")


@pytest.mark.parametrize(
    ("card", "context"),
    [({"max_model_len": 1024}, 1024), ({"max_model_len": None}, None), ({}, None)],
    ids=str,
)
def test_the_context_is_the_length_on_the_models_card(card, context):
    models = {"data": [{"id": "tiny", **card}]}
    assert facts("openai", {"/v1/models": json.dumps(models)}).context == context


def test_an_openai_response_has_usage_but_no_counts():
    replayed = answer("openai", {})
    assert replayed.answer.num_tokens == 17
    assert find_served("openai").counts(replayed.answer, 3) is None
    common = {"model", "max_tokens", "temperature", "top_p", "seed", "messages"}
    assert {*replayed.asked[0]} == common | {"stream", "stream_options"}


def test_a_requested_top_k_is_sent():
    wanted = replace(REQUEST, sampling=Sampling(temperature=1.0, top_k=40))
    assert answer("openai", {}, wanted).asked[0]["top_k"] == 40
