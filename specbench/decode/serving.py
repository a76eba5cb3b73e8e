"""The loop over rounds, which admits requests, advances all rows, and reuses finished rows.

A request ends at an end-of-text token, at its budget, or at a stop string, which may begin in one
token and end in another.

A predicted output is verified right after the prefill of its prompt, and rounds continue from the
first difference. Source: SPEC-RL (arXiv:2509.23232), which verifies an earlier answer to the same
prompt in one pass and decodes from its longest valid prefix.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specbench.decode.clock import Mark
from specbench.decode.drafter import PredictsOutput
from specbench.decode.launcher import Launcher, RoundLaunch
from specbench.decode.round import finish_round
from specbench.decode.rows import PrefillRequest
from specbench.decode.scheduler import Admission, ObservedRound, Policy, Scheduler
from specbench.decode.state import FURTHEST
from specbench.footprint import PREFILL_LOGITS, rounded_up
from specbench.records import AnswerCheck, Request, Result, RoundLog, RoundTimeline


class VerifiedPrediction(NamedTuple):
    """The result of verifying a row's predicted output."""

    tokens: list[int]  # emitted
    num_drafted: int
    num_accepted: int
    is_done: bool


def check_predicted_output(launcher: Launcher, row: int) -> VerifiedPrediction | None:
    """Verify the output that a row's drafter predicts, and emit what the target accepts.

    The row already has its first token. Each forward takes as many tokens as the memory for logits
    allows; the first forward with a rejected token is the last one. None if nothing was predicted.
    Waits for the device.
    """
    rows, drafter = launcher.rows, launcher.rows.drafter
    assert isinstance(drafter, PredictsOutput), "the drafter predicts no output"
    state = rows.state.rows(row, 1)
    length, left = torch.cat([state.length_B, state.budget_B]).tolist()
    chunk = min(rows.prefill_chunk, PREFILL_LOGITS // rows.target.vocab_size, FURTHEST)
    if rows.target.most_drafts is not None:
        chunk = min(chunk, rows.target.most_drafts + 1)
    tokens: list[int] = []
    num_drafted = num_accepted = 0
    while left > 1:  # the last token of a budget always comes from the target
        proposal = drafter.predicted_output(state, min(max(chunk - 1, 1), left - 1))
        drafted = 0 if proposal is None else int(proposal.num_drafted_B)
        if proposal is None or not drafted:
            break
        proposal = proposal._replace(tokens_BK=proposal.tokens_BK[:, :drafted])
        span = min(rounded_up(length + drafted + 1), rows.capacity)
        report_BR = finish_round(
            rows.target, drafter, state, launcher.sampler, proposal, span, launcher.verifier
        )
        _, accepted, emitted, left, *round_tokens = report_BR[0].tolist()
        drafter.catch_up(state, emitted, span)  # more tokens than `propose` catches up on
        length += emitted
        tokens += round_tokens[:emitted]
        num_drafted += drafted
        num_accepted += accepted
        if accepted < drafted:
            break
    return VerifiedPrediction(tokens, num_drafted, num_accepted, left == 0) if tokens else None


@dataclass
class _RequestProgress:
    """The progress of one admitted request."""

    began: Mark
    first_token: Mark
    output: list[int]
    check: VerifiedPrediction | None = None
    check_ended: Mark | None = None
    num_drafted: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    num_emitted: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # indices among the rounds of the pass
    num_pending_tokens: int = 0  # the most that rounds with unread reports can have emitted
    is_done: bool = False
    is_stopped: bool = False  # by a stop string


class _PendingRound(NamedTuple):
    """A launched round whose report is unread, with the requests in its rows."""

    launch: RoundLaunch
    k: int
    num_rows: int
    num_caught_up: int  # earlier tokens that the drafter processed first
    requests: tuple[int, ...]


class ServedRequests(NamedTuple):
    """One result per request, in their order, and the rounds that served them."""

    results: list[Result]
    timeline: RoundTimeline
    seconds: float  # until the last token


class ServingLoop:
    """One pass over a set of requests."""

    def __init__(
        self,
        requests: Sequence[Request],
        launcher: Launcher,
        policy: Policy,
        *,
        text: Callable[[Sequence[int]], str],
    ) -> None:
        self._requests = requests
        self._text = text
        self._launcher = launcher
        self._rows = rows = launcher.rows
        self._clock = launcher.clock
        self._policy = policy
        self._scheduler = Scheduler(requests, rows.state.num_rows)
        self._progress: dict[int, _RequestProgress] = {}
        # By row: the conversation and tokens of its last request, and how many the KV cache has.
        self._cached: dict[int, tuple[str, tuple[int, ...], int]] = {}
        self._pending: deque[_PendingRound] = deque()
        self._rounds: list[ObservedRound] = []
        self._behind = 0  # tokens per row that the drafter might not have seen
        self._predicts_output = isinstance(rows.drafter, PredictsOutput)
        self._eos_ids = frozenset(rows.state.eos_E.tolist())

    def run(self) -> ServedRequests:
        """Decode all requests; the rows may be used again afterwards."""
        self._clock.start()
        while not self._scheduler.is_over or self._pending:
            self._admit()
            running = self._packed()
            if running:
                self._launch(running)
            if self._pending and (not running or len(self._pending) > self._launcher.lag):
                self._process_report(self._pending.popleft())
            elif not running and self._scheduler.next_arrival_s is not None:
                time.sleep(max(self._scheduler.next_arrival_s - self._clock.now(), 0.0))
        results = [self._result(i) for i in range(len(self._requests))]
        seconds = max((r.arrived_s or 0.0) + (r.total_s or 0.0) for r in results)
        return ServedRequests(results, self._timeline(), seconds)

    def _admit(self) -> None:
        admitted = self._scheduler.admit(self._clock.now())
        if not admitted:
            return
        began = self._clock.mark()
        first = self._rows.fill([self._fill(a) for a in admitted], self._launcher.sampler)
        first_token = self._clock.mark()
        for (_, request), (token, is_done) in zip(admitted, first, strict=True):
            self._progress[request] = _RequestProgress(began, first_token, [token])
            if self._num_kept(request, 1) is not None or is_done:
                self._finish(request)
        if self._policy.max_k and self._predicts_output:
            self._check_predicted_outputs(
                [a for a in admitted if not self._progress[a.request].is_done]
            )

    def _check_predicted_outputs(self, admitted: Sequence[Admission]) -> None:
        """Verify the predicted outputs, row by row."""
        checks: dict[int, VerifiedPrediction] = {}
        for row, request in admitted:
            check = check_predicted_output(self._launcher, row)
            if check is not None:
                checks[request] = check
        ended = self._clock.mark() if checks else None
        for request, check in checks.items():
            progress = self._progress[request]
            progress.check, progress.check_ended = check, ended
            progress.output += check.tokens
            num_kept = self._num_kept(request, len(check.tokens))
            if num_kept is not None:
                num_accepted = min(check.num_accepted, num_kept)
                tokens = check.tokens[:num_kept]
                progress.check = check._replace(tokens=tokens, num_accepted=num_accepted)
            if check.is_done or progress.is_stopped:
                self._finish(request)

    def _num_kept(self, request: int, num_new: int) -> int | None:
        """Cut the output after the token that completes a stop string. Returns how many of the last
        `num_new` tokens remain; None if the output has no stop string and continues."""
        wanted, progress = self._requests[request], self._progress[request]
        stop = wanted.settings.stop if wanted.stop_at_eos else ()
        end = length_to_stop(progress.output, num_new, stop, self._text)
        if end is None:
            return None
        num_kept = num_new - (len(progress.output) - end)
        del progress.output[end:]
        progress.is_stopped = True
        return num_kept

    def _fill(self, admission: Admission) -> PrefillRequest:
        row, request = admission.row, self._requests[admission.request]
        conversation, tokens, num_seen = self._cached.pop(row, (None, (), 0))
        num_cached = 0
        if conversation == request.conversation:  # a drafter may know more than the shared prefix
            num_cached = self._rows.num_cached(row, tokens, num_seen, request.prompt_ids)
        return PrefillRequest(row, request, num_cached)

    def _packed(self) -> tuple[int, ...]:
        """Close gaps between running rows; returns the running requests in the order of rows."""
        moves = self._scheduler.pack()
        running = self._scheduler.running
        for source, gap in moves:
            self._rows.move_row(source, gap, self._length_bound(running[gap]) + 1)
            self._cached.pop(source, None)
            self._cached.pop(gap, None)
        return running

    def _launch(self, running: tuple[int, ...]) -> None:
        num_rows = self._launcher.rows_for(len(running))
        backlog = min(self._behind, max(map(self._num_emitted_bound, running)))
        k = self._policy.choose(num_rows, len(running), backlog)
        num_drafts = self._rows.drafter.num_drafts(k) if k else 0
        span = self._launcher.span_for(max(map(self._length_bound, running)) + num_drafts + 1)
        num_caught_up = backlog if k else 0
        launch = self._launcher.launch(num_rows, k, span, num_caught_up)
        self._behind = 0 if k or not self._policy.max_k else self._behind + 1
        self._pending.append(_PendingRound(launch, k, num_rows, num_caught_up, running))
        for request in running:
            self._progress[request].num_pending_tokens += k + 1

    def _length_bound(self, request: int) -> int:
        """The most tokens that a request can have committed, including unread rounds."""
        wanted = self._requests[request]
        known = len(wanted.prompt_ids) + len(self._progress[request].output) - 1
        return min(known + self._progress[request].num_pending_tokens, wanted.num_tokens - 1)

    def _num_emitted_bound(self, request: int) -> int:
        """The most tokens that a request can have emitted since its prefill."""
        return self._length_bound(request) - len(self._requests[request].prompt_ids)

    def _process_report(self, pending: _PendingRound) -> None:
        """Read a round's report and free the rows of finished requests."""
        launch, seconds = pending.launch, self._clock.seconds
        ended_s = seconds(launch.ended)
        report = launch.report_BN.tolist()
        accepted, emitted = [], []
        for request, (d, a, e, budget, *tokens) in zip(pending.requests, report, strict=False):
            progress = self._progress[request]
            progress.num_pending_tokens -= pending.k + 1
            if progress.is_done:  # it ended in a round whose report had not been read
                continue
            progress.output += tokens[:e]
            num_kept = self._num_kept(request, e)
            if num_kept is not None:
                e, a, budget = num_kept, min(a, num_kept), 0
            progress.num_drafted.append(d)
            progress.num_accepted.append(a)
            progress.num_emitted.append(e)
            progress.rounds.append(len(self._rounds))
            accepted.append(a)
            emitted.append(e)
            if budget == 0:
                self._finish(request)
        began_s = seconds(launch.began)
        ended = ObservedRound(
            k=pending.k,
            num_rows=pending.num_rows,
            num_accepted=accepted,
            num_emitted=emitted,
            num_caught_up=pending.num_caught_up,
            seconds=ended_s - began_s,
            began_s=began_s,
            draft_s=None if launch.drafted is None else seconds(launch.drafted) - began_s,
            graph=launch.graph,
        )
        self._rounds.append(ended)
        if emitted:
            self._policy.observe(ended)

    def _finish(self, request: int) -> None:
        progress = self._progress[request]
        progress.is_done = True
        row = self._scheduler.finish(request, self._clock.now())
        if progress.is_stopped:  # the device does not check for stop strings
            self._rows.state.budget_B[row] = 0
        elif (conversation := self._requests[request].conversation) is not None:
            tokens = (*self._requests[request].prompt_ids, *progress.output)
            # The target's cache lacks the last token; the drafter's may also lack the one before.
            self._cached[row] = conversation, tokens, max(len(tokens) - 2 - self._behind, 0)

    def _result(self, request: int) -> Result:
        progress = self._progress[request]
        rounds = [self._rounds[i] for i in progress.rounds]
        draft_s = [r.draft_s for r in rounds if r.draft_s is not None]
        is_split = len(draft_s) == len(rounds)
        first_token_s = self._clock.seconds(progress.first_token)
        answer_check = self._answer_check(progress, first_token_s)
        finished_s = first_token_s + (answer_check.seconds if answer_check else 0.0)
        if rounds:
            finished_s = rounds[-1].began_s + rounds[-1].seconds
        arrived_s = self._scheduler.arrived_s(request)
        started_s = self._clock.seconds(progress.began)
        return Result(
            output_ids=tuple(progress.output),
            finish_reason="eos"
            if progress.is_stopped or progress.output[-1] in self._eos_ids
            else "length",
            prefill_s=first_token_s - started_s,
            ttft_s=first_token_s - arrived_s,
            decode_s=finished_s - first_token_s,
            total_s=finished_s - arrived_s,
            cpu_s=None,
            rounds=RoundLog(
                num_drafted=tuple(progress.num_drafted),
                num_accepted=tuple(progress.num_accepted),
                num_emitted=tuple(progress.num_emitted),
                round_s=tuple(r.seconds for r in rounds),
                draft_s=tuple(draft_s) if is_split else None,
                verify_s=tuple(r.seconds - s for r, s in zip(rounds, draft_s, strict=True))
                if is_split
                else None,
            ),
            arrived_s=arrived_s,
            queue_s=started_s - arrived_s,
            answer_check=answer_check,
            graph=", ".join(sorted({r.graph for r in rounds})) or None,
        )

    def _answer_check(self, progress: _RequestProgress, first_token_s: float) -> AnswerCheck | None:
        check, ended = progress.check, progress.check_ended
        if check is None or ended is None:
            return None
        return AnswerCheck(
            num_drafted=check.num_drafted,
            num_accepted=check.num_accepted,
            num_emitted=len(check.tokens),
            seconds=self._clock.seconds(ended) - first_token_s,
        )

    def _timeline(self) -> RoundTimeline:
        return RoundTimeline(
            at_s=tuple(r.began_s for r in self._rounds),
            seconds=tuple(r.seconds for r in self._rounds),
            num_speculative_tokens=tuple(r.k for r in self._rounds),
            num_live=tuple(len(r.num_emitted) for r in self._rounds),
            num_rows=tuple(r.num_rows for r in self._rounds),
            num_emitted=tuple(sum(r.num_emitted) for r in self._rounds),
        )


_TOKENS_PER_CHARACTER = 4  # at most, since a token has at least one byte of UTF-8


def length_to_stop(
    ids: Sequence[int], num_new: int, stop: Sequence[str], text: Callable[[Sequence[int]], str]
) -> int | None:
    """The number of tokens of an output, up to and including the one that completes a stop string.

    None unless that is one of the last `num_new` tokens. `text` decodes ids.
    """
    if not stop:
        return None
    first_new = len(ids) - num_new
    begin = max(first_new - _TOKENS_PER_CHARACTER * max(map(len, stop)), 0)

    def is_stopped(end: int) -> bool:
        window = text(ids[begin:end])
        return any(string in window for string in stop)

    if not is_stopped(len(ids)):
        return None
    return next(end for end in range(first_new + 1, len(ids) + 1) if is_stopped(end))


def text_before(stop: Sequence[str], text: str) -> str:
    """The text before its first stop string."""
    return text[: min((text.find(string) for string in stop if string in text), default=len(text))]
