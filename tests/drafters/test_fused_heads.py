"""Heads whose layers run fused have the outputs of transformers' own layers, in fewer launches."""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.decode.round import run_round
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.eagle import EagleHead
from specbench.drafters.mtp import MtpHead
from specbench.drafters.registry import build_drafter
from specbench.errors import ModelError
from specbench.forward import layer_stack
from specbench.forward.attention.implementations import SplitKv
from specbench.forward.fused_layers import FusedLayers
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import StockRunner
from specbench.forward.self_test import check_layers
from specbench.records import Sampling
from tests.decoding.fake_cuda import DEVICE, fake_cuda
from tests.decoding.fused_families import family
from tests.decoding.launches import Launches
from tests.decoding.lossless import make_drafter, new_head, parts_of
from tests.decoding.models import build, rms_error, tiny_llama
from tests.decoding.test_autotune import ForgetsTheTree
from tests.decoding.test_self_test import TurnsTheOtherWay, WritesToTheFirstRows
from tests.decoding.test_triton_rounds import interpreted
from tests.drafters.changed_heads import with_config, with_tensors
from tests.drafters.fused_heads import KINDS, Kind, checkpoint_of, head_of, logits_over_slots
from tests.drafters.mtp_families import checkpoint_for, family_of

HEADS = ("eagle", "eagle3", "mtp", "dflash")


def target_of(dtype: torch.dtype) -> StockRunner:
    return StockRunner(tiny_llama(num_hidden_layers=4).to(dtype))


@pytest.mark.sampled(one_in=2, every=["name", "dtype"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_fused_head_logits_are_as_accurate_as_stock_ones(name: str, dtype: torch.dtype) -> None:
    kind, target = KINDS[name], target_of(dtype)
    truth = logits_over_slots(head_of(kind, target_of(torch.float64), is_stock=True))
    stock = logits_over_slots(head_of(kind, target, is_stock=True))
    head = head_of(kind, target, is_stock=False)

    fused = logits_over_slots(head)

    assert head.layers.fused is not None
    assert fused.dtype is dtype
    assert rms_error(fused, truth) < 2 * rms_error(stock, truth)
    assert rms_error(stock, truth) < 0.05 * float(truth.std())


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("forward", ["auto", "fused"])
def test_correct_fused_head_layers_pass_their_check(method: str, forward: Any) -> None:
    layers = make_drafter(method, target_of(torch.float32)).head.layers

    assert check_layers(layers, forward, "h") == ()
    assert layers.fused is not None
    assert layers.cache.nbytes == 0  # the test's slots are given back


class ForgetsTheEntry(FusedLayers):
    def forward(self, work: Any, x_NF: Tensor, *parts: Any, **named: Any) -> Any:
        if named["entry_NW"] is not None:
            named["entry_NW"] = named["entry_NW"].roll(1, 1)
        return super().forward(work, x_NF, *parts, **named)


class LeavesItsAnswerToBeOverwritten(FusedLayers):
    def forward(self, work: Any, *parts: Any, **named: Any) -> Any:
        return super().forward(work, *parts, **{**named, "is_kept": False})


class KeepsUnturnedKeys(FusedLayers):
    def write_kv(self, x_NF: Tensor, positions_BT: Tensor, *parts: Any, **named: Any) -> None:
        super().write_kv(x_NF, positions_BT.clamp(max=0), *parts, **named)


class TakesTreesForChains(FusedLayers):
    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.kernels = defaultdict(lambda: ForgetsTheTree("chains"))


class Raises(FusedLayers):
    def forward(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    ("broken", "method"),
    [
        (TurnsTheOtherWay, "eagle"),
        (ForgetsTheEntry, "eagle3"),
        (LeavesItsAnswerToBeOverwritten, "mtp"),
        (KeepsUnturnedKeys, "dflash"),
        (TakesTreesForChains, "eagle"),
        (WritesToTheFirstRows, "eagle3"),
        (Raises, "mtp"),
    ],
)
def test_wrong_fused_layers_are_caught_when_the_head_is_loaded(
    broken: type[FusedLayers], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_stack, "FusedLayers", broken)
    target = target_of(torch.float32)
    checkpoint = checkpoint_of(KINDS[method], target)
    parts = parts_of(target, checkpoint=checkpoint)
    made = [build_drafter(method, parts, {}).head.layers for _ in range(2)]

    (note,) = check_layers(made[0], "auto", "h")

    assert re.match("h: stock layers .*: (their states|it raises)", note)
    assert made[0].fused is None
    with pytest.raises(ModelError, match=r"h: .*fused: .* stock$"):
        check_layers(made[1], "fused", "h")


def test_head_layers_run_stock_on_request() -> None:
    layers = make_drafter("eagle", target_of(torch.float32)).head.layers
    assert check_layers(layers, "stock", "h") == ()
    assert layers.fused is None


def eagle_with(target: StockRunner, tensors: dict[str, Tensor], **config: Any) -> LayerStack:
    checkpoint = with_config(with_tensors(new_head("eagle", target), **tensors), **config)
    return EagleHead(checkpoint, target).layers


def mtp_of(name: str, num_layers: int = 1) -> LayerStack:
    config = family_of(name).config
    checkpoint = checkpoint_for(name, config, num_layers=num_layers)
    return MtpHead(checkpoint, StockRunner(build(config))).layers


ONE_BIAS = {"layers__0__self_attn__q_proj__bias": torch.zeros(32)}
ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
ROPE |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
ROPE |= {"original_max_position_embeddings": 32}
UNFUSED = {
    "one bias of three": (lambda t: eagle_with(t, ONE_BIAS), "have a bias and others have none"),
    "rotary by length": (lambda t: eagle_with(t, {}, rope_parameters=ROPE), r"\(longrope\) change"),
    "several MTP layers": (lambda _: mtp_of("mimo", 2), "do not see a row's first slots"),
    "latent attention": (lambda _: mtp_of("deepseek_v3"), "DeepseekV3Attention is not that of"),
    "experts": (lambda _: mtp_of("glm4_moe"), "Glm4MoeAttention is not that of"),
}


@pytest.mark.parametrize("name", UNFUSED)
def test_head_layers_that_cannot_be_fused_run_stock_with_a_note(name: str) -> None:
    make, reason = UNFUSED[name]
    layers = make(target_of(torch.float32))
    (note,) = check_layers(layers, "auto", "h")

    assert layers.fused is None
    assert re.search(f"^h: stock layers .*: .*{reason}", note)
    with pytest.raises(ModelError, match=f"cannot run fused: .*{reason}"):
        check_layers(layers, "fused", "h")


@pytest.mark.sampled(one_in=2)
@pytest.mark.slow  # the interpreter runs program by program
@pytest.mark.usefixtures("interpreted_programs")
@pytest.mark.parametrize("kind", [KINDS["eagle3"], Kind("dflash", {"num_layers": 1})])
def test_triton_head_layers_pass_their_check(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, trees, and passes that need only keys and values."""
    monkeypatch.setattr(layer_stack, "is_mirrored", lambda _: False)
    monkeypatch.setattr(layer_stack, "FusedLayers", interpreted)
    layers = head_of(kind, target_of(torch.float32), is_stock=False).layers

    assert check_layers(layers, "fused", "h") == ()
    assert layers.fused.steps.name == "triton"


class LaunchCounts(NamedTuple):
    """Launches of a greedy round at K = 4, and of each part of the head's work."""

    of_round: int
    of_parts: dict[str, int]


def counted(method: str, **parameters: Any) -> LaunchCounts:
    """On fake CUDA tensors, head and target on our kernels."""
    K, counts = 4, {}
    with fake_cuda():
        with DEVICE:
            target = FusedRunner(family("Llama")).with_triton()
        target.layers.kernels = defaultdict(SplitKv)
        drafter = make_drafter(method, target, **parameters)
        drafter.head.layers.fused.kernels = target.layers.kernels
        for holder in (target, drafter):
            holder.allocate(1, 64)
        state = State.allocate(1, 64, [5, 6], DEVICE)

        def launches(run: Callable[[], object]) -> int:
            run()  # makes what is made once
            with Launches() as launches:
                run()
            return launches.total

        round_ = partial(run_round, target, drafter, state, Sampler(Sampling()), k=K, span=64)
        for name, part in drafter.resources.head_parts.items():
            T = 1 if name in ("draft", "layer 0") else K + 1
            tokens_1T = torch.zeros(1, T, dtype=torch.long, device=DEVICE)
            counts[name] = launches(partial(part.forward, tokens_1T, tokens_1T, 64))
        return LaunchCounts(launches(round_), counts)


# A layer's ten: two norms, four products, heads turned and kept, attention in two, the gate.
LAYER = 10
CHAIN = {"tree": "chain"}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    ("method", "parameters", "of_round", "of_parts"),
    [
        # Embedding, joined, fc; the first layer has no norm of its input; the target's head.
        ("eagle", CHAIN, 119, {"observe": 3 + LAYER - 1 + 1, "draft": 3 + LAYER - 1 + 1}),
        # Embedding, two norms, joined; no norm of its input; norm and head. States: joined, fc,
        # and the last one picked.
        ("eagle3", CHAIN, 131, {"observe": 2 + 4 + LAYER - 1 + 2, "draft": 4 + LAYER - 1 + 2}),
        # Embedding, two norms, joined, its product; norm and head. States: put back by one.
        ("mtp", {}, 141, {"observe": 2 + 5 + LAYER + 2, "layer 0": 5 + LAYER + 2}),
        # Joined, fc, norm; of each of 5 layers a product and what is kept. Block: the tokens in
        # two, what sees what, embedding; norm and head.
        ("dflash", {}, 124, {"observe": 3 + 5 * 2, "block": 4 + 5 * LAYER + 2}),
    ],
)
def test_the_launches_of_a_heads_round_and_parts_are_as_counted(
    method: str, parameters: dict[str, Any], of_round: int, of_parts: dict[str, int]
) -> None:
    assert counted(method, **parameters) == (of_round, of_parts)
