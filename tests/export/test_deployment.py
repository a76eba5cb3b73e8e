"""Deployments: the dtype an engine is given, and the tree it does not support."""

import re
from dataclasses import replace

import pytest
import yaml

from specbench.engines.deployment import LOOKUP, SMALL_MODEL
from specbench.errors import UsageError
from specbench.methods import METHODS
from specbench.records.lossy import GREEDY, MATCHED, REJECTION
from specbench.settings import EXPORTED
from tests.export.deployments import MODELS, deployment, exported

SERVERS = ("vllm", "sglang", "tensorrt_llm")
KNOWN = ("float32", "bfloat16", "float16")


def exported_dtype(engine, dtype):
    """The dtype that the engine is given; None: no option."""
    made = exported(engine, deployment("ngram", dtype=dtype))
    if engine == "tensorrt_llm":
        return yaml.safe_load(made.config.text).get("dtype")
    words = list(made.command)
    return words[words.index("--dtype") + 1] if "--dtype" in words else None


@pytest.mark.parametrize("engine", SERVERS)
def test_every_server_gets_the_measured_dtype(engine):
    assert [exported_dtype(engine, dtype) for dtype in KNOWN] == list(KNOWN)
    assert (exported_dtype(engine, "float64"), exported_dtype(engine, None)) == (None, None)


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize("dtype", [None, "float64", *KNOWN])
def test_only_float64_is_left_to_the_checkpoint_with_a_note(engine, dtype):
    notes = exported(engine, deployment("ngram", dtype=dtype)).not_expressed
    lost = [note for note in notes if note.endswith("this engine takes the checkpoint's dtype")]
    assert lost == ["float64: this engine takes the checkpoint's dtype"] * (dtype == "float64")


@pytest.mark.parametrize(
    ("method", "parameters", "tree", "rule"),
    [
        ("eagle", {"tree": "chain"}, None, REJECTION),
        ("eagle", {"tree": "static"}, "static", REJECTION),
        ("eagle", {"tree": "dynamic"}, "dynamic", MATCHED),
        ("eagle3", {"tree": "static"}, "static", REJECTION),
        ("draft_model", {}, None, REJECTION),
        ("draft_model", {"tree": (3, 2)}, "static", REJECTION),
        ("self_speculation", {"tree": (2,)}, "static", REJECTION),
        ("token_recycling", {}, "dynamic", MATCHED),
        ("lookahead", {}, "dynamic", MATCHED),
        ("ngram", {}, None, MATCHED),
    ],
    ids=str,
)
def test_drafts_of_a_tree_that_is_drawn_are_judged_by_their_probs(method, parameters, tree, rule):
    """A static tree's drafts are drawn from q; those of a tree grown by scores are not."""
    made = deployment(method, temperature=0.7, **parameters)
    assert made.tree == tree
    assert made.draws_drafts == (rule == REJECTION)
    assert made.acceptance_rule == rule
    assert deployment(method, **parameters).acceptance_rule == GREEDY


@pytest.mark.parametrize("engine", EXPORTED)
@pytest.mark.parametrize("like", ["ngram", "self_speculation", "draft_model", "eagle3"])
def test_a_method_that_an_exporter_does_not_know_is_refused(engine, like, monkeypatch):
    monkeypatch.setitem(METHODS, "planted", replace(METHODS[like], name="planted"))
    if like in MODELS:
        monkeypatch.setitem(MODELS, "planted", MODELS[like])

    with pytest.raises(UsageError) as refused:
        exported(engine, deployment("planted"))

    known, _, nearest = str(refused.value).partition("; nearest: ")
    assert re.fullmatch(rf"{engine} .*planted \(big/drafter\)", known)
    if like == "eagle3":
        assert ("eagle" in nearest) == (engine not in ("transformers", "ik_llama_cpp"))
    else:
        assert nearest == (LOOKUP if like == "ngram" else SMALL_MODEL)
