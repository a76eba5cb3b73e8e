"""Medusa's heads draft the same as a reference of ten lines, whatever their files are called.

Shape suffixes: F hidden size, V vocabulary, K drafts.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.state import State
from specbench.drafters.medusa import Medusa, MedusaHeads
from specbench.drafters.registry import build_drafter
from specbench.errors import ModelError, UsageError
from specbench.files.medusa import ACCURACIES
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request
from specbench.topology import MC_SIM_7B_63, VICUNA_7B_STAGE2, Topology
from tests.decoding.conftest import Plant
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import decode, parts_of, serve
from tests.decoding.models import ragged_prompts, tiny_llama

NUM_HEADS = 5
BUDGETS = (24, 6, 15)


@cache
def target() -> StockRunner:
    return StockRunner(tiny_llama())


@cache
def heads(num_layers: int = 1) -> Checkpoint:
    config = target().model.config
    return Medusa.new_checkpoint(config, 0, num_heads=NUM_HEADS, num_layers=num_layers)


def drafter_of(checkpoint: Checkpoint, **parameters: Any) -> Medusa:
    drafter = build_drafter("medusa", parts_of(target(), None, checkpoint), parameters)
    assert isinstance(drafter, Medusa)
    return drafter


class ChainRecorder(Wrapped):
    """Stores drafts with the text before them, including the current token."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.seen: list[tuple[list[int], list[int]]] = []

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = self.inner.propose(state, k, span, sampler)
        for row in range(state.num_rows):
            if state.budget_B[row]:
                text = state.tokens_BC[row, : state.length_B[row] + 1].tolist()
                self.seen.append((text, proposal.tokens_BK[row].tolist()))
        return proposal


class OnAndOff(FixedK):
    """K in two rounds of three, 0 in the third."""

    num_rounds = 0

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        self.num_rounds += 1
        return self.max_k if self.num_rounds % 3 else 0


def reference(text: list[int], num_layers: int) -> list[list[int]]:
    """Every head's tokens, most likely first, by a plain forward as in the paper."""
    tokens_1T = torch.tensor([text[:-1]])  # all but the current token, which has no state yet
    state_F = plain_model().model(input_ids=tokens_1T, use_cache=False).last_hidden_state[0, -1]
    head, ranked = heads(num_layers).tensors, []
    for i in range(NUM_HEADS):
        x_F = state_F
        for j in range(num_layers):
            inner_F = head[f"{i}.{j}.linear.weight"] @ x_F + head[f"{i}.{j}.linear.bias"]
            x_F = x_F + inner_F * inner_F.sigmoid()
        ranked.append((head[f"{i}.{num_layers}.weight"] @ x_F).argsort(descending=True).tolist())
    return ranked


@cache
def plain_model() -> Any:
    return tiny_llama()


@torch.no_grad()
def assert_drafts_are_the_papers(num_layers: int = 1, **parameters: Any) -> None:
    """Checked over refilled ragged rows, chunked prompts, accepted drafts and rounds at K = 0."""
    k, drafter = 4, drafter_of(heads(num_layers), **parameters)
    watched = ChainRecorder(drafter)
    requests = [
        Request(prompt_ids=prompt, max_new_tokens=budget)
        for prompt, budget in zip(ragged_prompts(), BUDGETS, strict=True)
    ]
    served = serve(target(), watched, requests, OnAndOff(k), 2, prefill_chunk=4)

    paths = [(0,) * depth for depth in range(1, k + 1)]
    if drafter.trees is not None:
        paths = list(drafter.trees[k].topology.paths)
    assert len(watched.seen) > 20
    for text, tokens in watched.seen:
        ranked = reference(text, num_layers)
        wanted = [ranked[len(path) - 1][path[-1]] for path in paths]
        assert tokens == wanted, f"other drafts after {len(text)} tokens"
    if drafter.trees is not None:
        assert any(sum(result.rounds.num_accepted) for result in served.results)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_chain_is_the_likeliest_token_of_each_head(num_layers: int) -> None:
    assert_drafts_are_the_papers(num_layers, tree="chain")


def test_a_tree_has_the_tokens_that_its_paths_name() -> None:
    assert_drafts_are_the_papers()


BUGS = {
    "the drafts shifted by one token": (
        Medusa.propose,
        "self.heads.logits(state.rows_of(self._last_RF), num_heads)",
        "self.heads.logits(state.rows_of(self._last_RF), 5)[1:]",
    ),
    "the state of the path's first token": (
        Medusa.observe,
        "outcome.keep_last(outcome.features[0], state.rows_of(self._last_RF))",
        "state.rows_of(self._last_RF).copy_(outcome.features[0][:, 0])",
    ),
    "the order of the heads reversed": (
        Medusa.propose,
        "self.heads.logits(state.rows_of(self._last_RF), num_heads)",
        "self.heads.logits(state.rows_of(self._last_RF), num_heads).flip(0)",
    ),
    "the residual dropped": (MedusaHeads.logits, "x_HBF + silu(inner_HBF)", "silu(inner_HBF)"),
    "no bias": (MedusaHeads.logits, "bias_H1F[:num_heads]", "0 * bias_H1F[:num_heads]"),
    "the state before the final norm": (
        Medusa.__init__,
        "(target.num_layers,)",
        "(target.num_layers - 1,)",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_differs_from_the_medusa_reference(bug: str, plant: Plant) -> None:
    plant(*BUGS[bug])

    with pytest.raises(AssertionError, match="other drafts after"):
        assert_drafts_are_the_papers()


def test_published_medusa_trees_are_cut_to_heads_and_max_drafts() -> None:
    assert [len(paths) for paths in (MC_SIM_7B_63, VICUNA_7B_STAGE2)] == [63, 63]
    assert by_depth(drafter_of(heads())) == [10, 28, 23, 2]
    assert by_depth(drafter_of(heads(), tree="stage2")) == [10, 23, 23, 7]
    assert by_depth(drafter_of(heads(), max_drafts=5)) == [3, 2]
    assert drafter_of(heads(), tree="chain").capabilities.max_k == NUM_HEADS
    assert drafter_of(heads()).capabilities.max_k == 4, "no published path is longer"
    for paths in (MC_SIM_7B_63, VICUNA_7B_STAGE2):
        for n in range(1, 64):
            Topology.of_paths(paths[:n])  # each beginning of the list is a tree


def by_depth(drafter: Medusa) -> list[int]:
    assert drafter.trees is not None
    return [len(level.ranks) for level in drafter.trees[4].topology.levels]


def test_measured_accuracies_shape_the_tree_by_default() -> None:
    measured = replace(heads(), config={ACCURACIES: [[0.6, 0.2], [0.5, 0.1]]})
    auto = drafter_of(measured, max_drafts=4)
    assert auto.trees is not None
    # 0.6; 0.6 * 0.5; 0.2; then 0.2 * 0.5 before 0.6 * 0.1
    assert auto.trees[2].topology.paths == ((0,), (1,), (0, 0), (1, 0))
    assert auto.trees[1].topology.paths == ((0,), (1,))
    assert auto.capabilities.max_k == 2, "two heads were measured"
    assert drafter_of(measured, tree="published").capabilities.max_k == 4


@pytest.mark.parametrize(
    ("rates", "complaint"),
    [
        (None, f"tree fitted needs {ACCURACIES}"),
        ([[0.5], "much"], "must list shares"),
        ([[0.5, 1.5]], "must list shares"),
        ([[float("nan")]], "must list shares"),
        ([], "the first head is never right"),
        ([[0.0], [1.0]], "the first head is never right"),
    ],
)
def test_invalid_accuracies_are_refused(rates: object, complaint: str) -> None:
    config = {} if rates is None else {ACCURACIES: rates}
    with pytest.raises((UsageError, ModelError), match=complaint):
        drafter_of(replace(heads(), config=config), tree="fitted")


def as_vllm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    layers = {
        f"blocks.{i}.layers.0.{kind}": tensors[f"{i}.0.linear.{kind}"]
        for i in range(NUM_HEADS)
        for kind in ("weight", "bias")
    }
    return layers | {f"lm_heads.{i}.weight": tensors[f"{i}.1.weight"] for i in range(NUM_HEADS)}


def logits_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """The logits of all heads for three states [H, 3, V]."""
    checkpoint = Checkpoint(source="heads", config={"medusa_num_heads": 2}, tensors=tensors)
    states_BF = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    medusa = MedusaHeads(checkpoint, target())
    return medusa.logits(states_BF, medusa.num_heads)


def test_medusa_heads_of_every_layout_are_read_from_their_tensors() -> None:
    original = heads().tensors
    wanted = logits_of(original)
    assert len(wanted) == NUM_HEADS, "the config says 2"
    within = {f"medusa_head.{name}": tensor for name, tensor in original.items()}
    whole = within | {"model.embed_tokens.weight": torch.zeros(3, 3)}
    prefixed = {f"medusa_heads.{name}": tensor for name, tensor in as_vllm(original).items()}

    for tensors in (whole, as_vllm(original), prefixed):
        torch.testing.assert_close(logits_of(tensors), wanted, rtol=0, atol=0)


class OneByOne(Mapping[str, Tensor]):
    """Tensors that are read on access; counts how many are held at the same time."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._read: list[weakref.ref[Tensor]] = []
        self.max_held = 0

    def __getitem__(self, name: str) -> Tensor:
        self.max_held = max(self.max_held, sum(read() is not None for read in self._read))
        tensor = self._tensors[name].clone()
        self._read.append(weakref.ref(tensor))
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def test_tensors_are_read_one_by_one() -> None:
    tensors = heads().tensors
    files = OneByOne(tensors)
    torch.testing.assert_close(logits_of(files), logits_of(tensors), rtol=0, atol=0)
    assert files.max_held == 0


def test_layers_without_a_bias_add_none() -> None:
    tensors = heads().tensors
    bare = {name: tensor for name, tensor in tensors.items() if "bias" not in name}
    zero = {name: tensor * ("bias" not in name) for name, tensor in tensors.items()}
    torch.testing.assert_close(logits_of(bare), logits_of(zero))


def test_medusa_heads_may_share_one_output_matrix() -> None:
    tensors = dict(heads().tensors)
    shared = {name: tensor for name, tensor in as_vllm(tensors).items() if "lm_heads" not in name}
    tensors |= {f"{i}.1.weight": tensors["0.1.weight"] for i in range(NUM_HEADS)}
    shared["lm_head.weight"] = tensors["0.1.weight"]
    torch.testing.assert_close(logits_of(shared), logits_of(tensors))


def test_medusa_heads_of_a_reduced_vocabulary_draft_target_ids() -> None:
    few = torch.tensor([90, 3, 41, 7])
    tensors = as_vllm(heads().tensors)
    few_rows = {name: t[few] if "lm_head" in name else t for name, t in tensors.items()}
    checkpoint = Checkpoint(source="few", config={}, tensors=few_rows | {"token_map": few})
    drafter = drafter_of(checkpoint)

    watched = ChainRecorder(drafter)
    decode(target(), watched, [Request(prompt_ids=(5, 6, 7), max_new_tokens=12)], k=4)

    assert {token for _, tokens in watched.seen for token in tokens} <= set(few.tolist())
    assert drafter.num_drafts(1) == 4, "no more ranks than there are tokens"


SMALL = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"1.0.linear.weight": None}, "missing: 1.0.linear.weight"),
        ({"1.0.linear.bias": None}, "missing: 1.0.linear.bias"),
        ({"7.1.weight": SMALL}, "unknown: 7.1.weight"),
        ({"0.1.weight": SMALL}, "vocab_size is 2, the target's is 97"),
        ({"900.0.linear.weight": SMALL}, "missing: 5.0.linear.bias, 5.0.linear.weight, 5.1.weight"),
        ({"token_map": torch.tensor([1, 97])}, "token_map names the id 97; the target has 97"),
        ({"token_map": torch.tensor([-1, 5])}, "token_map names the id -1"),
        ({"token_map": torch.tensor([0.5])}, "token_map must contain integers"),
    ],
)
def test_heads_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Tensor | None], complaint: str
) -> None:
    tensors = {**heads().tensors, **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ModelError, match=complaint):
        drafter_of(Checkpoint(source="heads", config={}, tensors=kept))


def test_files_without_any_head_are_refused() -> None:
    with pytest.raises(ModelError, match=r"other.*Medusa"):
        drafter_of(Checkpoint(source="other", config={}, tensors={"fc.weight": SMALL}))
