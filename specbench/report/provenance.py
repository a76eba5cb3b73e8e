"""A run as a whole: its question, its setup and its provenance."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from specbench.doc import keys_of
from specbench.metrics.registry import all_metrics
from specbench.records import EngineRecord, Environment, KernelChoice, Kind, ModelIdentity, lengths
from specbench.report.document import Document
from specbench.report.sessions import deployment_facts
from specbench.words.numbers import listed, measured, plural
from specbench.words.table import Table, labeled


def question(document: Document) -> str:
    """The title of a report: the question of the run."""
    targets = listed(list(dict.fromkeys(key.condition.target for key in document.run.keys)))
    processor = document.run.environment.processor
    on_device = f" on {processor}" if processor else ""
    return f"Does speculative decoding make {targets} faster{on_device}?"


def setup(document: Document) -> str:
    """Models, settings and machine in one line, which qualifies every headline."""
    keys = document.run.keys

    def each(words: Iterable[str]) -> str:
        distinct = list(dict.fromkeys(words))
        return listed(distinct) if distinct else ""

    conditions = [key.condition for key in keys]
    drafters = each(key.draft.marked(key.pairing) for key in keys if key.draft.k > 0)
    workloads = each(at.workload_label for at in conditions)
    contexts = each(f"{at.context:,}" for at in conditions if at.context is not None)
    variants = document.run.settings.servers.variants or {}
    machine = document.run.environment
    return "; ".join(
        (
            f"{drafters} on {workloads}" if drafters else workloads,
            f"K={lengths([key.draft.length for key in keys])}",
            f"temperature {each(f'{at.temperature:g}' for at in conditions)}",
            each(at.requests for at in conditions),
            *([f"{contexts} tokens of context"] if contexts else []),
            *([f"variants {listed(list(variants))}"] if variants else []),
            each(f"{at.dtype}, {at.engine} engine" for at in conditions),
            _processor(machine),
            _prompts(document),
            machine.created_at[:10],
        )
    )


def _processor(machine: Environment) -> str:
    if machine.processor != machine.cpu or machine.threads is None:
        return machine.processor or "hardware not named in the imported files"
    return f"{machine.cpu}, {plural(machine.threads, 'thread')}"


_WHICH_PASS = "Tables and charts show the exploration phase, answers the confirmation run."


def which_pass(document: Document) -> tuple[str, str] | None:
    """Why answers and tables quote different numbers, and the same in short; None if no answer has
    a confirmation run.
    """
    explored = {cell.key: cell.as_decided.speedup for cell in document.cells}
    confirmed = [d for d in document.decisions if Kind.CROSS_FITTED() not in d.reasons]
    if all(d.speedup in (None, explored.get(d.leader)) for d in confirmed):
        return None
    return f"{_WHICH_PASS} Picking the best of many is biased upward.", _WHICH_PASS


def _prompts(document: Document) -> str:
    counts = [cell.num_prompts for cell in document.cells] or [0]
    few, many = min(counts), max(counts)
    return f"{plural(many, 'prompt') if few == many else f'{few} to {many} prompts'} per workload"


_SHOWN_DIGITS = 12  # of a hash; JSON has all of them


class FactLine(NamedTuple):
    """A name with its value: a line of the provenance, or the formula of a metric."""

    name: str
    value: str
    unit: str = ""


def provenance(document: Document) -> tuple[FactLine, ...]:
    """Run, command, versions, machine, settings and texts, without unknown values."""
    run, machine, settings = document.run, document.run.environment, document.run.settings
    gpu_memory, decoder = machine.gpu_memory_bytes, settings.decoder
    num_cores = machine.num_cpu_cores
    commit = f"commit {machine.git_commit[:_SHOWN_DIGITS]}" if machine.git_commit else None
    is_measured = settings.command != "import"
    facts = (
        ("run", run.run_id),
        ("started", machine.created_at),
        ("command", shlex.join(machine.command)),
        ("specbench", _joined(machine.specbench_version, commit)),
        ("python", machine.python),
        ("packages", ", ".join(f"{name} {v}" for name, v in machine.packages.items())),
        ("platform", machine.platform),
        ("CPU", _joined(machine.cpu, plural(num_cores, "core") if num_cores else None)),
        ("threads", None if machine.threads is None else str(machine.threads)),
        ("device", machine.device),
        ("GPU", _joined(machine.gpu, measured(gpu_memory, "bytes") if gpu_memory else None)),
        ("driver", machine.driver),
        ("power limit", f"{machine.power_limit_w:g} W" if machine.power_limit_w else None),
        (
            "SM clock, default",
            f"{machine.sm_clock_default_mhz} MHz" if machine.sm_clock_default_mhz else None,
        ),
        ("probe", machine.probe),
        *((f"engine {record.engine}", engine_text(record)) for record in document.engines),
        *(
            (choice.subject, kernel_text(choice))
            for record in document.engines
            for choice in (*filter(None, [record.threads]), *record.kernels)
        ),
        *deployment_facts(document),
        *(
            (f"date in the chat template of {model.name}", model.template_clock)
            for model in document.models
            if model.template_clock and any(k.condition.target == model.name for k in run.keys)
        ),
        ("seed", str(settings.seed) if is_measured else None),
        ("sampling", settings.sampling.cuts if is_measured else None),
        (
            f"simulated acceptance of {decoder.acceptance_file}",
            f"sha256 {decoder.acceptance_sha256[:_SHOWN_DIGITS]}"
            if decoder.acceptance_sha256
            else None,
        ),
        *(
            (
                f"imported {record.file}",
                f"{record.tool}, sha256 {record.file_sha256[:_SHOWN_DIGITS]}",
            )
            for record in document.imported
        ),
        *(
            (f"workload {name}", f"sha256 {digest[:_SHOWN_DIGITS]}")
            for name, digest in run.workload_sha256.items()
        ),
        *(
            (f"request settings of {name}", f"sha256 {digest[:_SHOWN_DIGITS]}")
            for name, digest in run.settings_sha256.items()
        ),
    )
    return tuple(FactLine(name, value) for name, value in facts if value)


def engine_text(record: EngineRecord) -> str:
    """How an engine ran a target: its choices and its notes."""
    chosen = (
        record.target,
        f"{record.forward} forward" if record.forward else None,
        f"graph {record.graph}" if record.graph else None,
        f"attention {record.attention}" if record.attention else None,
        _captures(record),
        record.quantization,
    )
    return "; ".join((_joined(*chosen), *record.notes))


def kernel_text(choice: KernelChoice) -> str:
    """The chosen kernel, how much longer others take, and why the rest cannot run."""
    if choice.is_forced:
        return f"{choice.chosen} (as requested)"
    took = {kernel.name: kernel.seconds for kernel in choice.contenders if kernel.seconds}
    slower = (
        f"{name} takes {seconds / took[choice.chosen]:.1f} times as long"
        for name, seconds in took.items()
        if name != choice.chosen and choice.chosen in took
    )
    unsupported: dict[str, list[str]] = {}
    for kernel in choice.contenders:
        if kernel.refusal is not None:
            unsupported.setdefault(kernel.refusal, []).append(kernel.name)
    left_out = (f"not {' or '.join(names)}: {reason}" for reason, names in unsupported.items())
    return "; ".join((choice.chosen, *slower, *left_out))


def model_grid(document: Document) -> Table | None:
    """The models that were loaded; None if there are none."""
    if not document.models:
        return None
    models = [replace(model, revision=model.revision or "local") for model in document.models]
    columns = labeled(keys_of(ModelIdentity))
    return Table(title="Models", columns=columns, records=models, num_names=6, has_title=False)


def formulas(documents: tuple[Document, ...]) -> tuple[FactLine, ...]:
    """The formulas of the metrics that some cell has."""
    present = {name for d in documents for cell in d.cells for name in cell.metrics}
    return tuple(
        FactLine(metric.name, metric.formula, metric.unit)
        for metric in all_metrics().values()
        if metric.name in present
    )


def _captures(record: EngineRecord) -> str | None:
    if not record.num_captures or record.capture_s is None:
        return None
    return f"{plural(record.num_captures, 'graph')} captured in {measured(record.capture_s, 's')}"


def _joined(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))
