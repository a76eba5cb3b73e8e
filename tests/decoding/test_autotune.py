"""Attention candidates: wrong implementations are refused, slow ones are not chosen."""

import re
import subprocess
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from specbench.engines import kernel_choices
from specbench.engines.kernel_choices import autotune_forward
from specbench.errors import DeviceLostError
from specbench.forward.attention import candidates
from specbench.forward.attention.candidates import (
    NUM_LAYERS,
    SHAPES,
    BatchShape,
    Inputs,
    autotune_attention,
    output_error,
    place_all,
)
from specbench.forward.attention.implementations import (
    AttentionShape,
    MaskedAttention,
    PlainAttention,
)
from specbench.forward.autotune import KernelCandidate, Timing, fastest
from specbench.forward.fused_runner import FusedRunner
from tests.decoding.fake_cuda import DEVICE
from tests.decoding.fake_graphs import FakeGraphs
from tests.decoding.models import tiny_llama

CASE = AttentionShape(
    device=torch.device("cpu"),
    dtype=torch.float32,
    query_heads=4,
    kv_heads=2,
    head_size=16,
    window=None,
    is_tree=False,
)
SHORT = SHAPES[:4]  # texts of 200 tokens


class KernelClock:
    """A clock for work that states its own duration."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def seconds(self, run) -> float:
        began_s = self.now_s
        run()
        return self.now_s - began_s

    def takes(self, kernel, seconds):
        """The kernel, but each layer takes this many seconds."""
        attend = kernel.attend

        def slowly(work, kept, look):
            attend(work, kept, look)
            self.now_s += seconds

        kernel.attend = slowly
        return kernel

    def run_of(self, *seconds):
        """Work that takes these seconds, call by call, and the last of them from then on."""
        left = list(seconds)

        def run():
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run


def replay_nothing(run):
    """Replays nothing: the results stay as they were wiped."""
    run()
    return lambda: None


class SeesOneMore(MaskedAttention):
    def build_metadata(self, inputs):
        return super().build_metadata(inputs._replace(positions_BT=inputs.positions_BT + 1))


class SeesOneLess(MaskedAttention):
    def build_metadata(self, inputs):
        return super().build_metadata(inputs._replace(positions_BT=inputs.positions_BT - 1))


class ForgetsTheWindow(MaskedAttention):
    def build_metadata(self, inputs):
        return super().build_metadata(inputs._replace(window=None))


class ForgetsTheTree(MaskedAttention):
    def build_metadata(self, inputs):
        return super().build_metadata(inputs._replace(branches=None))


class MixesRows(MaskedAttention):
    def attend(self, work, kept, look):
        super().attend(work, kept, look.flip(0))


class WritesNothing(MaskedAttention):
    def attend(self, work, kept, look): ...


class Raises(MaskedAttention):
    def build_metadata(self, inputs):  # noqa: ARG002
        raise RuntimeError("no kernel for this\nand more that nobody needs")


def autotuned(case, *kernels):
    meter = KernelClock()
    for place, kernel in enumerate(kernels):
        meter.takes(kernel, 0.01 * (place + 1))  # the wrong ones are first and fast
    return autotune_attention(case, kernels, Timing(meter.seconds), SHORT)


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        (SeesOneMore, CASE),
        (SeesOneLess, CASE),
        (MixesRows, CASE),
        (ForgetsTheWindow, replace(CASE, window=100)),
        (ForgetsTheWindow, replace(CASE, window=4096)),  # longer than the texts of all shapes
        (ForgetsTheTree, replace(CASE, is_tree=True)),
        (SeesOneLess, replace(CASE, dtype=torch.bfloat16, head_size=128)),
        (SeesOneMore, replace(CASE, dtype=torch.bfloat16, head_size=128)),
    ],
)
def test_a_wrong_kernel_loses_with_the_reason_recorded(wrong, case):
    winner, contenders = autotuned(case, wrong("wrong"), PlainAttention())
    assert winner == "plain"
    lost, won = contenders
    assert lost.seconds is None
    assert lost.refusal.startswith("it is wrong")
    assert (won.refusal, won.seconds > 0) == (None, True)


def test_a_kernel_that_writes_no_output_loses():
    winner, (_, lost) = autotuned(CASE, PlainAttention(), WritesNothing("idle"))
    assert winner == "plain"
    assert lost.refusal.startswith("it is wrong: off by nan")


def test_a_kernel_that_raises_loses_with_the_first_line_of_the_error():
    winner, (lost, _) = autotuned(CASE, Raises("raises"), PlainAttention())
    assert winner == "plain"
    assert re.search("RuntimeError: no kernel", lost.refusal)


def test_no_winner_is_chosen_if_no_candidate_is_correct():
    assert autotuned(CASE, Raises("raises"))[0] is None


def test_a_slower_kernel_listed_first_is_not_chosen():
    meter = KernelClock()
    slow = meter.takes(MaskedAttention("slow"), 0.02)
    fast = meter.takes(PlainAttention(), 0.01)
    winner, (first, second) = autotune_attention(CASE, [slow, fast], Timing(meter.seconds), SHORT)
    assert winner == "plain"
    assert first.seconds == pytest.approx(2 * second.seconds)


@pytest.mark.parametrize(("second_s", "winner"), [(0.96, "first"), (0.94, "second")])
def test_candidates_within_5_percent_are_chosen_by_order(second_s, winner):
    meter = KernelClock()
    candidates = [
        KernelCandidate("first", meter.run_of(1.0)),
        KernelCandidate("second", meter.run_of(second_s)),
    ]
    assert fastest(candidates, Timing(meter.seconds))[0] == winner


@pytest.mark.parametrize(("setup_s", "takes_part"), [(210.0, True), (330.0, False)])
def test_setup_time_counts_apart_from_run_time_in_the_autotune_limit(setup_s, takes_part):
    meter = KernelClock()
    candidate = KernelCandidate("slow", meter.run_of(100.0), setup_s=setup_s)  # the limit is 120 s
    winner, (slow,) = fastest([candidate], Timing(meter.seconds))
    assert (winner == "slow") is takes_part
    assert (slow.refusal is None) is takes_part


def test_autotuning_compares_medians_of_several_timings():
    meter = KernelClock()
    lucky_once = meter.run_of(0.1, 0.01, 0.1)  # the first is a warm-up
    candidates = [
        KernelCandidate("lucky", lucky_once),
        KernelCandidate("faster", meter.run_of(0.08)),
    ]
    winner, (lucky, _) = fastest(candidates, Timing(meter.seconds))
    assert winner == "faster"
    assert lucky.seconds == pytest.approx(0.1)


def test_a_kernel_that_is_wrong_when_replayed_loses():
    meter = KernelClock()

    winner, (lost,) = autotune_attention(
        CASE, [PlainAttention()], Timing(meter.seconds, replay_nothing), SHORT
    )
    assert winner is None
    assert re.match("replayed, .*wrong", lost.refusal)


class ForgetsAToken(FusedRunner):
    kind = "wrong"

    def forward(self, tokens_BT, *args, **named):
        return super().forward(tokens_BT * 0, *args, **named)


class NoNumbersForDrafts(FusedRunner):
    kind = "wrong"

    def forward(self, tokens_BT, *args, **named):
        out = super().forward(tokens_BT, *args, **named)
        return out._replace(logits=out.logits * torch.nan) if tokens_BT.shape[1] > 1 else out


def test_a_forward_that_gives_no_numbers_for_drafts_loses(monkeypatch):
    wrong = lambda runner: NoNumbersForDrafts(runner.model)  # noqa: E731
    monkeypatch.setitem(kernel_choices.FORWARDS, "wrong", wrong)
    timing = Timing(KernelClock().seconds)
    winner, (lost, _) = autotune_forward(FusedRunner(tiny_llama()), ("wrong", "stock"), timing)
    assert winner == "stock"
    assert re.search("wrong: .*5 tokens .*nan$", lost.refusal)


def test_a_forward_that_is_wrong_when_replayed_loses():
    timing = Timing(KernelClock().seconds, replay_nothing)
    winner, (lost,) = autotune_forward(FusedRunner(tiny_llama()), ("fused",), timing)
    assert winner is None
    assert re.search("^replayed, .*wrong: .*1 tokens .*nan$", lost.refusal)


def test_a_forward_that_is_right_when_replayed_takes_part():
    timing = Timing(KernelClock().seconds, lambda run: FakeGraphs().capture(run).replay)
    assert autotune_forward(FusedRunner(tiny_llama()), ("stock",), timing)[0] == "stock"


def test_whole_forwards_are_autotuned_and_a_wrong_one_loses(monkeypatch):
    wrong = lambda runner: ForgetsAToken(runner.model)  # noqa: E731
    monkeypatch.setitem(kernel_choices.FORWARDS, "wrong", wrong)
    meter = KernelClock()
    names = ("wrong", "fused, triton", "stock", "fused")
    runner = FusedRunner(tiny_llama())
    winner, contenders = autotune_forward(runner, names, Timing(meter.seconds))
    assert winner == "stock"  # all take no time on this clock: the order decides
    reasons = [c.refusal for c in contenders]
    assert re.search("wrong: .*1 tokens ", reasons[0])
    assert re.search("Triton .*CPU", reasons[1])
    assert reasons[2:] == [None, None]
    assert runner.cache.max_len == 0  # its memory is given back


class Counts(PlainAttention):
    """Plain attention that counts its metadata per forward, and the keys it reads."""

    def __init__(self):
        self.num_looks, self.read = 0, []

    def build_metadata(self, inputs):
        self.num_looks += 1
        return super().build_metadata(inputs)

    def attend(self, work, kept, look):
        self.read.append(kept.buffer.data_ptr())
        super().attend(work, kept, look)


def used_bytes(read: list[int], shape: BatchShape) -> set[tuple[int, int]]:
    """First and last addresses of the slots in use, of all rows of the buffers."""
    slot = 2 * CASE.kv_heads * CASE.head_size * CASE.dtype.itemsize
    lengths = [shape.length - 3 * row + shape.num_tokens for row in range(shape.num_rows)]
    return {
        (start := address + row * shape.span * slot, start + length * slot)
        for address in read
        for row, length in enumerate(lengths)
    }


@pytest.mark.parametrize("l2_bytes", [50_000, 2_000_000])
def test_candidates_read_used_slots_of_twice_the_l2_cache(l2_bytes):
    shapes = [BatchShape(1, 1, 200, 1024), BatchShape(4, 5, 200, 1024)]
    inputs = [Inputs(CASE, shape) for shape in shapes]
    layers = set()
    for shape, drawn, placed in zip(
        shapes, inputs, place_all(inputs, CASE, 2 * l2_bytes), strict=True
    ):
        kernel = Counts()
        (got,) = placed.attend(kernel)
        parts = sorted(used_bytes(kernel.read, shape))
        assert all(end <= start for (_, end), (start, _) in pairwise(parts))  # no slot is in two
        assert sum(end - start for start, end in parts) >= 2 * l2_bytes
        assert kernel.num_looks == len(kernel.read) / NUM_LAYERS  # metadata, once per forward
        assert output_error(got, drawn.expected(), CASE.dtype) is None
        layers.add(len(kernel.read))
    assert len(layers) == 1  # so that each shape counts the same


def test_the_l2_cache_is_that_of_the_device(monkeypatch):
    class Placed(Exception):
        """Nothing can be placed on a device that is absent."""

    def place(_inputs, _case, num_bytes):
        raise Placed(num_bytes)

    card = SimpleNamespace(L2_cache_size=72 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {DEVICE: card}.get)
    monkeypatch.setattr(candidates, "place_all", place)
    with pytest.raises(Placed) as placed:
        autotune_attention(replace(CASE, device=DEVICE), [], Timing(KernelClock().seconds))
    assert placed.value.args == (2 * 72 << 20,)


def test_candidates_run_one_layer_on_a_cpu():
    kernel = Counts()
    (placed,) = place_all([Inputs(CASE, SHORT[0])], CASE, 0)
    placed.attend(kernel)
    assert (kernel.num_looks, len(kernel.read)) == (1, 1)


class Small(MaskedAttention):
    """A kernel with too little shared memory for many tokens."""

    def attend(self, work, kept, look):
        if len(work.joined) > 100:
            raise OutOfResources(245_760, 232_448, "shared memory")
        super().attend(work, kept, look)


class WrongIfLarge(MaskedAttention):
    def build_metadata(self, inputs):
        window = 100 if inputs.positions_BT.shape[1] > 100 else None
        return super().build_metadata(inputs._replace(window=window))


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (Small("small"), "it raises OutOfResources: .*245760.*"),
        (WrongIfLarge("large"), "it is wrong"),
    ],
    ids=["too large", "wrong"],
)
def test_a_kernel_that_fails_only_in_the_largest_round_loses(kernel, reason, is_tree):
    winner, (lost, _) = autotuned(replace(CASE, is_tree=is_tree), kernel, PlainAttention())
    assert (winner, lost.seconds) == ("plain", None)
    assert re.match(reason, lost.refusal)


ESCAPED = [
    OutOfResources(180_224, 101_376, "shared memory"),
    subprocess.CalledProcessError(1, ["gcc", "driver.c"]),
    AssertionError(),
    ImportError("undefined symbol: _ZN3c104cuda"),
]


class Fails(MaskedAttention):
    """Raises the error at the `at`th call of all."""

    def __init__(self, error, at):
        super().__init__("fails")
        self.error, self.left = error, at

    def attend(self, work, kept, look):
        self.left -= 1
        if self.left < 0:
            raise self.error
        super().attend(work, kept, look)


@pytest.mark.parametrize("at", [0, 3, 20])  # at the first shape, at a later one, while timed
@pytest.mark.parametrize("error", ESCAPED, ids=lambda error: type(error).__name__)
def test_a_candidate_that_raises_any_error_loses_with_the_reason(error, at):
    winner, (lost, won) = autotuned(CASE, Fails(error, at), PlainAttention())
    assert (winner, won.refusal) == ("plain", None)
    assert lost.seconds is None
    assert type(error).__name__ in lost.refusal


def test_a_lost_device_ends_the_tuning(monkeypatch):
    def lose_device():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lose_device)
    with pytest.raises(DeviceLostError, match="shared memory"):
        autotuned(CASE, Fails(ESCAPED[0], 0), PlainAttention())
