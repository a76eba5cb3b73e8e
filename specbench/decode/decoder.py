"""Decodes requests with a target and a drafter, in rows that are reused from pass to pass."""

from collections.abc import Callable, Sequence

import torch

from specbench.decode.clock import Clock
from specbench.decode.drafter import Drafter
from specbench.decode.launcher import Launcher
from specbench.decode.round import Verifier
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, Policy
from specbench.decode.serving import ServedRequests, ServingLoop
from specbench.decode.verifier import verify
from specbench.footprint import PREFILL_CHUNK, row_slots
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner, check_context
from specbench.records import Request, Result, Sampling

MakeLauncher = Callable[[Rows, Sampler, Verifier, Clock], Launcher]


class Decoder:
    """Serves requests of equal priority; every request's text depends only on that request."""

    def __init__(
        self,
        target: Runner,
        drafter: Drafter,
        *,
        eos_ids: Sequence[int],
        clock: Clock,
        verifier: Verifier = verify,
        make_launcher: MakeLauncher = Launcher,
        prefill_chunk: int = PREFILL_CHUNK,
        text: Callable[[Sequence[int]], str] = str,
    ) -> None:
        """`text` decodes ids; only requests with stop strings need it."""
        self.target = target
        self.drafter = drafter
        self._eos_ids = tuple(eos_ids)
        self._clock = clock
        self._verifier = verifier
        self._make_launcher = make_launcher
        self._prefill_chunk = prefill_chunk
        self._text = text
        self._rows: Rows | None = None
        self._launchers: dict[Sampling, Launcher] = {}
        self.launcher: Launcher | None = None  # of the last pass
        self._num_dropped = 0  # captures of launchers that were dropped

    @property
    def num_captures(self) -> int:
        """Rounds captured so far; if it rises during a pass, the pass's time includes captures."""
        return self._num_dropped + sum(la.num_captures for la in self._launchers.values())

    def decode(self, requests: Sequence[Request], sampler: Sampler, *, k: int) -> list[Result]:
        """Decode each request to its end-of-text token or budget, in one row each, at one K."""
        return self.serve(requests, sampler, FixedK(k), num_rows=len(requests)).results

    @torch.inference_mode()
    def serve(
        self, requests: Sequence[Request], sampler: Sampler, policy: Policy, *, num_rows: int
    ) -> ServedRequests:
        """Serve the requests in order, up to `num_rows` concurrently; ModelError if one is longer
        than the context."""
        longest = max(request.num_tokens for request in requests)
        check_context(self.target.max_position, longest)
        num_drafts = self.drafter.num_drafts(policy.max_k) if policy.max_k else 0
        rows = self._open_rows(num_rows, longest + num_drafts + 1, num_drafts)
        launcher = self.launcher = self._open_launcher(rows, sampler)
        with pinned_attention(self.target.device):
            return ServingLoop(requests, launcher, policy, text=self._text).run()

    def _open_rows(self, num_rows: int, num_tokens: int, num_drafts: int) -> Rows:
        """The rows of the last pass if they are large enough, as graphs are bound to their
        addresses; otherwise new ones."""
        rows, capacity = self._rows, row_slots(num_tokens, self.target.device.type)
        if rows is None or num_rows > rows.num_rows or capacity > rows.capacity:
            self._num_dropped = self.num_captures
            self._launchers.clear()
            known = rows
            self._rows = None  # until `begin` has allocated the new ones, which may fail
            rows = Rows(
                self.target,
                self.drafter,
                num_rows=max(num_rows, known.num_rows if known else 0),
                capacity=max(capacity, known.capacity if known else 0),
                eos_ids=self._eos_ids,
                prefill_chunk=self._prefill_chunk,
            )
        rows.begin(num_rows, num_drafts)
        self._rows = rows
        return rows

    def _open_launcher(self, rows: Rows, sampler: Sampler) -> Launcher:
        """The launcher for these rows and sampling settings, which its captures depend on."""
        known = self._launchers.get(sampler.sampling)
        if known is None:
            known = self._make_launcher(rows, sampler, self._verifier, self._clock)
            self._launchers[sampler.sampling] = known
        return known
