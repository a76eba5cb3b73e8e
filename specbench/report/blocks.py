"""A run as a list of blocks, made once: the terminal, Markdown and HTML only render them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple

from specbench.decide.recommend import lower_bound
from specbench.report.answers import (
    SectionAnswer,
    answer,
    conclusion,
    context_lines,
    reasons_grid,
    shared_k_lines,
    why_grid,
)
from specbench.report.comparisons import (
    adaptive_reasons,
    answers_grid,
    comparison_grids,
    differences_grid,
    variant_reasons,
)
from specbench.report.document import Document
from specbench.report.forecasts import forecast_legend, forecast_lines
from specbench.report.grids import (
    metric_grids,
    position_grid,
    result_grid,
)
from specbench.report.memory import memory_grid, memory_legend
from specbench.report.notes import notes, notes_title
from specbench.report.provenance import (
    FactLine,
    formulas,
    model_grid,
    provenance,
    question,
    setup,
    which_pass,
)
from specbench.report.sections import Section, main_rows, sections
from specbench.report.sessions import acceptance_rules, sessions_grid
from specbench.report.steps import STEPS_LEGEND, ShownGeneration
from specbench.words.answers import joined, text
from specbench.words.numbers import plural
from specbench.words.table import Legend, Table, legend_of


class Lines(NamedTuple):
    """A list of sentences."""

    lines: Sequence[str]
    is_answer: bool = False  # a terminal shows the answer last


class Paragraph(NamedTuple):
    """A text about the block before it, or about the whole part."""

    text: str
    brief: str = ""  # for a terminal, which shows fewer columns; "": the same


class Facts(NamedTuple):
    """A list of names with their values."""

    facts: Sequence[FactLine]


class Charts(NamedTuple):
    """The charts of one kind, which only a page shows."""

    kind: Literal["costs", "evidence", "answers", "history"]


class ReportPart(NamedTuple):
    """Blocks below a heading; parts within it have smaller headings. "": no heading."""

    title: str
    blocks: Sequence["Block"]
    is_folded: bool = False  # a page shows only its title until it is opened

    @property
    def answers(self) -> Sequence[str]:
        """The sentences that answer the question of the part."""
        answers = (b.lines for b in self.blocks if isinstance(b, Lines) and b.is_answer)
        return tuple(chain.from_iterable(answers))


Block = Lines | Paragraph | Legend | Facts | Table | Charts | ShownGeneration | ReportPart


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """The content of a report about one run, in reading order."""

    run_id: str
    question: str
    setup: str
    answers: Sequence[SectionAnswer]
    conclusion: str
    shared: Lines  # variants, one K for all workloads, K by context, and the forecasts
    which_pass: Paragraph | None
    why: ReportPart
    costs: ReportPart
    notes: ReportPart
    results: ReportPart
    summary: ReportPart  # the rows of `results` that the answers are about
    generations: ReportPart
    comparisons: ReportPart
    sessions: ReportPart
    positions: ReportPart
    provenance: ReportPart
    metrics: ReportPart

    @property
    def evidence(self) -> ReportPart:
        """The measurements that the answers are based on."""
        parts = [self.results, self.generations, self.comparisons, self.sessions]
        parts += [self.positions, self.provenance, self.metrics]
        return ReportPart("Evidence", [part._replace(is_folded=True) for part in parts])

    @property
    def parts(self) -> tuple[ReportPart, ...]:
        """The parts below the answers; a part without a block is not shown."""
        return (self.notes, self.why, self.costs, self.evidence)


def run_report(document: Document) -> RunReport:
    every = sections(document)
    answers = tuple(map(answer, every))
    run_notes = notes(document)
    memory = memory_grid(document)
    sessions_table = sessions_grid(document)
    generations = shown_generations(document)
    texts = which_pass(document)
    why = why_grid(answers)
    return RunReport(
        run_id=document.run.run_id,
        question=question(document),
        setup=setup(document),
        answers=answers,
        shared=Lines(
            (
                *(text(reason) + document.mark for reason in variant_reasons(document)),
                *(text(reason) + document.mark for reason in adaptive_reasons(document)),
                *shared_k_lines(document),
                *context_lines(document),
                *forecast_lines(document),
            )
        ),
        which_pass=Paragraph(*texts) if texts else None,
        conclusion=joined(conclusion(answers)) + document.mark,
        why=ReportPart(
            "Why",
            [why, reasons_grid(answers)] if why else [],
        ),
        costs=ReportPart(
            "What it costs",
            [
                Charts("costs"),
                *(
                    [
                        ReportPart(
                            "Memory",
                            [
                                memory,
                                Paragraph(memory_legend(document)),
                            ],
                        )
                    ]
                    if memory
                    else []
                ),
            ],
            is_folded=True,
        ),
        notes=ReportPart(
            notes_title(run_notes),
            [ReportPart(heading, [Lines(lines)]) for heading, lines in run_notes.items()],
            is_folded=True,
        ),
        results=ReportPart("Results", [*_results(every), Charts("evidence")]),
        summary=ReportPart("Results", [*_summary(every)]),
        generations=ReportPart(
            "Round by round", [Paragraph(STEPS_LEGEND), *generations] if generations else []
        ),
        comparisons=ReportPart(
            "Comparisons",
            [*comparison_grids(document), *filter(None, [forecast_legend(document)])],
        ),
        sessions=ReportPart(
            "Sessions",
            [
                sessions_table,
                legend_of([sessions_table]),
                *(Paragraph(f"{name}: {rule}.") for name, rule in acceptance_rules(document)),
            ]
            if sessions_table
            else [],
        ),
        positions=ReportPart(
            "Acceptance per position, in numbers",
            [g for g in map(position_grid, every) if g],
        ),
        provenance=ReportPart(
            "Provenance",
            [Facts(provenance(document)), *filter(None, [model_grid(document)])],
        ),
        metrics=ReportPart(
            "All metrics",
            [grid for section in every for grid in metric_grids(section)],
        ),
    )


def side_by_side_part(documents: Sequence[Document]) -> ReportPart:
    """Several runs compared; no blocks for a single run."""
    return ReportPart(
        f"{len(documents)} runs side by side",
        [answers_grid(documents), differences_grid(documents)] if len(documents) > 1 else [],
    )


def formulas_part(documents: Sequence[Document]) -> ReportPart:
    """The formula of every metric that some cell of the runs has."""
    return ReportPart("Formulas", [Facts(formulas(tuple(documents)))], is_folded=True)


def _results(every: Sequence[Section]) -> Iterator[Block]:
    tables = [result_grid(section) for section in every if section.measured]
    yield from tables
    if tables:
        yield legend_of(tables)


def _summary(every: Sequence[Section]) -> Iterator[Block]:
    short = [main_rows(section) for section in every]
    yield from _results(short)
    num_rows = sum(len(section.cells) for section in every)
    left_out = num_rows - sum(len(section.cells) for section in short)
    rows = f"{plural(left_out, 'more row')} and what " if left_out else "What "
    if num_rows:
        yield Paragraph(f"{rows}the columns mean: with --verbose, or in the report.")


def shown_generations(document: Document) -> tuple[ShownGeneration, ...]:
    """A generation of each section's answer, if the text of a request is stored."""
    shown = []
    for section in sections(document):
        quoted = section.best or max(section.decisions, key=lower_bound, default=None)
        generation = document.generations.get(quoted.leader) if quoted else None
        if generation is not None:
            shown.append(replace(generation, title=f"{section.title}: {generation.title}"))
    return tuple(shown)
