"""A head's forwards: its parts run what rounds run, and they read the bytes that they declare.

Shape suffixes: F hidden size, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decode.drafter import Drafter, DrafterForward, HeadPart, Outcome, Proposal
from specbench.decode.round import run_round
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import build_drafter, drafter_class
from specbench.forward import layer_stack
from specbench.forward.layer_stack import WholeTexts
from specbench.forward.runner import StockRunner
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import parts_of
from tests.decoding.models import build, tiny_llama
from tests.drafters.feature_cases import GREEDY, PROMPTS, SPAN, VOCAB_SIZE, prefilled
from tests.drafters.mtp_families import checkpoint_for, family_of

HEAD_SIZE = 8
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
_LOOKED_UP = {"embedding", "index_select"}
BEAM = {"tree": "dynamic", "top_k": 3, "max_drafts": 8}


class Case(NamedTuple):
    """A head, K, and by hand the forwards of a round: (tokens, times, part)."""

    method: str
    k: int
    forwards: Sequence[tuple[int, int, str]]
    parameters: Mapping[str, Any] = MappingProxyType({})
    head: Mapping[str, Any] = MappingProxyType({})  # how a new one is made
    family: str = ""  # of an MTP head; else the target is a Llama


CASES = {
    "eagle, one draft": Case("eagle", 1, [(2, 1, "observe")], {"tree": "chain"}),
    "eagle, chain": Case("eagle", 4, [(5, 1, "observe"), (1, 3, "draft")], {"tree": "chain"}),
    # Four drafts have children in levels 1 and 2, one in 3 and in 4.
    "eagle, static": Case(
        "eagle", 5, [(6, 1, "observe"), (4, 2, "draft"), (1, 2, "draft")], {"tree": "static"}
    ),
    "eagle, dynamic": Case("eagle", 3, [(4, 1, "observe"), (3, 2, "draft")], BEAM),
    "eagle3, chain": Case("eagle3", 4, [(5, 1, "observe"), (1, 3, "draft")], {"tree": "chain"}),
    "eagle3, few tokens": Case(
        "eagle3",
        2,
        [(3, 1, "observe"), (1, 1, "draft")],
        {"tree": "chain"},
        {"target_ids": (0, 2, 4), "norm_output": True, "fc_norm": True, "norm_before_fc": True},
    ),
    # The number of observed tokens equals that of a level: they are still two kinds of forwards.
    "eagle3, dynamic": Case("eagle3", 2, [(3, 1, "observe"), (3, 1, "draft")], BEAM),
    "medusa, chain": Case("medusa", 2, [(1, 1, "2 of 4 heads")], {"tree": "chain"}),
    "medusa, tree": Case("medusa", 3, [(1, 1, "3 of 4 heads")], {"tree": "published"}),
    "mtp, one layer": Case("mtp", 4, [(5, 1, "observe"), (1, 3, "layer 0")], family="mimo"),
    # Layer i sees i drafts: one in layer 1, then two in layer 0, which goes round, and in 1.
    "mtp, two layers": Case(
        "mtp",
        4,
        [(5, 1, "observe"), (1, 1, "layer 1"), (2, 1, "layer 0"), (2, 1, "layer 1")],
        head={"num_layers": 2},
        family="mimo",
    ),
    "mtp, more layers than drafts": Case(
        "mtp", 2, [(3, 1, "observe"), (1, 1, "layer 1")], head={"num_layers": 3}, family="mimo"
    ),
    "gemma4_mtp": Case("gemma4_mtp", 4, [(1, 4, "draft")]),
    "dspark": Case(
        *("dspark", 3, [(4, 1, "observe"), (3, 1, "block"), (1, 3, "bias")]),
        head={"num_layers": 2},
    ),
    "dflash2": Case("dflash2", 3, [(4, 1, "observe"), (4, 1, "block")], head={"num_layers": 2}),
    "dflash": Case("dflash", 3, [(4, 1, "observe"), (4, 1, "block")], head={"num_layers": 2}),
}


class Subject(NamedTuple):
    target: StockRunner
    drafter: Drafter

    @property
    def weights(self) -> set[int]:
        """The addresses of the head's and the target's tensors."""
        held = (*self.drafter.resources.weights, *self.target.model.parameters())
        return {tensor.untyped_storage().data_ptr() for tensor in held}


def subject(case: Case) -> Subject:
    if case.family:
        config = family_of(case.family).config
        checkpoint = checkpoint_for(case.family, config, **case.head)
        target = StockRunner(build(config))
    else:
        model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=4)
        checkpoint = drafter_class(case.method).new_checkpoint(model.config, 1, **case.head)
        target = StockRunner(model)
    parts = parts_of(target, checkpoint=checkpoint)
    return Subject(target, build_drafter(case.method, parts, dict(case.parameters)))


class Spy(TorchDispatchMode):
    """Records which weights are multiplied with how many rows, and which are read at all."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights
        self.products: Counter[tuple[int, int, int]] = Counter()  # place, bytes, rows
        self.read: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [a for a in args if isinstance(a, Tensor) and self._is_weight(a)]
        if not func.is_view and name not in _LOOKED_UP:
            self.read += tensors
        if name in _PRODUCTS:
            first = len(args) - 2  # of two factors, the last of the arguments
            (x, weight) = args[first:]
            if self._is_weight(weight):
                rows = x.numel() // x.shape[-1]
                self.products[weight.data_ptr(), weight.nbytes, rows] += 1
        return func(*args, **(kwargs or {}))

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._weights


class SpiedDrafter(Wrapped):
    """A drafter that is watched while it drafts and while it observes the outcome."""

    def __init__(self, inner: Drafter, spy: Spy) -> None:
        super().__init__(inner)
        self._spy = spy
        self.observe = self._observe

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        with self._spy:
            return self.inner.propose(state, k, span, sampler)

    def _observe(self, state: State, outcome: Outcome) -> None:
        with self._spy:
            self.inner.observe(state, outcome)


def run_bare(part: HeadPart, num_tokens: int, context: int = 20) -> None:
    part.allocate(1, SPAN)
    positions_1T = torch.arange(context, context + num_tokens)[None]
    part.forward(torch.zeros_like(positions_1T), positions_1T, SPAN)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_forwards_of_a_round_are_those_counted_by_hand(case: Case) -> None:
    times = Counter(subject(case).drafter.resources.forwards(case.k))

    assert times == {(tokens, part): count for tokens, count, part in case.forwards}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@torch.no_grad()
def test_timed_head_parts_run_the_matrix_products_of_a_round(case: Case) -> None:
    """The same matrices with the same numbers of tokens, equally often."""
    target, drafter = under_test = subject(case)
    in_round, alone = Spy(under_test.weights), Spy(under_test.weights)
    drafter.num_drafts(case.k)
    rows = prefilled(target, drafter, PROMPTS[:1])

    spied = SpiedDrafter(drafter, in_round)
    run_round(target, spied, rows.state, Sampler(GREEDY), k=case.k, span=SPAN)
    with alone:
        for forward in drafter.resources.forwards(case.k):
            run_bare(drafter.resources.head_parts[forward.part], forward.num_tokens)

    assert alone.products == in_round.products
    assert alone.products


@pytest.fixture(autouse=True)
def no_zeros_behind_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory as on a GPU; on a CPU it is undefined behind a norm's weight."""
    monkeypatch.setattr(layer_stack, "is_mirrored", lambda _: False)


def pieces(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Start and end addresses of tensors; adjacent ones are one piece."""
    spans: list[tuple[int, int]] = []
    for begin, end in sorted({(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors}):
        if spans and spans[-1][1] >= begin:
            begin, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((begin, end))
    return spans


def assert_part_reads_its_tensors(under_test: Subject, name: str) -> None:
    part = under_test.drafter.resources.head_parts[name]
    run_bare(part, 2)
    # Norms of single heads are held once more, a row for each head.
    named = [tensor for tensor in part.weights if tensor.shape != (HEAD_SIZE,)]
    places = under_test.weights | {tensor.untyped_storage().data_ptr() for tensor in part.weights}
    with Spy(places) as spy:
        run_bare(part, 2)
    read = pieces(tensor for tensor in spy.read if tensor.shape != (HEAD_SIZE,))

    assert read == pieces(named), name
    assert sum(end - begin for begin, end in pieces(part.weights)) == part.weights_bytes, name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@torch.no_grad()
def test_a_head_part_reads_only_the_tensors_it_lists(case: Case) -> None:
    under_test = subject(case)
    for name in under_test.drafter.resources.head_parts:
        assert_part_reads_its_tensors(under_test, name)


@torch.no_grad()
def test_a_layer_with_experts_and_its_own_head_does_not_read_the_targets() -> None:
    under_test = subject(Case("mtp", 2, (), family="deepseek_v3"))
    parts = under_test.drafter.resources.head_parts
    assert len(parts) > 1
    for name, part in parts.items():
        assert_part_reads_its_tensors(under_test, name)
        assert not {*under_test.target.model.lm_head.parameters()} & {*part.weights}


@torch.no_grad()
def test_the_bytes_of_a_head_part_follow_from_its_sizes() -> None:
    F, inner, V = 32, 48, VOCAB_SIZE
    attention, mlp = 2 * F * F + 2 * F * F // 2, 3 * F * inner  # half as many key-value heads
    _, eagle = subject(CASES["eagle, chain"])
    assert eagle.resources.head_parts.keys() == {"observe", "draft"}
    for part in eagle.resources.head_parts.values():
        run_bare(part, 1)
        joined = 2 * F * F
        assert part.weights_bytes == 4 * (joined + attention + F + mlp + F * V)
        assert part.kv_bytes_per_token == 4 * 2 * F // 2
    _, medusa = subject(CASES["medusa, chain"])
    assert len(medusa.resources.head_parts) > 1
    for n, part in enumerate(medusa.resources.head_parts.values(), 1):
        assert part.weights_bytes == n * 4 * (F * F + F + F * V)
        assert part.kv_bytes_per_token == 0


@torch.no_grad()
def test_only_parts_that_attend_to_the_context_read_its_kv_cache() -> None:
    _, mtp = subject(CASES["mtp, more layers than drafts"])
    _, dflash = subject(CASES["dflash"])
    for drafter in (mtp, dflash):
        for part in drafter.resources.head_parts.values():
            run_bare(part, 1)
    whole = mtp.resources.kv_bytes_per_token

    assert whole > 0
    assert {name: part.kv_bytes_per_token for name, part in mtp.resources.head_parts.items()} == {
        "observe": whole,
        **{f"layer {i}": whole // 3 for i in range(3)},
    }
    assert (
        dflash.resources.head_parts["block"].kv_bytes_per_token
        == dflash.resources.kv_bytes_per_token
        > 0
    )
    assert dflash.resources.head_parts["observe"].kv_bytes_per_token == 0


def test_a_drafter_without_a_head_has_no_parts() -> None:
    runner = StockRunner(tiny_llama(num_hidden_layers=1))
    ngram = build_drafter("ngram", parts_of(runner), {})

    assert ngram.resources.head_parts == {}
    assert DrafterForward(2).part == ""


def test_a_part_is_timed_on_the_device_of_its_weights() -> None:
    weights = (torch.empty(2, 3, device="meta"),)

    assert HeadPart(run=lambda *_: None, weights=weights).device == torch.device("meta")


def test_a_window_hides_what_a_later_pass_over_a_text_can_no_longer_reach():
    texts, T = WholeTexts(num_layers=1), 6
    states = torch.zeros(1, 1, T, 2)
    texts.update(states, states, 0)
    positions_BT = torch.arange(T)[None]

    visible_TS = texts.visible_slots(positions_BT, layer=0, first=0, window=3)[0]

    first_pass, own_pass = visible_TS.split(T, dim=1)
    expected = [[t - s in (1, 2) for s in range(T)] for t in range(T)]  # of 3, one is the token's
    assert first_pass.tolist() == expected
    assert own_pass.tolist() == torch.eye(T, dtype=torch.bool).tolist()
