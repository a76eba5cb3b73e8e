"""Traces: what a drafter would do along a target's finished texts, as records.

One pass a text serves every K. A prompt's text is decoded once, without drafts, for all drafters.
"""

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from specbench.decode.drafter import Drafter
from specbench.engines.engine import Engine
from specbench.errors import UsageError
from specbench.forward.attention.backends import pinned_attention
from specbench.forward.runner import Runner
from specbench.records import Sampling, TraceRecord
from specbench.records.traces import Drafting
from specbench.tracing.text import TargetText
from specbench.tracing.track import DrafterTrace


class TraceNames(NamedTuple):
    """What the records of a trace are filed under."""

    target: str
    drafter: str
    method: str


@runtime_checkable
class Traceable(Protocol):
    """An engine that lends its target's forwards and its drafters."""

    @property
    def runner(self) -> Runner: ...

    def drafting(self, drafter: str) -> Drafter:
        """How the named drafter drafts, over rows of its own."""
        ...


def trace_conversation(
    engine: Engine,
    drafter: str,
    method: str,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    """`trace` of a drafter that the engine has loaded; UsageError where it does not lend it.

    The drafter forgets its rows, and its KV cache may grow: trace before what is to be measured
    warms up.
    """
    if not isinstance(engine, Traceable):
        raise UsageError(
            f"{drafter}: cannot be forecast in {engine.name}, which offers no drafters for "
            "tracing; use --engine builtin, or measure it"
        )
    names = TraceNames(engine.identity.name, drafter, method)
    own = engine.drafting(drafter)
    return trace(names, engine.runner, own, texts, ks, drafting=drafting)


def trace(
    names: TraceNames,
    target: Runner,
    drafter: Drafter,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    *,
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    """The turns of one prompt, in order: a record a turn and depth, by turn and then by depth.

    Chains of which a smaller K drafts the beginning come as one record, traced at the deepest of
    `ks`; others as one a K. What is deeper than the drafter can is left out. With `drafting`
    greedy it drafts its likeliest tokens at any temperature. UsageError where the method cannot
    be traced.
    """
    if drafter.traits.repeatability == "none":
        raise UsageError(
            f"{names.drafter}: {names.method} cannot be forecast: what it drafts depends on "
            "earlier checks, including rejected drafts; measure it"
        )
    wanted = sorted({k for k in ks if 0 < k <= (drafter.traits.max_k or k)})
    if not wanted or not texts:
        return ()
    made: list[TraceRecord] = []
    with torch.inference_mode(), pinned_attention(target.device):
        track = DrafterTrace(names.drafter, target, drafter, texts, wanted)
        for text in texts:
            began_s = time.perf_counter()
            along = track.follow(text, text.sampling if drafting == "own" else Sampling())
            seconds = (time.perf_counter() - began_s) / len(along.found)
            for k, found in along.found.items():
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
                    is_chain=track.is_chain,
                    is_exact=drafter.traits.repeatability == "exact",
                    num_prompt_tokens=len(text.prompt_ids),
                    output_ids=text.output_ids,
                    num_drafted=tuple(found.num_drafted[start] for start in starts),
                    chances=tuple(found.chances(start, along.target_probs) for start in starts),
                    drafting=drafting,
                    context=text.context,
                    seconds=seconds,
                )
                made.append(record)
    return tuple(made)
