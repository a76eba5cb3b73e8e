"""What exports say of a target with recurrent layers: its state has to be rolled back there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.deployment import Deployment
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from tests.export.deployments import TARGET, deployment, exported

CONFIG = {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"]}


def served(folder: Path, k: int = 3, **config: object) -> Deployment:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    target = replace(TARGET, model=ModelSpec(source="org/Hybrid", folder=folder))
    return deployment("ngram", k, target=target)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vllm", "issues 39273"),
        ("llama_cpp", "pull request 19493"),
        ("sglang", "no source that was read says"),
        ("tensorrt_llm", "no source that was read says"),
    ],
)
def test_each_export_notes_how_recurrent_state_is_rolled_back(
    engine: str, message: str, tmp_path: Path
) -> None:
    text = "\n".join(exported(engine, served(tmp_path)).not_expressed)
    assert "org/Hybrid has recurrent layers" in text
    assert message in text
    assert "recurrent" not in "".join(exported(engine, served(tmp_path, k=0)).not_expressed)
    kinds = ["full_attention", "full_attention"]
    dense = exported(engine, served(tmp_path, layer_types=kinds))
    assert "recurrent" not in "".join(dense.not_expressed)


def test_the_transformers_export_refuses_targets_with_recurrent_state(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"org/Hybrid.*-k 0"):
        exported("transformers", served(tmp_path))
    exported("transformers", served(tmp_path, k=0))
    convolutions = served(tmp_path, model_type="lfm2", layer_types=["conv", "full_attention"])
    assert "recurrent layers" in "".join(exported("transformers", convolutions).not_expressed)


def test_a_missing_target_gets_no_notes() -> None:
    assert "recurrent" not in "".join(exported("vllm", deployment("ngram", 3)).not_expressed)
