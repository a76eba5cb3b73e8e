"""Rows that start rounds side by side, all along one text.

Row 0 walks the text as rounds at K = 0 would, which every drafter can follow; each start is a
copy of it as it stands there. Shape suffixes: B rows, T tokens fed, C capacity of a row in
tokens, V vocabulary, F features.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Outcome
from specbench.decode.round import propose
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.state import State
from specbench.footprint import rounded_up
from specbench.forward.runner import Runner
from specbench.records import Sampling
from specbench.tracing.judging import ProposalMatches, refuse_drawn_tree
from specbench.tracing.text import TargetText, TextSampler

MOST_ROWS = 128
TOKENS_AT_ONCE = 2**16  # of all rows together: bounds their keys and values
LOGITS_AT_ONCE = 2**25
_CHUNK = 512  # tokens of a text fed to the target at once
_MOST_STATES = 8  # rows of a draft that keeps recurrent state, which is large


class TraceResult(NamedTuple):
    """What one text came to: by depth the proposals, and what the target gave to its tokens."""

    found: dict[int, ProposalMatches]
    target_probs: list[float]  # of each token; of the first, which no round emits, 1


class _Read(NamedTuple):
    """Tokens `begin` .. `end` - 1 of the output as the target saw them."""

    begin: int
    end: int
    position: int  # of the first
    logits_1TV: Tensor
    features: tuple[Tensor, ...]  # [1, T, F] each


class DrafterTrace:
    """One drafter over one conversation's texts, turn after turn in the same rows.

    Uses the first rows of the target and of the drafter, whose requests must be done. `ks` are
    the depths that are proposed; a drafter of chains that nest needs the deepest alone.
    """

    def __init__(
        self,
        name: str,
        target: Runner,
        drafter: Drafter,
        texts: Sequence[TargetText],
        ks: Sequence[int],
    ) -> None:
        self._name, self._target, self._drafter = name, target, drafter
        footprint = drafter.footprint
        sizes = {k: drafter.num_drafts(k) for k in range(1, max(ks) + 1)}
        self.is_chain = drafter.traits.chains_nest and all(k == size for k, size in sizes.items())
        self.ks = (max(ks),) if self.is_chain else tuple(sorted(ks))
        num_drafts = max(sizes.values())
        longest = max(len(text.prompt_ids) + len(text.output_ids) for text in texts)
        self._spare = num_drafts + 1
        self._capacity = capacity = rounded_up(longest + self._spare)
        # Without a model each start is one more step of the same row: it may keep what it likes.
        at_once = LOGITS_AT_ONCE // (target.vocab_size * self._spare)
        most = min(MOST_ROWS, TOKENS_AT_ONCE // capacity, at_once) if footprint.has_model else 1
        num_rows = max(1, min(most, max(text.num_starts for text in texts)))
        runner = footprint.runner
        self._shares_cache = runner is not None and runner.cache is target.cache
        has_states = runner is not None and runner.most_drafts is not None
        if has_states:  # row 0 holds those of all starts
            num_rows = min(num_rows, _MOST_STATES)
        self._steps = has_states and self._shares_cache
        self._rows = Rows(target, drafter, num_rows=1, capacity=capacity, eos_ids=())
        self._rows.begin(1, num_rows + num_drafts)
        drafter.allocate(num_rows, capacity)
        if self._shares_cache:
            target.allocate(num_rows, capacity)
        self._starts = State.allocate(num_rows, capacity, [], target.device)
        self._before: tuple[int, ...] = ()  # the text of the last turn

    def follow(self, text: TargetText, sampling: Sampling) -> TraceResult:
        """Propose at every start of the text; UsageError where that cannot be judged."""
        text_C = text.by_position(self._capacity, self._target.device)
        sampler = TextSampler(sampling, text_C)
        self._fill(text, sampler)
        along = TraceResult({k: ProposalMatches() for k in self.ks}, [1.0])
        for read in self._read(text):
            # The first start is ready once the prompt is read; a token read makes one more so.
            first, last = read.begin + 1 if read.begin else 0, min(read.end, text.num_starts - 1)
            if not sampler.is_greedy:
                said_T1 = text_C[len(text.prompt_ids) + read.begin + 1 :][: read.end - read.begin]
                probs_TV = sampler.probs(read.logits_1TV[0])
                along.target_probs.extend(probs_TV.gather(1, said_T1[:, None])[:, 0].tolist())
            for begin in range(first, last + 1, self._starts.num_rows):
                starts = range(begin, min(begin + self._starts.num_rows, last + 1))
                self._propose(text, text_C, starts, read, sampler, along.found)
        self._finish(text)
        return along

    def _fill(self, text: TargetText, sampler: TextSampler) -> None:
        """The prompt, of which the conversation's earlier turns are in the row already."""
        fill = PrefillRequest(
            row=0,
            prompt_ids=text.prompt_ids,
            max_new_tokens=text.max_new_tokens,
            seed=text.seed,
            num_kept=self._rows.num_kept(0, self._before, len(self._before) - 2, text.prompt_ids),
            prediction_ids=text.prediction_ids,
        )
        self._rows.fill([fill], sampler)

    def _finish(self, text: TargetText) -> None:
        """Leave the row as its last round would: the next turn's beginning may read it."""
        state, tokens = self._rows.state, (*text.prompt_ids, *text.output_ids)
        state.tokens_BC[0, : len(tokens)] = torch.tensor(tokens, device=self._target.device)
        state.length_B1.fill_(len(tokens) - 1)
        state.budget_B.zero_()
        self._before = tokens

    def _read(self, text: TargetText) -> Iterator[_Read]:
        """The target over all of the output but its last token, which nothing follows."""
        chunk = max(1, min(_CHUNK, LOGITS_AT_ONCE // self._target.vocab_size))
        if self._shares_cache:
            # Drafts overwrite what the target keeps of the text past their start, and the next
            # chunk makes it good; so none may be read further ahead than rows stand.
            chunk = max(1, self._starts.num_rows - 1)
        for begin in range(0, text.num_starts, chunk):
            end = min(begin + chunk, text.num_starts)
            first = len(text.prompt_ids) + begin
            tokens_1T = torch.tensor([text.output_ids[begin:end]], device=self._target.device)
            positions_1T = torch.arange(first, first + end - begin, device=tokens_1T.device)[None]
            out = self._target.forward(
                tokens_1T,
                positions_1T,
                rounded_up(first + end - begin),
                features=self._drafter.traits.features,
                start=None if self._steps else first,
            )
            yield _Read(begin, end, first, out.logits, out.features)

    def _propose(
        self,
        text: TargetText,
        text_C: Tensor,
        starts: Sequence[int],
        read: _Read,
        sampler: TextSampler,
        found: Mapping[int, ProposalMatches],
    ) -> None:
        """Proposals at neighbouring starts: copies of row 0, which stays at the last of them."""
        drafter, walker = self._drafter, self._rows.state
        num_prompt, end = len(text.prompt_ids), len(text.prompt_ids) + starts[-1]
        span = rounded_up(end + self._spare)
        walker.tokens_BC[0, : end + 1] = text_C[: end + 1]
        walker.length_B1.fill_(end)
        drafter.catch_up(walker, len(starts), span)
        for row, start in enumerate(starts, 1):
            walker.length_B1.fill_(num_prompt + start)
            if start:
                drafter.observe(walker, self._outcome(text_C, num_prompt + start, read, span))
            if row < len(starts):
                drafter.copy_row(0, row, num_prompt + start + 1)
                if self._shares_cache:
                    self._target.copy_row(0, row, num_prompt + start + 1)
        order = [starts[-1], *starts[:-1]]
        state = self._standing(text, text_C, order)
        for k in self.ks:
            proposal = propose(drafter, state, sampler, k, span)
            refuse_drawn_tree(self._name, proposal)
            size = num_prompt + len(text.output_ids)
            found[k].add(order, proposal, state.length_B1, text_C, size)

    def _standing(self, text: TargetText, text_C: Tensor, starts: Sequence[int]) -> State:
        """Rows that know the text up to their starts and nothing beyond."""
        state = self._starts.rows(0, len(starts))
        starts_B = torch.tensor(starts, device=text_C.device)
        state.length_B1.copy_((starts_B + len(text.prompt_ids))[:, None])
        positions_C = torch.arange(state.capacity, device=text_C.device)
        state.tokens_BC.copy_(torch.where(positions_C <= state.length_B1, text_C, 0))
        state.budget_B.copy_(text.max_new_tokens - 1 - starts_B)
        state.seed_B.fill_(text.seed)
        return state

    def _outcome(self, text_C: Tensor, length: int, read: _Read, span: int) -> Outcome:
        """What a round at K = 0 leaves that emitted the token at `length`."""
        position_11 = torch.full((1, 1), length - 1, device=text_C.device)
        at = length - 1 - read.position
        return Outcome(
            num_emitted_B=torch.ones_like(position_11[0]),
            positions_BT=position_11,
            following_BT=text_C[position_11 + 1],
            features=tuple(f_1TF[:, at : at + 1] for f_1TF in read.features),
            span=span,
            tokens_BN=text_C[position_11],
            logits_BNV=read.logits_1TV[:, at : at + 1],
        )
