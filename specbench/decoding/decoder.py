"""Decodes a set of requests together: prefill in chunks, then rounds until all are done.

Shape suffixes: B rows, T tokens, C capacity of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.drafter import Drafter
from specbench.decoding.round import finish_round, propose
from specbench.decoding.runner import Runner
from specbench.decoding.sampling import Sampler
from specbench.decoding.state import State
from specbench.errors import ModelError
from specbench.records import RoundLog

SPAN_STEP = 64  # attention reads slots in steps of this many, so that kernel shapes are few


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt as token ids, how many tokens to emit at most, and the seed of its noise."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A request's output and what happened when, in seconds of the decoder's clock."""

    output_ids: tuple[int, ...]
    hit_eos: bool
    rounds: RoundLog
    started_s: float
    first_token_s: float
    finished_s: float


class Decoder:
    """A target and a drafter with room for rows; decodes requests of equal standing.

    `clock` returns seconds once the device has finished what it was given; the decoder
    reads no other time.
    """

    def __init__(
        self,
        target: Runner,
        drafter: Drafter,
        *,
        eos_ids: Sequence[int],
        clock: Callable[[], float],
        prefill_chunk: int = 512,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self._eos_ids = list(eos_ids)
        self._clock = clock
        self._prefill_chunk = prefill_chunk

    @torch.inference_mode()
    def decode(self, requests: Sequence[Request], sampler: Sampler, *, k: int) -> list[Result]:
        """Every request to its end-of-text token or budget, one row each."""
        longest = max(len(r.prompt_ids) + r.max_new_tokens for r in requests)
        self._check_context(longest)
        capacity = _rounded_up(longest + k + 1)
        self.target.allocate(len(requests), capacity)
        self.drafter.allocate(len(requests), capacity)
        state = self._state(requests, capacity)

        started_s = self._clock()
        self._prefill(requests, state, sampler)
        first_token_s = self._clock()
        times = self._rounds(requests, state, sampler, k)
        return _results(requests, state, started_s, first_token_s, times)

    def _check_context(self, num_tokens: int) -> None:
        limit = self.target.max_position
        if limit is not None and num_tokens > limit:
            raise ModelError(
                f"prompt and output take {num_tokens} tokens, the target's context has {limit}; "
                "choose shorter prompts or a smaller --max-new-tokens"
            )

    def _state(self, requests: Sequence[Request], capacity: int) -> State:
        num_rounds = max(r.max_new_tokens for r in requests)
        device = self.target.device
        state = State.allocate(len(requests), capacity, num_rounds, self._eos_ids, device)
        for row, request in enumerate(requests):
            prompt = torch.tensor(request.prompt_ids, device=device)
            state.tokens_BC[row, : len(prompt)] = prompt
        state.seed_B.copy_(torch.tensor([r.seed for r in requests]))
        state.length_B.copy_(torch.tensor([len(r.prompt_ids) for r in requests]))
        state.budget_B.copy_(torch.tensor([r.max_new_tokens for r in requests]))
        return state

    def _prefill(self, requests: Sequence[Request], state: State, sampler: Sampler) -> None:
        """Feed all prompts, right-padded, and commit each row's first token."""
        last_B = state.length_B - 1
        longest = max(len(r.prompt_ids) for r in requests)
        logits_BV: Tensor | None = None
        for start in range(0, longest, self._prefill_chunk):
            stop = min(start + self._prefill_chunk, longest)
            positions_BT = torch.arange(start, stop, device=last_B.device).expand(len(last_B), -1)
            tokens_BT, span = state.tokens_BC[:, start:stop], _rounded_up(stop)
            out = self.target.forward(
                tokens_BT,
                positions_BT,
                span,
                last_B=(last_B - start).clamp(0, stop - start - 1),
                features=self.drafter.features,
            )
            self.drafter.prefill(tokens_BT, positions_BT, span, out.features)
            ends_here_B1 = (last_B < stop)[:, None]  # rows that ended earlier keep theirs
            chunk_BV = out.logits[:, 0]
            if logits_BV is None:
                logits_BV = chunk_BV
            else:
                began_here_B1 = (last_B >= start)[:, None]
                logits_BV = torch.where(ends_here_B1 & began_here_B1, chunk_BV, logits_BV)
        assert logits_BV is not None, "a prompt has at least one token"
        first_B1 = sampler.pick(logits_BV[:, None], state.seed_B, state.length_B[:, None])
        state.tokens_BC.scatter_(1, state.length_B[:, None], first_B1)
        state.budget_B.sub_(1)
        state.done_B.copy_((first_B1 == state.eos_E).any(1) | (state.budget_B <= 0))

    def _rounds(
        self, requests: Sequence[Request], state: State, sampler: Sampler, k: int
    ) -> list[tuple[float, float, float]]:
        """Run rounds until every row is done; (started, drafted, finished) of each."""
        longest = max(len(r.prompt_ids) for r in requests)
        times = []
        while not bool(state.done_B.all()):
            span = _rounded_up(longest + k + 1)
            began_s = self._clock()
            proposal = propose(self.drafter, state, sampler, k, span)
            drafted_s = self._clock() if k else began_s
            finish_round(self.target, self.drafter, state, sampler, proposal, span)
            longest = int(state.length_B.max())
            times.append((began_s, drafted_s, self._clock()))
        return times


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // SPAN_STEP) * SPAN_STEP


def _results(
    requests: Sequence[Request],
    state: State,
    started_s: float,
    first_token_s: float,
    times: list[tuple[float, float, float]],
) -> list[Result]:
    log_BR3 = state.log_RB3[: len(times)].transpose(0, 1).tolist()
    rows = zip(requests, state.tokens_BC.tolist(), state.length_B.tolist(), log_BR3, strict=True)
    eos_ids = set(state.eos_E.tolist())
    results = []
    for request, tokens, length, log in rows:
        output_ids = tuple(tokens[len(request.prompt_ids) : length + 1])
        live = [i for i, (_, _, num_emitted) in enumerate(log) if num_emitted]
        results.append(
            Result(
                output_ids=output_ids,
                hit_eos=output_ids[-1] in eos_ids,
                rounds=RoundLog(
                    num_drafted=tuple(log[i][0] for i in live),
                    num_accepted=tuple(log[i][1] for i in live),
                    num_emitted=tuple(log[i][2] for i in live),
                    round_s=tuple(times[i][2] - times[i][0] for i in live),
                    draft_s=tuple(times[i][1] - times[i][0] for i in live),
                    verify_s=tuple(times[i][2] - times[i][1] for i in live),
                ),
                started_s=started_s,
                first_token_s=first_token_s,
                finished_s=times[live[-1]][2] if live else first_token_s,
            )
        )
    return results
