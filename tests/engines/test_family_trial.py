"""What `doctor` asks of a small model is never held against sizes that it could not be given."""

from pathlib import Path
from typing import NoReturn

import pytest
from transformers import LlamaConfig

from specbench.engines import family_trial
from specbench.models.loading import ModelSource


def test_a_family_of_which_no_small_model_is_made_is_left_to_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise ValueError("sizes that do not go together")

    LlamaConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(family_trial, "small_config", fail)

    assert family_trial.family_refusal(ModelSource(location=str(tmp_path))) is None
