"""Traces of the proposals that a drafter would make along a target's finished texts.

One pass per text serves every K. The text of a prompt is decoded once, without drafts, for all
drafters. Row 0 follows the text in rounds at K = 0, which every drafter supports; the row of each
start is a copy of it. Shape suffixes: B rows, T tokens fed or positions, C capacity of a row in
tokens, V vocabulary, F features, K drafts, N = K + 1 nodes.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Outcome, Proposal
from specbench.decode.round import propose
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.decode.verifier import accept_matching
from specbench.engines.engine import Engine
from specbench.errors import UsageError
from specbench.footprint import rounded_up
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner
from specbench.records import Request, Sampling, TraceRecord
from specbench.records.forecasts import Drafting

NOTHING = -1  # padding after the end of the text, which no draft token equals


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetText(Request):
    """A request for one turn with the target's output, decoded without drafts.

    Draft tokens beyond `max_new_tokens` do not count.
    """

    workload: str
    output_ids: tuple[int, ...]
    context: int | None = None  # as in CellKey

    @classmethod
    def of(cls, request: Request, **more: Any) -> "TargetText":
        """The text of a request; `more` are the fields that a request does not have."""
        return cls(
            **{field.name: getattr(request, field.name) for field in fields(Request)}, **more
        )

    @property
    def num_starts(self) -> int:
        """The number of tokens after which a round can start: all but the last."""
        return len(self.output_ids) - 1

    def by_position(self, capacity: int, device: torch.device) -> Tensor:
        """Prompt and output [C], padded with NOTHING."""
        tokens = [*self.prompt_ids, *self.output_ids]
        padding = [NOTHING] * (capacity - len(tokens))
        return torch.tensor([*tokens, *padding], device=device)


class TextSampler(Sampler):
    """A sampler that returns the token of the text at each position, for target and drafter.

    Distributions are unchanged. A sampled draft therefore follows the text to any depth, and the
    proposal has the distribution that each token of the text might have been sampled from.
    """

    def __init__(self, sampling: Sampling, text_C: Tensor) -> None:
        super().__init__(sampling)
        self._text_C = text_C

    def pick(self, logits_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT]

    def guess(self, probs_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT].clamp(min=0)


@dataclass(slots=True)
class ProposalMatches:
    """How the proposals of one depth match the text, by start."""

    num_drafted: dict[int, int] = field(default_factory=dict)
    limit: dict[int, int] = field(default_factory=dict)  # most draft tokens that can be accepted
    num_equal: dict[int, int] = field(default_factory=dict)  # leading draft tokens that match
    # If drafts are sampled: the probability of each text token in their distribution.
    draft_probs: dict[int, list[float]] = field(default_factory=dict)

    def add(
        self, starts: list[int], proposal: Proposal, length_B1: Tensor, text_C: Tensor, size: int
    ) -> None:
        """Add the proposals of rows at `starts`; the text has `size` tokens."""
        depths_BN = torch.arange(proposal.depth + 1, device=text_C.device)[None]
        depth_B = drafted_B = proposal.num_drafted_B
        if (tree := proposal.tree) is not None:
            depths_BN = tree.depths_BN
            depth_B = (depths_BN[:, 1:] * tree.is_active_BK).amax(1)
        limit_B = depth_B.minimum(size - 1 - length_B1[:, 0])
        text_BN = text_C[length_B1 + depths_BN + 1]  # the token after each node
        equal_B = accept_matching(proposal, text_BN).num_accepted_B.minimum(limit_B)
        columns = zip(starts, drafted_B.tolist(), limit_B.tolist(), equal_B.tolist(), strict=True)
        for start, drafted, limit, equal in columns:
            self.num_drafted[start] = drafted
            self.limit[start] = limit
            self.num_equal[start] = equal
        if proposal.probs is not None:
            tokens_BK1 = text_BN[:, :-1, None].clamp(min=0)
            probs_BK = proposal.probs.gather(-1, tokens_BK1)[..., 0]
            self.draft_probs |= dict(zip(starts, probs_BK.tolist(), strict=True))

    def chances(self, start: int, target_probs: list[float]) -> tuple[float, ...]:
        """P(accepted) by depth, up to the first that is 0.

        `target_probs[t]` is the target's probability of token t of the text. A draft sampled
        from q is accepted with min(1, p/q). The output is x with probability p(x). The draft is x
        and accepted with probability min(p(x), q(x)), which is min(1, q/p) given the text.
        Source: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1, by Bayes' rule.
        """
        limit, num_equal = self.limit[start], self.num_equal[start]
        if start not in self.draft_probs:
            return (1.0,) * num_equal + (0.0,) * (num_equal < limit)
        chances: list[float] = []
        for depth, q in enumerate(self.draft_probs[start][:limit], 1):
            chances.append(round(kept_given_text(q, target_probs[start + depth]), 6))
            if not chances[-1]:
                break
        return tuple(chances)


def kept_given_text(q: float, p: float) -> float:
    """P(draft token is x and accepted | text token is x), sampled from q and p."""
    return min(1.0, q / p) if p > 0 else float(q > 0)


def refuse_drawn_tree(name: str, proposal: Proposal) -> None:
    """UsageError for a sampled tree: siblings sampled without replacement depend on each other."""
    if proposal.tree is not None and proposal.probs is not None:
        raise UsageError(
            f"{name} samples its draft tree from its distribution at this temperature, which "
            "cannot be traced; measure it, or forecast it at temperature 0"
        )


MOST_ROWS = 128
TOKENS_AT_ONCE = 2**16  # of all rows, to limit the memory of their keys and values
LOGITS_AT_ONCE = 2**25
_CHUNK = 512  # tokens of a text per forward of the target
_MOST_STATES = 8  # rows of a drafter with recurrent state, which is large


class TraceResult(NamedTuple):
    """The proposals' matches by depth, and the target's probability of each token of the text."""

    matches: dict[int, ProposalMatches]
    target_probs: list[float]  # 1 for the first token, which comes from the prefill


class _TargetForward(NamedTuple):
    """The target's forward over tokens `begin` to `end` - 1 of the output."""

    begin: int
    end: int
    position: int  # position of token `begin`
    logits_1TV: Tensor
    features: tuple[Tensor, ...]  # [1, T, F] each


class DrafterTrace:
    """Traces one drafter over the turns of one conversation, in the same rows.

    It uses the first rows of the target and of the drafter, whose requests must be finished. `ks`
    are the traced depths; if a smaller K drafts a prefix of a larger one, only the deepest is.
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
        resources, capabilities = drafter.resources, drafter.capabilities
        sizes = {k: drafter.num_drafts(k) for k in range(1, max(ks) + 1)}
        self.is_chain = capabilities.chains_nest and all(k == size for k, size in sizes.items())
        self.ks = (max(ks),) if self.is_chain else tuple(sorted(ks))
        num_drafts = max(sizes.values())
        longest = max(len(text.prompt_ids) + len(text.output_ids) for text in texts)
        self._spare = num_drafts + 1
        self._capacity = capacity = rounded_up(longest + self._spare)
        # Without a model, each start is one more step of the same row, so any state is allowed.
        by_logits = LOGITS_AT_ONCE // (target.vocab_size * self._spare)
        most = min(MOST_ROWS, TOKENS_AT_ONCE // capacity, by_logits) if resources.has_model else 1
        num_rows = max(1, min(most, max(text.num_starts for text in texts)))
        runner = resources.runner
        self._shares_cache = runner is not None and runner.cache is target.cache
        self._copies_target = self._shares_cache or capabilities.reads_target_cache
        has_states = runner is not None and runner.most_drafts is not None
        if has_states:  # row 0 keeps the states of all starts
            num_rows = min(num_rows, _MOST_STATES)
        self._steps = has_states and self._shares_cache
        self._rows = Rows(target, drafter, num_rows=1, capacity=capacity, eos_ids=())
        self._rows.begin(1, num_rows + num_drafts)
        drafter.allocate(num_rows, capacity)
        if self._copies_target:
            target.allocate(num_rows, capacity)
        self._starts = State.allocate(num_rows, capacity, [], target.device)
        self._last: tuple[int, ...] = ()  # prompt and output of the last turn

    def follow(self, text: TargetText, sampling: Sampling) -> TraceResult:
        """Propose at every start of the text; UsageError for proposals that cannot be matched."""
        text_C = text.by_position(self._capacity, self._target.device)
        sampler = TextSampler(sampling, text_C)
        self._fill(text, sampler)
        result = TraceResult({k: ProposalMatches() for k in self.ks}, [1.0])
        for forward in self._forwards(text):
            begin, end = forward.begin, forward.end
            # The prompt gives the first start, and each output token gives one more.
            first, last = begin + 1 if begin else 0, min(end, text.num_starts - 1)
            if not sampler.is_greedy:
                tokens_T1 = text_C[len(text.prompt_ids) + begin + 1 :][: end - begin]
                probs_TV = sampler.probs(forward.logits_1TV[0])
                result.target_probs.extend(probs_TV.gather(1, tokens_T1[:, None])[:, 0].tolist())
            for start in range(first, last + 1, self._starts.num_rows):
                starts = range(start, min(start + self._starts.num_rows, last + 1))
                self._propose(text, text_C, starts, forward, sampler, result.matches)
        self._finish(text)
        return result

    def _fill(self, text: TargetText, sampler: TextSampler) -> None:
        """Prefill the prompt in row 0, which already contains the earlier turns."""
        request = Request(
            prompt_ids=text.prompt_ids,
            max_new_tokens=text.max_new_tokens,
            seed=text.seed,
            prediction_ids=text.prediction_ids,
        )
        num_cached = self._rows.num_cached(0, self._last, len(self._last) - 2, text.prompt_ids)
        self._rows.fill([PrefillRequest(0, request, num_cached)], sampler)

    def _finish(self, text: TargetText) -> None:
        """Set row 0 to its state after the last round, for the prefill of the next turn."""
        state, tokens = self._rows.state, (*text.prompt_ids, *text.output_ids)
        state.tokens_BC[0, : len(tokens)] = torch.tensor(tokens, device=self._target.device)
        state.length_B1.fill_(len(tokens) - 1)
        state.budget_B.zero_()
        self._last = tokens

    def _forwards(self, text: TargetText) -> Iterator[_TargetForward]:
        """The target's forwards over the output without its last token."""
        chunk = max(1, min(_CHUNK, LOGITS_AT_ONCE // self._target.vocab_size))
        if self._shares_cache:
            # Drafts overwrite the target's cache after their start, and the next chunk restores it.
            # A chunk must therefore not be longer than the rows.
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
                features=self._drafter.capabilities.features,
                start=None if self._steps else first,
            )
            yield _TargetForward(begin, end, first, out.logits, out.features)

    def _propose(
        self,
        text: TargetText,
        text_C: Tensor,
        starts: Sequence[int],
        forward: _TargetForward,
        sampler: TextSampler,
        matches: Mapping[int, ProposalMatches],
    ) -> None:
        """Match proposals at consecutive starts, in copies of row 0, which ends at the last one."""
        drafter, row_0 = self._drafter, self._rows.state
        num_prompt, end = len(text.prompt_ids), len(text.prompt_ids) + starts[-1]
        span = rounded_up(end + self._spare)
        row_0.tokens_BC[0, : end + 1] = text_C[: end + 1]
        row_0.length_B1.fill_(end)
        drafter.catch_up(row_0, len(starts), span)
        for row, start in enumerate(starts, 1):
            row_0.length_B1.fill_(num_prompt + start)
            if start:
                drafter.observe(row_0, self._outcome(text_C, num_prompt + start, forward, span))
            if row < len(starts):
                drafter.copy_row(0, row, num_prompt + start + 1)
                if self._copies_target:
                    self._target.copy_row(0, row, num_prompt + start + 1)
        order = [starts[-1], *starts[:-1]]
        state = self._state_at(text, text_C, order)
        for k in self.ks:
            proposal = propose(drafter, state, sampler, k, span)
            refuse_drawn_tree(self._name, proposal)
            size = num_prompt + len(text.output_ids)
            matches[k].add(order, proposal, state.length_B1, text_C, size)

    def _state_at(self, text: TargetText, text_C: Tensor, starts: Sequence[int]) -> State:
        """The state of rows that contain the text up to their starts."""
        state = self._starts.rows(0, len(starts))
        starts_B = torch.tensor(starts, device=text_C.device)
        state.length_B1.copy_((starts_B + len(text.prompt_ids))[:, None])
        positions_C = torch.arange(state.capacity, device=text_C.device)
        state.tokens_BC.copy_(torch.where(positions_C <= state.length_B1, text_C, 0))
        state.budget_B.copy_(text.max_new_tokens - 1 - starts_B)
        state.seed_B.fill_(text.seed)
        return state

    def _outcome(self, text_C: Tensor, length: int, forward: _TargetForward, span: int) -> Outcome:
        """The outcome of a round at K = 0 that emitted the token at position `length`."""
        position_11 = torch.full((1, 1), length - 1, device=text_C.device)
        t = length - 1 - forward.position
        return Outcome(
            num_emitted_B=torch.ones_like(position_11[0]),
            positions_BT=position_11,
            following_BT=text_C[position_11 + 1],
            features=tuple(f_1TF[:, t : t + 1] for f_1TF in forward.features),
            span=span,
            tokens_BN=text_C[position_11],
            logits_BNV=forward.logits_1TV[:, t : t + 1],
        )


class TraceNames(NamedTuple):
    """Names that the records of a trace have as keys."""

    target: str
    drafter: str
    method: str


@runtime_checkable
class Traceable(Protocol):
    """An engine that gives access to its target's runner and its drafters."""

    @property
    def runner(self) -> Runner: ...

    def drafting(self, drafter: str) -> Drafter:
        """The named drafter, over separate rows."""
        ...


def trace_conversation(
    engine: Engine,
    drafter: str,
    method: str,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    """Calls `trace` with a loaded drafter; UsageError if the engine is not Traceable.

    The drafter loses its rows, and its KV cache may grow: trace before a measurement warms up.
    """
    if not isinstance(engine, Traceable):
        raise UsageError(
            f"{drafter}: cannot be forecast in {engine.name}, which offers no drafters for "
            "tracing; use --engine builtin, or measure it"
        )
    names = TraceNames(engine.identity.name, drafter, method)
    return trace(names, engine.runner, engine.drafting(drafter), texts, ks, drafting=drafting)


def trace(
    names: TraceNames,
    target: Runner,
    drafter: Drafter,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    *,
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    """Traces of the turns of one prompt: one record per turn and depth, in this order.

    If a smaller K drafts a prefix of a larger one, there is one record per turn, traced at the
    deepest of `ks`. Depths beyond the drafter's limit are left out. With `drafting` greedy, it
    drafts its likeliest tokens at any temperature. UsageError if the method cannot be traced.
    """
    if drafter.capabilities.repeatability == "none":
        raise UsageError(
            f"{names.drafter}: {names.method} cannot be forecast: what it drafts depends on "
            "earlier checks, including rejected drafts; measure it"
        )
    depths = sorted({k for k in ks if 0 < k <= (drafter.capabilities.max_k or k)})
    if not depths or not texts:
        return ()
    records: list[TraceRecord] = []
    with torch.inference_mode(), pinned_attention(target.device):
        drafter_trace = DrafterTrace(names.drafter, target, drafter, texts, depths)
        for text in texts:
            began_s = time.perf_counter()
            result = drafter_trace.follow(text, text.sampling if drafting == "own" else Sampling())
            seconds = (time.perf_counter() - began_s) / len(result.matches)
            for k, matches in result.matches.items():
                starts = range(text.num_starts)
                record = TraceRecord(
                    target=names.target,
                    drafter=names.drafter,
                    method=names.method,
                    workload=text.workload,
                    prompt_id=text.prompt_id,
                    turn=text.turn,
                    repeat=text.repeat,
                    temperature=text.sampling.temperature,
                    num_speculative_tokens=k,
                    is_chain=drafter_trace.is_chain,
                    is_exact=drafter.capabilities.repeatability == "exact",
                    num_prompt_tokens=len(text.prompt_ids),
                    output_ids=text.output_ids,
                    num_drafted=tuple(matches.num_drafted[start] for start in starts),
                    chances=tuple(matches.chances(start, result.target_probs) for start in starts),
                    drafting=drafting,
                    context=text.context,
                    seconds=seconds,
                )
                records.append(record)
    return tuple(records)
