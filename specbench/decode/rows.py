"""The rows of a target and its drafter on the device: prefilled, reused and moved.

Shape suffixes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import Chunk, Drafter, Outcome
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.footprint import PREFILL_CHUNK, rounded_up, rows_prefilled_together
from specbench.forward.runner import Output, Runner
from specbench.records import Request


class PrefillRequest(NamedTuple):
    """A request to start in a row whose KV cache already has the first `num_cached` tokens."""

    row: int
    request: Request
    num_cached: int = 0

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.request.prompt_ids


class Rows:
    """Static tensors for `num_rows` rows of `capacity` tokens, shared by every request.

    Passes use them one after another, and each must call `begin`; `state` has only the rows of the
    current pass.
    """

    def __init__(
        self,
        target: Runner,
        drafter: Drafter,
        *,
        num_rows: int,
        capacity: int,
        eos_ids: Sequence[int],
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.prefill_chunk = prefill_chunk
        draft_runner = drafter.resources.runner
        self._runners = [target, *([draft_runner] if draft_runner else [])]
        self._all = State.allocate(num_rows, capacity, list(eos_ids), target.device)
        self.state = self._all

    def begin(self, num_rows: int, num_drafts: int = 0) -> None:
        """Start a pass over the first `num_rows` rows; every row is done and empty.

        `num_drafts` is the maximum number of drafts per row in a round of the pass.
        """
        for runner in self._runners:
            runner.reserve(num_drafts)
        self.target.allocate(self.num_rows, self.capacity)
        self.drafter.allocate(self.num_rows, self.capacity)
        self._all.budget_B.zero_()
        # A graph also computes unused rows, which must write within their capacity at any K of this
        # pass.
        self._all.length_B1.fill_(1)
        self.state = self._all.rows(0, num_rows)

    @property
    def num_rows(self) -> int:
        """The maximum number of rows of a pass."""
        return self._all.num_rows

    @property
    def capacity(self) -> int:
        """The number of tokens that fit in a row."""
        return self._all.capacity

    @property
    def buffers(self) -> tuple[object, ...]:
        """Buffers that rounds write to in addition to the state; replaced when a cache grows."""
        return (self.target.cache, *self.drafter.buffers)

    def fill(self, fills: Sequence[PrefillRequest], sampler: Sampler) -> list[tuple[int, bool]]:
        """Prefill requests in their rows; returns each first token, and whether it is the last.

        Waits for the device. Adjacent rows with equally many cached tokens are prefilled together.
        Several samples of one prompt are prefilled once, and the other rows get a copy.
        """
        first: dict[int, tuple[int, bool]] = {}
        most = rows_prefilled_together(self.target.vocab_size)
        fed, copies = _split(fills)
        for group in _group_fills(fed, most, are_padded=not self._have_states):
            prefilled = self._prefill(group)
            starts = [prefilled]
            for i, fill in enumerate(group):
                # Copies are made before the row gets its first token, which they do not share.
                for same in _group_fills(copies.get(fill.row, ()), most, are_padded=True):
                    starts.append(self._copy(prefilled, i, same))
            for start in starts:
                first |= self._start(start, sampler)
        return [first[fill.row] for fill in fills]

    def move_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Move a request to another row; the source row is then done."""
        # `begin` first: drafters may still read the row's old text, which is then overwritten.
        self.drafter.begin(self.state.rows(destination, 1), [()])
        self.state.move_row(source, destination)
        self.target.copy_row(source, destination, num_tokens)
        self.drafter.copy_row(source, destination, num_tokens)

    def num_cached(
        self, row: int, text: Sequence[int], num_seen: int, prompt_ids: Sequence[int]
    ) -> int:
        """The number of leading prompt tokens that the row still has from its earlier text.

        Its caches of target and drafter contain the first `num_seen` tokens of that text.
        """
        if not self.drafter.capabilities.keeps_prefix:
            return 0
        # A head's entry for a token also depends on the next token, which for the last shared one
        # may be that of the old text.
        num_cached = max(min(num_shared(text, prompt_ids) - 1, num_seen, len(prompt_ids) - 1), 0)
        if not self._have_states:
            return num_cached
        # A recurrent state covers all tokens before it; older ones may include rejected drafts.
        is_last = num_cached == len(text) - 2
        return (
            num_cached
            if is_last and all(r.can_continue(row, num_cached) for r in self._runners)
            else 0
        )

    @property
    def _have_states(self) -> bool:
        return any(runner.most_drafts is not None for runner in self._runners)

    def _load(self, group: Sequence[PrefillRequest]) -> State:
        state = self.state.rows(group[0].row, len(group))
        self.drafter.begin(state, [fill.request.prediction_ids for fill in group])
        longest = max(len(fill.prompt_ids) for fill in group)
        padded = [[*f.prompt_ids, *[0] * (longest - len(f.prompt_ids))] for f in group]
        state.tokens_BC[:, :longest].copy_(torch.tensor(padded))
        state.length_B1.copy_(torch.tensor([[len(fill.prompt_ids)] for fill in group]))
        state.budget_B.copy_(torch.tensor([fill.request.max_new_tokens for fill in group]))
        state.seed_B.copy_(torch.tensor([fill.request.seed for fill in group]))
        return state

    def _prefill(self, group: Sequence[PrefillRequest]) -> "_Prefill":
        """Run target and drafter over the prompts, right-padded and in chunks."""
        state = self._load(group)
        first_row, begin = group[0].row, group[0].num_cached
        end = max(len(fill.prompt_ids) for fill in group)
        last_B = state.length_B - 1
        last: Output | None = None  # each row's last token
        for start in range(begin, end, self.prefill_chunk):
            stop = min(start + self.prefill_chunk, end)
            positions_BT = torch.arange(start, stop, device=last_B.device).expand(len(last_B), -1)
            tokens_BT, span = state.tokens_BC[:, start:stop], rounded_up(stop)
            at_B = (last_B - start).clamp(0, stop - start - 1)
            out = self.target.forward(
                tokens_BT,
                positions_BT,
                span,
                first_row=first_row,
                last_B=at_B,
                features=self.drafter.capabilities.features,
                start=start,
            )
            following_BT = state.tokens_BC[:, start + 1 : stop + 1]
            self.drafter.prefill(
                state, Chunk(tokens_BT, following_BT, positions_BT, span, out.features, start)
            )
            chunk = Output(out.logits, tuple(_entry(f_BTF, at_B) for f_BTF in out.features))
            last = chunk if last is None else _merge_chunks(last_B >= start, chunk, last)
        assert last is not None, "a prompt has at least one token that is not kept"
        return _Prefill(group, state, last, span)

    def _copy(self, of: "_Prefill", i: int, copies: Sequence[PrefillRequest]) -> "_Prefill":
        """Copy the i-th prefilled row to the adjacent rows of `copies`."""
        source, state = of.group[i], self._load(copies)
        for copy in copies:
            self.target.copy_row(source.row, copy.row, len(source.prompt_ids))
            self.drafter.copy_row(source.row, copy.row, len(source.prompt_ids))

        def repeated(x_B1F: Tensor) -> Tensor:
            return x_B1F[i : i + 1].expand(len(copies), -1, -1)

        last = Output(repeated(of.last.logits), tuple(map(repeated, of.last.features)))
        return _Prefill(copies, state, last, of.span)

    def _start(self, start: "_Prefill", sampler: Sampler) -> dict[int, tuple[int, bool]]:
        """Commit each row's first token; returns, by row, the token and whether it is the last."""
        state, last = start.state, start.last
        last_B = state.length_B - 1
        first_B1 = sampler.pick(last.logits, state.seed_B, state.length_B1)
        state.tokens_BC.scatter_(1, state.length_B1, first_B1)
        state.budget_B.sub_(1).masked_fill_((first_B1 == state.eos_E).any(1), 0)
        self.drafter.observe(
            state,
            Outcome(
                num_emitted_B=torch.ones_like(last_B),
                positions_BT=last_B[:, None],
                following_BT=first_B1,
                features=last.features,
                span=start.span,
                tokens_BN=state.tokens_at(last_B[:, None]),
                logits_BNV=last.logits,
            ),
        )
        seen = torch.cat([first_B1, state.budget_B[:, None]], 1).tolist()
        return {
            fill.row: (token, left == 0)
            for fill, (token, left) in zip(start.group, seen, strict=True)
        }


def num_shared(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of leading tokens that two texts share."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


class _Prefill(NamedTuple):
    """Adjacent rows with their prompts in the KV cache, before their first tokens."""

    group: Sequence[PrefillRequest]
    state: State
    last: Output  # of each row's last token
    span: int


def _split(
    fills: Sequence[PrefillRequest],
) -> tuple[list[PrefillRequest], dict[int, list[PrefillRequest]]]:
    """The requests to prefill, and for each row the requests that start as copies of it."""
    fed: list[PrefillRequest] = []
    copies: dict[int, list[PrefillRequest]] = {}
    rows: dict[tuple[int, ...], int] = {}
    for fill in fills:
        can_share = fill.request.is_sample and not fill.num_cached
        row = rows.setdefault(fill.prompt_ids, fill.row) if can_share else fill.row
        if row == fill.row:
            fed.append(fill)
        else:
            copies.setdefault(row, []).append(fill)
    return fed, copies


def _entry(x_BTF: Tensor, at_B: Tensor) -> Tensor:
    return x_BTF.gather(1, at_B[:, None, None].expand(-1, 1, x_BTF.shape[2]))


def _merge_chunks(is_later_B: Tensor, later: Output, earlier: Output) -> Output:
    """The later output for the given rows; rows whose prompt ended before keep the earlier one."""

    def choose(new_B1F: Tensor, old_B1F: Tensor) -> Tensor:
        return torch.where(is_later_B[:, None, None], new_B1F, old_B1F)

    features = zip(later.features, earlier.features, strict=True)
    return Output(choose(later.logits, earlier.logits), tuple(choose(*pair) for pair in features))


def _group_fills(
    fills: Sequence[PrefillRequest], most: int, *, are_padded: bool
) -> list[list[PrefillRequest]]:
    """Groups of at most `most` adjacent rows with equally many cached tokens.

    Unless `are_padded`, their prompts are equally long: padding must not enter a recurrent state.
    """
    groups: list[list[PrefillRequest]] = []
    for fill in sorted(fills, key=lambda fill: fill.row):
        last = groups[-1] if groups else []
        if (
            last
            and fill.row == last[-1].row + 1
            and fill.num_cached == last[-1].num_cached
            and (are_padded or len(fill.prompt_ids) == len(last[-1].prompt_ids))
            and len(last) < most
        ):
            last.append(fill)
        else:
            groups.append([fill])
    return groups
