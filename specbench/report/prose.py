"""Sentences about a run as a whole, made from its records."""

from specbench.decide.recommend import by_question
from specbench.records import Environment
from specbench.report.document import Document
from specbench.report.numbers import lengths, listed, plural


def question(document: Document) -> str:
    """The title: what the run set out to answer."""
    targets = dict.fromkeys(plan.key.condition.target for plan in document.run.cells)
    return f"Does speculation pay off for {listed(list(targets))}?"


def setup(document: Document) -> str:
    """What was measured, on what: batch size and temperature belong to every headline."""
    keys = [plan.key for plan in document.run.cells]
    drafting = (key for key in keys if key.draft.k > 0)
    drafters = list(dict.fromkeys(key.draft.marked(key.pairing) for key in drafting))
    workloads = list(dict.fromkeys(key.condition.workload for key in keys))
    temperatures = [f"{t:g}" for t in dict.fromkeys(key.condition.temperature for key in keys)]
    rows = list(dict.fromkeys(key.condition.requests for key in keys))
    contexts = list(
        dict.fromkeys(
            f"{key.condition.context:,}" for key in keys if key.condition.context is not None
        )
    )
    machine = document.run.environment
    return "; ".join(
        (
            f"{listed(drafters)} on {listed(workloads)}" if drafters else listed(workloads),
            f"K = {lengths([key.draft.length for key in keys])}",
            f"temperature {listed(temperatures)}",
            listed(rows),
            *([f"{listed(contexts)} tokens of context"] if contexts else []),
            listed(
                list(
                    dict.fromkeys(
                        f"{key.condition.dtype}, {key.condition.engine} engine" for key in keys
                    )
                )
            ),
            machine.gpu or _processor(machine),
            _prompts(document),
            machine.created_at[:10],
        )
    )


def _processor(machine: Environment) -> str:
    if machine.threads is None:
        return machine.cpu or "hardware not named in the imported files"
    return f"{machine.cpu}, {plural(machine.threads, 'thread')}"


def which_pass(document: Document) -> str:
    """Why the answer and the tables may quote different numbers; empty for a K a question."""
    if all(len(group) < 2 for group in by_question(document.cells)):
        return ""
    return (
        "Tables and charts show the first pass over every K. A recommended K quotes a second "
        "measurement on fresh repeats, because picking the best of many is biased upward."
    )


def _prompts(document: Document) -> str:
    counts = [cell.num_prompts for cell in document.cells] or [0]
    few, many = min(counts), max(counts)
    return f"{plural(many, 'prompt') if few == many else f'{few} to {many} prompts'} per workload"
