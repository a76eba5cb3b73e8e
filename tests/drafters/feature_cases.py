"""Rounds of a drafter with a head, and the drafts of plain heads in them.

Shape suffixes: B rows, K drafts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.round import run_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import build_drafter, drafter_class
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request, Sampling
from specbench.topology import Topology
from tests.decoding.fakes import Wrapped
from tests.decoding.lossless import filled_rows, parts_of
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.drafters.changed_heads import with_config, with_tensors
from tests.drafters.plain_heads import PlainEagle, PlainEagle3, PlainHead, PlainPEagle

VOCAB_SIZE = 11
SPAN = 128
GREEDY = Sampling()
PROMPTS = [random_prompt(n, n, VOCAB_SIZE) for n in (9, 6, 14)]
BEAM = {"top_k": 3, "max_drafts": 8}
PLAIN: dict[str, type[PlainHead]] = {
    "eagle": PlainEagle,
    "eagle3": PlainEagle3,
    "peagle": PlainPEagle,
}
METHODS = ["eagle", "eagle3"]
Path = tuple[int, ...]


class RowDrafts(NamedTuple):
    """A row's drafts after a text, which ends with the current token."""

    text: Path
    paths: list[Path]  # the drafts up to each of them, itself included
    probs: Tensor | None  # of a chain [K, V]


class Recorder(Wrapped):
    """Stores every proposal, row by row."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.seen: list[RowDrafts] = []

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = self.inner.propose(state, k, span, sampler)
        for row in range(state.num_rows):
            text = state.tokens_BC[row, : int(state.length_B[row]) + 1].tolist()
            probs = None if proposal.probs is None else proposal.probs[row]
            self.seen.append(RowDrafts(tuple(text), paths_of(proposal, row), probs))
        return proposal


class Guide(Wrapped):
    """Replaces drafts, so that each round keeps another number of them on another branch."""

    def __init__(self, inner: Drafter, texts: Sequence[Path]) -> None:
        super().__init__(inner)
        self._texts, self._round = texts, 0

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = self.inner.propose(state, k, span, sampler)
        tokens_BK = proposal.tokens_BK.clone()
        self._round += 1
        for row, text in enumerate(self._texts):
            turn, follow = self._round + row, text[int(state.length_B[row]) + 1 :]
            nodes = nodes_of(proposal, row)
            # Another number of drafts each time, on another branch of this length.
            wanted = turn % (max(map(len, nodes)) + 1)
            branches = [path for path in nodes if len(path) >= max(wanted, 1)]
            kept = branches[turn * 5 % len(branches)][:wanted]
            for i, path in enumerate(nodes):
                right = follow[len(path) - 1]
                is_kept = path == kept[: len(path)]
                tokens_BK[row, i] = right if is_kept else (right + 1) % VOCAB_SIZE
        return proposal._replace(tokens_BK=tokens_BK, probs=None)


def nodes_of(proposal: Proposal, row: int) -> list[Path]:
    """The drafts' numbers up to each draft."""
    K = proposal.tokens_BK.shape[1]
    tree = proposal.tree
    parents = range(K) if tree is None else tree.parents_BK[row].tolist()
    nodes: list[Path] = [()]
    for i, parent in enumerate(parents):
        assert parent <= i, "parents come before their children"
        nodes.append((*nodes[parent], i))
    return nodes[1:]


def paths_of(proposal: Proposal, row: int) -> list[Path]:
    tokens = proposal.tokens_BK[row].tolist()
    return [tuple(tokens[i] for i in nodes) for nodes in nodes_of(proposal, row)]


@torch.no_grad()
def prefilled(
    target: StockRunner,
    drafter: Drafter,
    prompts: Sequence[Path],
    *,
    prefill_chunk: int = 512,
    sampling: Sampling = GREEDY,
    span: int = SPAN,
) -> Rows:
    requests = [Request(prompt_ids=p, max_new_tokens=99, seed=i) for i, p in enumerate(prompts)]
    limits = {"capacity": span, "prefill_chunk": prefill_chunk}
    return filled_rows(target, drafter, requests, Sampler(sampling), **limits)


@torch.no_grad()
def run_rounds(
    target: StockRunner,
    drafter: Drafter,
    prompts: Sequence[Path],
    ks: Sequence[int],
    *,
    prefill_chunk: int = 512,
    sampling: Sampling = GREEDY,
    span: int = SPAN,
) -> list[Path]:
    """Prefill the prompts and run rounds of the given K; every row's text with its last token."""
    for k in filter(None, ks):
        drafter.num_drafts(k)  # called before any round, as in the decoder
    rows = prefilled(
        target, drafter, prompts, prefill_chunk=prefill_chunk, sampling=sampling, span=span
    )
    for k in ks:
        run_round(target, drafter, rows.state, Sampler(sampling), k=k, span=span)
    lengths = rows.state.length_B.tolist()
    return [
        tuple(rows.state.tokens_BC[row, : length + 1].tolist())
        for row, length in enumerate(lengths)
    ]


def assert_chains(plain: PlainHead, seen: Sequence[RowDrafts]) -> None:
    """Each draft is the plain head's most likely token after the drafts before it."""
    for drafted in seen:
        chain = drafted.paths[-1]
        expected = [int(plain.logits(drafted.text, chain[:i]).argmax()) for i in range(len(chain))]
        assert list(chain) == expected, f"after {len(drafted.text)} tokens"


def assert_static_trees(plain: PlainHead, topology: Topology, seen: Sequence[RowDrafts]) -> None:
    """Each draft is the plain head's child of its rank after the drafts above it."""
    for drafted in seen:
        for path, ranks in zip(drafted.paths, topology.paths, strict=True):
            order = plain.logits(drafted.text, path[:-1]).argsort(descending=True)
            assert path[-1] == int(order[ranks[-1]]), f"{ranks} after {len(drafted.text)} tokens"


def assert_dynamic_trees(
    plain: PlainHead, top_k: int, depth: int, max_drafts: int, seen: Sequence[RowDrafts]
) -> None:
    """The drafts are those of a beam search over the plain head: the most likely paths of all."""
    for drafted in seen:
        beam: list[tuple[float, Path]] = [(0.0, ())]
        candidates: list[tuple[float, Path]] = []
        for _ in range(depth):
            children = []
            for score, path in beam:
                best = plain.logits(drafted.text, path).log_softmax(-1).topk(top_k)
                for logprob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    children.append((score + logprob, (*path, token)))
            candidates += children
            beam = sorted(children, reverse=True)[:top_k]
        # If a token is certain, it is as likely as its parent, and the parent comes first.
        candidates.sort(key=lambda scored: 1e-4 * len(scored[1]) - scored[0])
        expected = {path for _, path in candidates[:max_drafts]}
        assert set(drafted.paths) == expected, f"after {len(drafted.text)} tokens"
        assert len(drafted.paths) == len(expected)


def num_kept(texts: Sequence[Path], seen: Sequence[RowDrafts]) -> list[int]:
    """The number of drafts each round kept; rows one after the other in every round."""
    B = len(texts)
    lengths = [len(drafted.text) for drafted in seen] + [len(text) for text in texts]
    return [after - before - 1 for before, after in zip(lengths, lengths[B:], strict=False)]


class Subject(NamedTuple):
    method: str
    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainHead
    texts: list[Path]  # the prompts as the target continues them

    def drafter(self, **parameters: Any) -> Drafter:
        return build_drafter(self.method, parts_of(self.target, None, self.checkpoint), parameters)

    def rounds(self, ks: list[int], **parameters: Any) -> tuple[list[RowDrafts], set[int]]:
        """The proposals of guided rounds after a prefill in chunks of 4; the numbers kept."""
        watched = Recorder(self.drafter(**parameters))
        guided = Guide(watched, self.texts)
        ends = run_rounds(self.target, guided, PROMPTS, ks, prefill_chunk=4)
        for end, text in zip(ends, self.texts, strict=True):
            assert end == text[: len(end)]
        return watched.seen, set(num_kept(ends, watched.seen))

    def deep_beams(self) -> list[RowDrafts]:
        """Proposals in rows of 64 slots, 50 to 59 of them taken: beams of 25, trees of 2 drafts."""
        watched = Recorder(self.drafter(tree="dynamic", top_k=5, max_drafts=2))
        run_rounds(self.target, watched, [text[:50] for text in self.texts], [6] * 3, span=64)
        return watched.seen


def biased(checkpoint: Checkpoint) -> Checkpoint:
    """A head with biases, as published EAGLE heads have; a new one has none."""
    bias_F = torch.randn(
        checkpoint.config["hidden_size"], generator=torch.Generator().manual_seed(1)
    )
    return with_config(with_tensors(checkpoint, fc__bias=0.1 * bias_F), bias=True)


def sharpen_attention(checkpoint: Checkpoint) -> Checkpoint:
    """A random head attends to all tokens almost equally; here a wrong mask changes words."""
    sharp = ("q_proj.weight", "k_proj.weight", "o_proj.weight")
    tensors = {n: 10 * t if n.endswith(sharp) else t for n, t in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


CHANGED = {"eagle": biased, "eagle3": sharpen_attention, "peagle": sharpen_attention}


@cache
def subject(method: str) -> Subject:
    model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3)
    texts = [(*prompt, *generated(model, prompt, 100)) for prompt in PROMPTS]
    # Every difference between a token of the head and the target's is another one, so that
    # they could be mistaken for ids.
    more: dict[str, Any] = {"target_ids": (0, 2, 4, 6, 8, 10), "layer_ids": (0, 1, 2)}
    options = {} if method == "eagle" else more
    drawn = drafter_class(method).new_checkpoint(model.config, 1, **options)
    checkpoint = CHANGED[method](drawn)
    target = StockRunner(tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3))
    return Subject(method, target, checkpoint, PLAIN[method](model, checkpoint), texts)
