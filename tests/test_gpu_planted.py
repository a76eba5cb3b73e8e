"""The GPU suite detects what is wrong: planted faults are missed claims."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.gpu_suite import autotuning, drafting, numerics, own_kernels
from benchmarks.gpu_suite.distribution import accept_all
from benchmarks.gpu_suite.machine import Json, Machine
from specbench.decode.decoder import Decoder
from specbench.forward.attention.implementations import AttentionInputs, PlainAttention
from specbench.forward.fused_layers import TorchSteps


@pytest.fixture
def small() -> Machine:
    return Machine(device=torch.device("cpu"), small=True, ends_s=math.inf)


def holds_by_claim(section: Json) -> dict[str, bool | None]:
    return {claim["what"].split(" (")[0]: claim["holds"] for claim in section["claims"]}


class OneTooFar(PlainAttention):
    """Sees a slot past its own."""

    name = "one too far"

    def build_metadata(self, inputs: AttentionInputs) -> Any:
        return super().build_metadata(inputs._replace(positions_BT=inputs.positions_BT + 1))


@pytest.mark.slow
def test_an_attention_that_is_off_by_one_is_named(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotuning, "KERNELS", (OneTooFar(), PlainAttention()))
    section = autotuning.autotuning(small)
    assert holds_by_claim(section) == {
        "contests that somebody wins": True,
        "implementations that are wrong somewhere": False,
    }
    assert all("one too far: " in text for text in section["wrong"])
    assert section["choices"][0]["chosen"] == "plain"  # of the chain: a tree's branches say it all


@pytest.mark.slow
def test_a_forward_without_the_last_token_fails_the_logit_check(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_runner = numerics.make_runner

    def forgetful(machine: Machine, model: Any, forward: str) -> Any:
        runner = make_runner(machine, model, forward)
        right = runner.forward

        def wrong(tokens_BT: Any, positions_BT: Any, span: int, **how: Any) -> Any:
            return right(tokens_BT, positions_BT - int(tokens_BT.shape[1] == 1), span, **how)

        runner.forward = wrong
        return runner

    monkeypatch.setattr(numerics, "make_runner", forgetful)
    claims = holds_by_claim(numerics.long_logits(small))
    assert claims["worst distance from transformers' logits, of their spread"] is False
    assert claims["worst error over that of transformers' bf16"] is False


@pytest.mark.slow
def test_a_verifier_that_accepts_everything_is_detected_by_its_texts(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Decoder", partial(Decoder, verifier=accept_all))
    monkeypatch.setattr(
        drafting, "variants", lambda: [("draft_model", "draft_model", {}), ("no", "no", {})]
    )
    section = drafting.one_graph(small)
    assert holds_by_claim(section)["drafters and trees that ran"] is False
    assert holds_by_claim(section)["of these with the texts of K = 0 in float32"] is False
    assert "UsageError" in section["drafters"]["no"]["refused"]


def test_a_planted_rotation_error_fails_the_kernel_check(
    small: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backwards(TorchSteps):
        """Replaces, on a CPU, the Triton steps of a GPU."""

        def rotations(self, rope_P: Any, positions_N: Any) -> Any:
            cos, sin = super().rotations(rope_P, positions_N)
            return cos, -sin

    monkeypatch.setattr(own_kernels, "triton_failure", lambda _: None)
    monkeypatch.setattr(own_kernels, "TritonSteps", partial(Backwards, mirrored=False))
    claims = holds_by_claim(own_kernels.own_kernels(small))
    assert claims["worst error of a layer's steps in bf16, relative"] is False
