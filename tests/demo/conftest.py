"""The card and the target, read once."""

import json

import pytest
import torch

from specbench.demo import ROOT


@pytest.fixture(scope="session")
def card() -> dict:
    return json.loads((ROOT / "card.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def target():
    from tools.demo.card import load

    torch.set_num_threads(1)
    return load("target")


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    from specbench.demo import MODELS

    return AutoTokenizer.from_pretrained(MODELS / "target")
