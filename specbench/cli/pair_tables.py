"""Output of `specbench pair`: unsupported drafters, memory, the ranking."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer

from specbench.cli.answer import print_paths
from specbench.cli.console import WIDTH, open_console, plain_table, say
from specbench.cli.hardware import MachineSummary
from specbench.decide.rank import Gain, RankedDrafter
from specbench.files.config import Experts
from specbench.files.gguf import GgufFile
from specbench.fit.candidates import CandidateList
from specbench.fit.memory_plan import MemoryPlan
from specbench.footprint import STATES_BESIDE_DRAFTS
from specbench.records import Reason
from specbench.report.answers import answer_lines
from specbench.report.document import Document
from specbench.report.notes import failure_lines
from specbench.report.sections import answer_about, unmeasured_drafters
from specbench.words.answers import REASON, answer_text
from specbench.words.numbers import listed, measured, plural, significant
from specbench.words.table import Table, column, text_table

_WORDS = {"True": "yes", "False": "no", "None": "none"}


def print_prepared(prepared: CandidateList, machine: MachineSummary) -> None:
    """Prints unsupported drafters, then warnings, then memory."""
    for line in _lines(prepared):
        say(line)
    _print_memory(prepared, machine)


def print_gguf(files: Mapping[str, GgufFile]) -> None:
    """Prints the facts of GGUF files, a column per file."""
    facts = [gguf_json(file) for file in files.values()]
    rows = [
        (
            name.replace("_bytes", "").replace("_", " "),
            *(_fact(fact[name], is_size="bytes" in name) for fact in facts),
        )
        for name in facts[0]
    ]
    table = text_table("", ("", *files), rows, num_names=1 + len(files))
    open_console(width=WIDTH).print(plain_table(table))
    typer.echo("")


def _fact(value: Any, *, is_size: bool) -> str:
    if is_size:
        return measured(value, "bytes")
    return f"{value:,}" if type(value) is int else _WORDS.get(str(value), str(value))


def gguf_json(file: GgufFile) -> dict[str, Any]:
    return {
        "architecture": file.architecture,
        "layers": file.num_layers,
        "heads": file.num_heads,
        "kv_heads": max(file.kv_heads),
        "kv_bytes_per_token": file.kv_bytes_per_token,
        "weights_bytes": file.nbytes,
        "quantization": file.quantization,
        **file.vocabulary._asdict(),
        "tokens": len(file.vocabulary.tokens),
    }


def print_ranking(
    ranked: Sequence[RankedDrafter], document: Document, paths: Sequence[Path]
) -> None:
    """Prints the ranked drafters, the path of the report, and one sentence per workload."""
    table = Table(
        columns=[
            column("", lambda entry: str(ranked.index(entry) + 1)),
            column("drafter", attrgetter("drafter")),
            column("method", attrgetter("method")),
            column("K", attrgetter("best.at.label")),
            column(
                "speedup",
                lambda entry: (
                    entry.speedup if entry.best.num_speculative_tokens else entry.potential
                ),
                "{:.2f}x",
            ),
            column("length", attrgetter("best.mean_acceptance_length"), "{:.2f}"),
            column("verdict", attrgetter("best.verdict.value")),
            column("from", attrgetter("best.basis")),
        ],
        records=ranked,
        num_names=3,
        num_remarks=2,
        wraps=range(3),
    )
    typer.echo("")
    open_console(width=WIDTH).print(plain_table(table, num_keys=2))
    several = max((len(entry.gains) for entry in ranked), default=0)
    if several > 1:
        say(
            f"speedup: geometric mean over {several} settings, each at its own K; K, length and "
            "verdict are of the setting with the largest gain"
        )
    for line in failure_lines(document):
        say(line)
    if missing := unmeasured_drafters(document):
        say(f"not measured at every setting, and perhaps faster: {listed(missing)}")
    print_paths(paths)
    for line in answer_lines(document):
        say(line)
    say(answer_text(*answer_about(ranked, document)))


def pair_document(
    prepared: CandidateList,
    machine: MachineSummary,
    ranked: Sequence[RankedDrafter] = (),
    measured: Document | None = None,
) -> dict[str, Any]:
    """The JSON document of `pair`; an unknown value is null."""
    run_id, verdict, reasons = None, None, tuple[Reason, ...]()
    if measured is not None:
        run_id = measured.run.run_id
        verdict, reasons = answer_about(ranked, measured)
    return {
        "target": prepared.target.name,
        "machine": {"name": machine.name, **asdict(machine.setup), "notes": list(machine.notes)},
        "target_findings": [asdict(finding) for finding in prepared.findings],
        "target_alone": _plan_json(prepared.target_plan),
        "experts": _experts_json(prepared.experts, machine.setup.num_speculative_tokens),
        "drafters": [
            {
                "drafter": candidate.drafter.name,
                "method": candidate.drafter.method,
                "model": (candidate.drafter.model.source if candidate.drafter.model else None),
                "level": candidate.compatibility.level,
                "findings": [asdict(finding) for finding in candidate.compatibility.findings],
                "memory": _plan_json(candidate.plan),
                "lost_context": prepared.lost_context(candidate),
            }
            for candidate in prepared.candidates
        ],
        "left_out": [asdict(skipped) for skipped in prepared.left_out],
        "ranking": ranking_json(ranked),
        "run_id": run_id,
        "verdict": verdict,
        "reasons": [*map(REASON.of, reasons)],
        "text": answer_text(verdict, reasons) if verdict else None,
    }


def ranking_json(ranked: Sequence[RankedDrafter]) -> list[dict[str, Any]]:
    return [
        {
            "drafter": entry.drafter,
            "method": entry.method,
            "speedup": entry.speedup,
            "num_speculative_tokens": entry.best.num_speculative_tokens,
            "is_measured": entry.is_measured,
            "behind": asdict(entry.behind) if entry.behind else None,
            "gains": [{**at.flat, **_gain_json(gain)} for at, gain in entry.gains.items()],
        }
        for entry in ranked
    ]


def _experts_json(experts: Experts | None, k: int) -> dict[str, Any] | None:
    if experts is None:
        return None
    expected = experts.expected(k + 1)
    return {**asdict(experts), "num_tokens": k + 1, "expected": expected}


def _gain_json(gain: Gain) -> dict[str, Any]:
    return {
        "num_speculative_tokens": gain.num_speculative_tokens,
        "speedup": asdict(gain.speedup) if gain.speedup else None,
        "mean_acceptance_length": gain.mean_acceptance_length,
        "basis": gain.basis,
    }


def _lines(prepared: CandidateList) -> Iterator[str]:
    refused = [c for c in prepared.candidates if c.is_refused]
    for candidate in refused:
        for finding in candidate.compatibility.of_level("refused"):
            yield f"refused  {candidate.drafter.name}: {finding.text}"
    for candidate in prepared.candidates:
        if candidate.is_refused:
            continue
        room = candidate.plan.headroom_bytes if candidate.plan else None
        if not candidate.fits:
            short = measured(-(room or 0), "bytes")
            reason = f"memory: {short} too large for this hardware and context"
            yield f"refused  {candidate.drafter.name}: {reason}"
        elif candidate.plan is not None and candidate.plan.fits:
            is_ok = candidate.compatibility.level == "ok"
            fit = "compatible with the target" if is_ok else "usable, with warnings"
            yield f"fits     {candidate.drafter.name}: {fit}; enough memory"
        elif room is not None:
            over = measured(-room, "bytes")
            reason = f"memory: at most {over} too large for this hardware and context"
            yield f"warning  {candidate.drafter.name}: {reason}"
        for finding in candidate.compatibility.of_level("warning"):
            yield f"warning  {candidate.drafter.name}: {finding.text}"
    for finding in [finding for finding in prepared.findings if finding.level == "warning"]:
        yield f"warning  {prepared.target.name}: {finding.text}"
    for skipped in prepared.left_out:
        yield f"skipped  {skipped.source}: {skipped.reason}"


def _print_memory(prepared: CandidateList, machine: MachineSummary) -> None:
    setup, plain = machine.setup, prepared.target_plan
    rows = [("target alone", *_memory_cells(plain, None))] if plain else []
    for candidate in prepared.candidates:
        if not candidate.is_refused:
            cells = _memory_cells(candidate.plan, prepared.lost_context(candidate))
            rows.append((candidate.drafter.name, *cells))
    headers = ("memory", "weights", "KV/token", "peak", "headroom", "context", "lost", "bound")
    typer.echo("")
    open_console(width=WIDTH).print(plain_table(text_table("", headers, rows, wraps=())))
    requests = plural(setup.concurrency, "request")
    say(
        f"{machine.name}: {requests} of {setup.context:,} tokens, "
        f"K={setup.num_speculative_tokens}, {plain.dtype if plain else setup.dtype or 'auto'}. "
        "context: tokens each request can hold; lost: how many fewer than only the target"
    )
    plans = [plan for plan in (plain, *(c.plan for c in prepared.candidates)) if plan]
    if states := max((_state_bytes(plan) for plan in plans), default=0):
        say(
            f"each request takes up to {measured(states, 'bytes')} for recurrent states, however "
            "long it is: those of a round's tokens are kept to roll drafts back"
        )
    if experts := prepared.experts:
        expected = experts.expected(setup.num_speculative_tokens + 1)
        say(
            f"mixture of experts: a token uses {experts.per_token} of {experts.num} per layer, the "
            f"{setup.num_speculative_tokens + 1} tokens of a verification at batch size 1 about "
            f"{expected:.1f} if routing is uniform: up to {expected / experts.per_token:.1f} times "
            "the experts of a decode step"
        )
    for note in dict.fromkeys((*machine.notes, *(n for plan in plans for n in plan.notes))):
        say(note)
    if plain is not None and plain.step_s is not None:
        say(
            "bound: the least number of tokens per round that pays off, by bandwidth only; a "
            f"step takes at least {measured(plain.step_s, 's')}"
        )


def _state_bytes(plan: MemoryPlan) -> int:
    """Bytes of recurrent state per sequence."""
    each = plan.target.state_bytes + (plan.draft.state_bytes if plan.draft else 0)
    return (plan.num_drafts + STATES_BESIDE_DRAFTS) * each


def _memory_cells(plan: MemoryPlan | None, lost: int | None) -> tuple[str | None, ...]:
    if plan is None:
        return "unknown from the files", *(None,) * 6
    draft, headroom, bound = plan.draft, plan.headroom_bytes, plan.break_even_length
    kv = plan.target.kv_bytes_per_token + (draft.kv_bytes_per_token if draft else 0)
    return (
        measured(plan.target.nbytes + (draft.nbytes if draft else 0), "bytes"),
        measured(kv, "bytes"),
        measured(plan.peak.total, "bytes"),
        None if headroom is None else measured(headroom, "bytes"),
        None if plan.max_context is None else f"{plan.max_context:,}",
        None if lost is None else f"{lost:,}",
        None if bound is None else significant(bound),
    )


def _plan_json(plan: MemoryPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        **asdict(plan),
        "peak_bytes": plan.peak.total,
        "fits": plan.fits,
        "break_even_length": plan.break_even_length,
    }
