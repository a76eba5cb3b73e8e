"""A pairing given by --target and --draft on the command line, without a pairings file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.options import RUNS_DIR
from specbench.errors import UsageError
from specbench.settings.words import nearest, parse_p_mins

if TYPE_CHECKING:
    from specbench.inputs.pairing import DrafterSpec, Pairing, Pairings, Target
    from specbench.records import RunRecord
    from specbench.settings import RunSettings

_PANEL = "Your own pair, without a pairings file"


@dataclass(frozen=True, kw_only=True)
class AdhocPairing:
    """The options --target and --draft, and the pairings that they name."""

    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            rich_help_panel=_PANEL,
            help="Measure this model: a folder, hub id, demo:NAME, GGUF file (llama_cpp), or a "
            "target in pairings.yaml.",
            show_default=False,
        ),
    ] = None
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="DRAFT",
            rich_help_panel=_PANEL,
            help="With --target: draft model or head (folder, hub id, demo:NAME, FILE.gguf), "
            "METHOD=MODEL, or a method such as ngram. Repeatable.",
            show_default="those of pairings.yaml, else methods without a draft model",
        ),
    ] = None

    p_min: Annotated[
        str | None,
        typer.Option(
            "--draft-p-min",
            metavar="P",
            rich_help_panel=_PANEL,
            help="A chain of drafts ends where the draft has no token of this probability: 0.6, or "
            "0,0.6,0.8 to measure each.",
            show_default="the pairing's, or 0: K tokens",
        ),
    ] = None

    def pairings(
        self, settings: "RunSettings", methods: Sequence[str], runs_dir: Path = RUNS_DIR
    ) -> "tuple[Pairing, ...]":
        """The pairings named here, else those that the settings name; UsageError for a mix of
        both."""
        return at_p_mins(self._whole(settings, methods, runs_dir), self.p_min)

    def _whole(
        self, settings: "RunSettings", methods: Sequence[str], runs_dir: Path
    ) -> "tuple[Pairing, ...]":
        """The pairings without those of --draft-p-min."""
        from specbench.files.model import open_model
        from specbench.fit.candidates import draftless
        from specbench.inputs.pairing import Pairings

        named = settings.workload.pairings
        if self.target is None:
            if self.drafts:
                raise UsageError(f"--draft {self.drafts[0]!r} needs --target MODEL")
            return known_pairings(named, settings.pairings_file, runs_dir).select(named, methods)
        if named:
            drafts = " ".join(f"--draft {word}" for word in (*(self.drafts or ()), *named))
            raise UsageError(
                f"--target {self.target}: leave out {', '.join(named)}, or type {drafts}; "
                "pairings of the file are measured without --target"
            )
        target, known = find_target(self.target, settings.pairings_file, runs_dir)
        drafters = named_drafters(self.drafts or (), known)
        if self.drafts and not drafters:
            raise UsageError("--draft is empty; expected a folder, hub id, demo:NAME or method")
        if not drafters:
            files = None if target.model.is_gguf else open_model(target.model)
            drafters = known or tuple(draftless(files))
        whole = replace(target, drafters=drafters)
        names = (whole.name,) if any(d.lossy is None for d in drafters) else ()
        pairings = Pairings(path=Path("--target"), targets=(whole,), default=(whole.name,))
        return pairings.select(names or [pairing.name for pairing in pairings.all], methods)


def at_p_mins(pairings: "Sequence[Pairing]", p_min: str | None) -> "tuple[Pairing, ...]":
    """The pairings with each of these least probabilities; those whose drafts have none are not
    changed. UsageError if all are those, or for a wrong probability."""
    from specbench.methods import find_method

    if p_min is None:
        return tuple(pairings)
    made: list[Pairing] = []
    for pairing in pairings:
        drafter = pairing.drafter
        takes_it = drafter.p_min is None and find_method(drafter.method).takes_p_min(
            drafter.parameters, is_gguf=pairing.is_gguf
        )
        p_mins = parse_p_mins(p_min) if takes_it else (0.0,)
        made += [replace(pairing, drafter=drafter.at_p_min(p)) for p in p_mins]
    if not any(pairing.drafter.p_min for pairing in made) and any(parse_p_mins(p_min)):
        names = ", ".join(pairing.name for pairing in pairings)
        raise UsageError(
            f"--draft-p-min {p_min}: {names} draft no chain of tokens with probabilities; name a "
            "draft model or a head, or leave it out"
        )
    return tuple(made)


def known_pairings(
    names: Sequence[str], file: Path | None, runs_dir: Path = RUNS_DIR, run: str | None = None
) -> "Pairings":
    """The pairings of the file and the shipped ones; for names that are in neither, those of
    `run`, or else of the latest run in `runs_dir` that has them. ConfigError, UsageError."""
    from specbench.inputs.config import load_pairings
    from specbench.runs.reader import find_folder, read_run, read_runs

    pairings = load_pairings(file)
    known = {name for p in pairings.known for name in (p.name, p.target.name)}
    if unknown := [name for name in names if name not in known]:
        runs = read_runs(runs_dir) if run is None else [read_run(find_folder(run, runs_dir))]
        of_runs = [_target_of_run(name, runs, runs_dir) for name in unknown]
        pairings = replace(pairings, shipped=(*pairings.shipped, *filter(None, of_runs)))
    return pairings


def _target_of_run(name: str, runs: "Sequence[RunRecord]", runs_dir: Path) -> "Target | None":
    """The target of this name in the first run that has it, with the drafters of that name.

    None if no run has it; UsageError if its models no longer exist.
    """
    from specbench.inputs.stored_targets import pairings_of

    names = set()
    for run in runs:
        for target in pairings_of(run).targets:
            of_target = {f"{target.name}/{d.name}": d for d in target.drafters}
            names |= {target.name, *of_target}
            drafters = [d for known, d in of_target.items() if name in (target.name, known)]
            if not drafters:
                continue
            for spec in (target.model, *(d.model for d in drafters if d.model)):
                if spec.folder is not None and not spec.folder.exists():
                    raise UsageError(
                        f"{name!r} is of run {run.run_id}, whose model {spec.folder} does not "
                        "exist. Restore it, or name the models: --target MODEL --draft DRAFT"
                    )
            return replace(target, drafters=tuple(drafters))
    if near := nearest(name, names):
        raise UsageError(
            f"no pairing {name!r} in the pairings file or the runs in {runs_dir}{near}"
        )
    return None


def find_target(
    word: str, file: Path | None, runs_dir: Path = RUNS_DIR
) -> "tuple[Target, tuple[DrafterSpec, ...]]":
    """The target of a word: a model, or a name in the pairings file, also with its drafters."""
    from specbench.fit.candidates import plain_name
    from specbench.inputs.model_spec import gguf_complaint, model_spec
    from specbench.inputs.pairing import Target
    from specbench.shipped import DEMO_WORKLOADS

    if ":" in word or "/" in word or gguf_complaint(word) or (Path(word) / "config.json").is_file():
        spec = model_spec(word)
        workloads = DEMO_WORKLOADS if word.startswith("demo:") else None
        return Target(name=plain_name(word), model=spec, drafters=(), workloads=workloads), ()
    target = known_pairings([word], file, runs_dir).target(word)
    return target, target.drafters


def named_drafters(
    words: Sequence[str], known: "Sequence[DrafterSpec]"
) -> "tuple[DrafterSpec, ...]":
    """The drafters of these words, each a name in the file, a model or a method; UsageError."""
    from specbench.fit.candidates import drafter_of, with_unique_names

    by_name = {drafter.name: drafter for drafter in known}
    return with_unique_names(by_name.get(word) or drafter_of(word) for word in split(words))


def split(words: Sequence[str]) -> list[str]:
    """The words of --draft, which may be separated by commas."""
    return [part for word in words for part in word.split(",") if part]


def yaml_snippet(pairings: "Sequence[Pairing]") -> str:
    """The YAML of these pairings for a pairings.yaml in the working folder."""
    from specbench.fit.pairings_file import pairings_text

    target = pairings[0].target
    text = pairings_text(target, [pairing.drafter for pairing in pairings], Path())
    return f"To keep this pair, write to pairings.yaml:\n\n{text}"
