"""Advice of transformers on hybrid models reaches only users who can follow it."""

import logging
from pathlib import Path

import pytest
import torch

from specbench.probes.environment import package_versions
from tests.cli.calls import specbench


@pytest.mark.parametrize("has_gpu", [False, True])
def test_missing_kernels_are_advised_only_with_a_gpu(
    has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    specbench("--version", cwd=tmp_path)
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    advice = "`causal_conv1d_fn` is falling back to its reference PyTorch implementation"
    record = logger.makeRecord(logger.name, logging.WARNING, "", 0, advice, (), None)

    assert bool(logger.filter(record)) == has_gpu


def test_a_run_names_the_packages_that_the_kernels_are_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specbench.probes.environment.version", lambda _: "1.0")

    kernels = {"causal-conv1d", "flash-linear-attention", "mamba-ssm"}
    assert kernels <= package_versions().keys()
