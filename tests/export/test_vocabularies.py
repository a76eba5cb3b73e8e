"""How engines handle a draft model whose vocabulary differs from its target's: padded, or with one
more token. tests/real_engines checks the real vLLM and llama.cpp."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specbench.engines.deployment import Deployment, vocabulary_notes
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.config import load_pairings
from specbench.settings import EXPORTED
from specbench.shipped import PACKAGE, shipped
from tests.export.deployments import ROWS, config_of, deployment, exported, with_draft
from tests.export.recorded_parser import METHODS

MODELS = PACKAGE / "demo" / "models"
PADDED, MORE = ROWS + 128, ROWS + 129


def padded(num_rows: int, temperature: float = 0.0) -> Deployment:
    """A draft model with this vocabulary size for a target with ROWS, both in other folders."""
    return with_draft(deployment("draft_model", temperature=temperature), vocab_size=num_rows)


def with_tokens(made: Deployment, folder: Path, swapped: str = "", added: str = "") -> Deployment:
    """The bundled pair; in the draft two tokens have each other's id, or one is added."""
    shutil.copytree(MODELS / "draft", folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    if swapped:
        vocab[swapped[0]], vocab[swapped[1]] = vocab[swapped[1]], vocab[swapped[0]]
    if added:
        vocab[added] = len(vocab)
    file.write_text(json.dumps(tokenizer))
    target = replace(made.target, source="demo:target", folder=MODELS / "target")
    made = replace(
        made, pairing=replace(made.pairing, target=replace(made.pairing.target, model=target))
    )
    return with_draft(made, source=str(folder), folder=folder)


def test_vllm_starts_with_a_mapped_vocabulary_that_drafts_greedily():
    made = exported("vllm", padded(PADDED))
    assert config_of(made)["use_heterogeneous_vocab"] is True
    (note,) = made.limits
    assert re.search("vocab_size 32,000 .*big, 32,128 .*drafter", note.figures["text"])
    assert not made.not_expressed
    warm = config_of(exported("vllm", padded(PADDED, 0.7)))
    assert warm["draft_sample_method"] == "greedy"  # vLLM refuses others with a mapped vocabulary
    equal = exported("vllm", padded(ROWS, 0.7))
    assert "use_heterogeneous_vocab" not in config_of(equal)
    assert not equal.limits
    assert config_of(equal)["draft_sample_method"] == "probabilistic"
    assert not equal.not_expressed


@pytest.mark.parametrize(
    ("engine", "num_rows", "temperature"),
    [("sglang", PADDED, 0.0), ("llama_cpp", MORE, 0.0), ("tensorrt_llm", PADDED, 0.7)],
)
def test_an_engine_that_would_not_draft_is_refused_with_both_sizes(engine, num_rows, temperature):
    for other in (num_rows, 2 * ROWS - num_rows):  # the larger one may be either
        with pytest.raises(UsageError, match=f"32,000.*big.*{other:,}.*drafter"):
            exported(engine, padded(other, temperature))
    without = replace(padded(num_rows, temperature), tiers=deployment("ngram", 0).tiers)
    assert not exported(engine, without).command_line.count("spec")
    exported(engine, padded(ROWS, temperature))


def test_a_padded_vocabulary_that_the_engine_accepts_is_exported_unchanged():
    for num_rows in (PADDED, 2 * ROWS - PADDED):
        assert exported("llama_cpp", padded(num_rows)).command == (
            exported("llama_cpp", padded(ROWS)).command
        )
    exported("llama_cpp", padded(MORE), "2026-04")  # it translated drafts
    greedy = exported("tensorrt_llm", padded(PADDED))
    assert greedy.config == exported("tensorrt_llm", padded(ROWS)).config
    assert any("32,128" in note.figures["text"] for note in greedy.limits)


def test_the_translation_of_drafts_by_ik_llama_cpp_is_noted():
    (note,) = exported("ik_llama_cpp", padded(PADDED)).limits
    assert "translates drafts" in note.figures["text"]
    assert not exported("ik_llama_cpp", padded(ROWS)).limits


def test_transformers_is_given_a_draft_of_the_targets_size():
    text = exported("transformers", padded(PADDED)).config.text
    assert "assistant.resize_token_embeddings(32000" in text
    assert "resize" not in exported("transformers", padded(ROWS)).config.text


def test_an_unknown_size_is_reported_once_and_only_for_draft_models():
    for engine in (name for name in EXPORTED if "draft_model" in METHODS[name]):
        notes = exported(engine, with_draft(deployment("draft_model"), vocab_size=None))
        (note,) = (text for text in notes.not_expressed if "vocab_size" in text)
        assert "org/Big-8B" in note
        assert "org/Small-1B" in note
    head = with_draft(deployment("eagle3"), vocab_size=None)
    assert "vocab_size" not in "".join(exported("vllm", head).not_expressed)


def test_local_files_take_precedence_over_the_stated_vocabulary(tmp_path: Path):
    made = with_tokens(padded(PADDED), tmp_path / "draft")
    assert made.vocab_sizes == (2048, 2048)
    assert "use_heterogeneous_vocab" not in config_of(exported("vllm", made))


@pytest.mark.parametrize(
    ("changes", "first", "is_taken_by_llama_cpp"),
    [
        ({"swapped": "#$"}, 5, False),
        ({"swapped": '!"'}, 3, True),  # compares from id 5 on
        ({"added": "<think>"}, 2048, True),  # beyond the rows of the other model
    ],
)
def test_engines_that_compare_tokens_refuse_different_ones(
    tmp_path: Path, changes: dict[str, str], first: int, is_taken_by_llama_cpp: bool
):
    made = with_tokens(deployment("draft_model"), tmp_path / "draft", **changes)
    assert made.different_ids[0] == first
    with pytest.raises(UsageError, match=rf"\bid {first} "):
        exported("sglang", made)
    if is_taken_by_llama_cpp:
        exported("llama_cpp", made)
    else:
        with pytest.raises(UsageError, match=rf"\bid {first} "):
            exported("llama_cpp", made)
    exported("vllm", made)  # compares only sizes


def test_the_shipped_qwen_pairs_are_padded_and_known_without_a_download():
    pairings = load_pairings(shipped("pairings.yaml"))
    for name in ("qwen2.5-7b/0.5b", "qwen2.5-14b/0.5b", "qwen2.5-72b/1.5b"):
        (pairing,) = pairings.select([name])
        assert any("152,064" in note for note in vocabulary_notes("vllm", pairing, 0.0))
        assert any("SGLang" in note for note in vocabulary_notes("sglang", pairing, 0.0))
        assert not vocabulary_notes("llama_cpp", pairing, 0.0)  # 128 apart
    (pairing,) = pairings.select(["llama-3.1-8b/1b"])
    assert not any(vocabulary_notes(engine, pairing, 0.7) for engine in EXPORTED)


def test_a_stated_size_does_not_change_what_an_entry_measures(tmp_path: Path):
    entry = {"model": "org/Big", "drafters": {"small": {"method": "draft_model", "model": "o/S"}}}
    file = tmp_path / "pairings.yaml"
    hashes = set()
    for more in ({}, {"vocab_size": 151936}):
        file.write_text(yaml.safe_dump({"targets": {"big": {**entry, **more}}}))
        (pairing,) = load_pairings(file).all
        assert pairing.target.model.vocab_size == more.get("vocab_size")
        hashes.add(pairing.sha256)
    assert len(hashes) == 1
    assert ModelSpec(source="org/Big").vocab_size is None
