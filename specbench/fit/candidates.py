"""The drafters of a target before any of them is loaded: found in folders, the local hub cache and
the shipped catalog, checked for compatibility, with the memory that they need.

Only configs and headers are read: nothing is unpickled, and no model code runs.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from specbench.errors import CompatibilityError, ModelError, UsageError
from specbench.files.config import Experts
from specbench.files.gguf import gguf_of
from specbench.files.model import ModelFiles, has_weights, open_model
from specbench.files.model_spec import GGUF_ADVICE, ModelSpec
from specbench.fit.compatibility import (
    UNREADABLE,
    Compatibility,
    FitFinding,
    check_drafter,
    check_target,
    finding,
    why_unreadable,
)
from specbench.fit.loaded_tensors import asking
from specbench.fit.memory_plan import (
    CountWeights,
    DeploymentSpec,
    MemoryPlan,
    plan_pair,
    plan_target,
)
from specbench.fit.weights import model_weights
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec, without_owner
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.methods import (
    METHODS,
    MODEL_METHOD,
    all_methods,
    find_method,
    gguf_method,
    kind_of,
    set_name,
    split_set,
)
from specbench.settings.words import nearest
from specbench.shipped import shipped

_MAX_DEPTH = 6  # levels below the search folder
_MAX_FOLDERS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedModel:
    """A model that cannot draft, for any target or for this one."""

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovery:
    """Drafters, with unique names, and models that cannot draft."""

    drafters: tuple[DrafterSpec, ...]
    left_out: tuple[SkippedModel, ...]


def discover(
    target: ModelFiles, folders: Sequence[Path] = (), *, in_hub_cache: bool = True
) -> Discovery:
    """Find draft models, heads and methods without weights; UsageError if a folder is missing."""
    drafters, left_out = [*draftless(target)], []
    specs = [spec for folder in folders for spec in _in_folder(folder)]
    if in_hub_cache:
        specs += _in_hub_cache()
    for spec in dict.fromkeys(specs):
        drafter = _drafter(target, spec)
        if isinstance(drafter, SkippedModel):
            left_out.append(drafter)
        elif drafter is not None:
            drafters.append(drafter)
    return Discovery(drafters=with_unique_names(drafters), left_out=tuple(left_out))


def draftless(target: ModelFiles | None) -> Iterator[DrafterSpec]:
    """The methods without weights, and MTP layers in the target's own files if they are given."""
    for method in all_methods():
        if method.model == "refused":
            yield DrafterSpec(name=method.name, method=method.name)
    for method in all_methods():
        if target and method.head and method.head.is_in_target(target):
            yield DrafterSpec(name=method.name, method=method.name)


def drafter_of(word: str) -> DrafterSpec:
    """The drafter of a --draft word: a method without weights, a folder, a hub id or demo:NAME.

    METHOD=MODEL names a method that the files do not imply, for a model with another tokenizer, and
    MODEL+LOOKUP a set of two. UsageError for any other word. Missing files are reported by the
    compatibility check.
    """
    first, lookup = split_set(word)
    if lookup:
        return with_lookup(drafter_of(first), lookup)
    method_name, _, source = word.partition("=")
    if source and method_name in METHODS:
        if not METHODS[method_name].retokenizes:
            raise UsageError(f"--draft {word}: write {source}; the method follows from its files")
        return DrafterSpec(
            name=f"{plain_name(source)}-{method_name}", method=method_name, model=model_spec(source)
        )
    if word in METHODS:
        if METHODS[word].model == "required":
            follows = "name their folder or hub id, and the method follows from the files"
            how = f"write {word}=MODEL" if METHODS[word].retokenizes else follows
            raise UsageError(f"--draft {word}: the method needs weights; {how}")
        return DrafterSpec(name=word, method=word)
    spec = model_spec(word)
    if spec.is_gguf:
        return DrafterSpec(name=plain_name(word), method=gguf_method(gguf_of(spec)), model=spec)
    try:
        method = kind_of(open_model(spec)).method or MODEL_METHOD
    except UNREADABLE:
        method = MODEL_METHOD
        hint = nearest(word, METHODS)
        if spec.folder is None and "/" not in word and hint:
            raise UsageError(
                f"--draft {word}: no such method{hint}, and no model of that name on this machine"
            ) from None
    return DrafterSpec(name=plain_name(spec.source), method=method, model=spec)


def with_lookup(drafter: DrafterSpec, lookup: str) -> DrafterSpec:
    """The drafter together with a lookup, which drafts if it finds something; UsageError."""
    method = find_method(set_name(drafter.method, lookup)).name
    return replace(drafter, name=f"{drafter.name}-{lookup}", method=method)


def with_unique_names(drafters: Iterable[DrafterSpec]) -> tuple[DrafterSpec, ...]:
    """Make names unique by appending numbers to repeated ones."""
    taken: set[str] = set()
    renamed = []
    for drafter in drafters:
        name, number = drafter.name, 2
        while name in taken:
            name, number = f"{drafter.name}-{number}", number + 1
        taken.add(name)
        renamed.append(replace(drafter, name=name))
    return tuple(renamed)


def _drafter(target: ModelFiles, spec: ModelSpec) -> DrafterSpec | SkippedModel | None:
    """The drafter in these files, or why it cannot draft; None for the target itself."""
    try:
        files = open_model(spec)
        if files.folder.resolve() == target.folder.resolve():
            return None
        kind = kind_of(files)
        if kind.method is None:
            return SkippedModel(source=spec.source, reason=kind.reason)
        if kind.is_model and (reason := _not_smaller(target, files)):
            return SkippedModel(source=spec.source, reason=reason)
    except UNREADABLE as error:
        return SkippedModel(source=spec.source, reason=why_unreadable(error))
    return DrafterSpec(name=plain_name(spec.source), method=kind.method, model=spec)


def _not_smaller(target: ModelFiles, draft: ModelFiles) -> str | None:
    weights = [model_weights(files, "float32") for files in (draft, target)]
    num_draft, num_target = (None if total is None else total.num_parameters for total in weights)
    if num_draft is None or num_target is None or num_draft < num_target:
        return None
    return f"not smaller than the target: {num_draft:,} parameters against {num_target:,}"


def _in_folder(root: Path) -> Iterator[ModelSpec]:
    """Folders with a config.json, sorted by name; links are not followed."""
    if not root.is_dir():
        raise UsageError(f"--search-dir {root}: folder not found")
    top = root.absolute()
    for number, (folder, subfolders, files) in enumerate(os.walk(top, onerror=lambda _: None)):
        path = Path(folder)
        depth = len(path.relative_to(top).parts)
        visible = sorted(n for n in subfolders if not n.startswith("."))
        subfolders[:] = visible if depth < _MAX_DEPTH else []
        if "config.json" in files:
            yield ModelSpec(source=str(path), folder=path)
        if number >= _MAX_FOLDERS:
            raise UsageError(
                f"--search-dir {root}: more than {_MAX_FOLDERS} folders; name a subfolder"
            )


def _in_hub_cache() -> list[ModelSpec]:
    """Every model repository in the cache, at its main revision, else at the newest one cached."""
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 - half a second
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    specs = []
    for repository in sorted(repositories, key=lambda repo: repo.repo_id):
        if repository.repo_type != "model" or not repository.revisions:
            continue
        newest = max(repository.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
        revision = None if "main" in newest.refs else newest.commit_hash
        specs.append(ModelSpec(source=repository.repo_id, revision=revision))
    return specs


def plain_name(source: str) -> str:
    """A drafter name for pairings.yaml, from the last part of a folder or hub id."""
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", without_owner(source.replace(":", "/")))
    return last.lstrip("._-") or "draft"


def catalog_drafters(source: str) -> tuple[DrafterSpec, ...]:
    """Drafters of the shipped catalog for a model, without duplicates; UsageError if none."""
    targets = load_pairings(shipped("pairings.yaml")).targets
    by_method: dict[object, DrafterSpec] = {}
    for target in targets:
        for drafter in target.drafters if target.model.source == source else ():
            draft = drafter.model.source if drafter.model else None
            configuration = drafter.method, draft, str(drafter.parameters), str(drafter.lossy)
            by_method.setdefault(configuration, drafter)
    if not by_method:
        known = [t.model.source for t in targets if ":" not in t.model.source]
        raise UsageError(
            f"--published has nothing for {source}{nearest(source, known)}; "
            "targets are listed by hub id, which `specbench list pairings --json` shows"
        )
    return tuple(by_method.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftCandidate:
    """A drafter's fit and memory plan; no plan if it is refused or its memory is unknown."""

    compatibility: Compatibility
    plan: MemoryPlan | None

    @property
    def drafter(self) -> DrafterSpec:
        return self.compatibility.drafter

    @property
    def is_refused(self) -> bool:
        return self.compatibility.level == "refused"

    @property
    def has_weights(self) -> bool:
        """Whether there is more than a config."""
        return not any(item.lacks_weights for item in self.compatibility.findings)

    @property
    def fits(self) -> bool:
        """Whether the drafter is not refused, and not known to be too large."""
        return not self.is_refused and (self.plan is None or self.plan.fits is not False)

    def noting(self, *findings: FitFinding) -> "DraftCandidate":
        """The candidate with these findings added."""
        checked = self.compatibility
        findings = (*checked.findings, *findings)
        return replace(self, compatibility=replace(checked, findings=findings))


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateList:
    """The candidates, in the order in which they were named or found."""

    target: Target
    findings: tuple[FitFinding, ...]
    target_plan: MemoryPlan | None
    candidates: tuple[DraftCandidate, ...]
    experts: Experts | None = None  # of the target
    left_out: tuple[SkippedModel, ...] = ()

    @property
    def fitting(self) -> tuple[DraftCandidate, ...]:
        return tuple(candidate for candidate in self.candidates if candidate.fits)

    @property
    def measurable(self) -> tuple[DraftCandidate, ...]:
        """Candidates that fit and can be loaded; none if the target has no weights."""
        if any(item.lacks_weights for item in self.findings):
            return ()
        return tuple(candidate for candidate in self.fitting if candidate.has_weights)

    def lost_context(self, candidate: DraftCandidate) -> int | None:
        """Tokens of context that each request loses because of this drafter; None if unknown."""
        plan, plain = candidate.plan, self.target_plan
        if plan is None or plain is None or None in (plan.max_context, plain.max_context):
            return None
        return (plain.max_context or 0) - (plan.max_context or 0)


def prepare(
    target: Target,
    files: ModelFiles,
    drafters: Sequence[DrafterSpec],
    setup: DeploymentSpec,
    *,
    left_out: Sequence[SkippedModel] = (),
    count: CountWeights | None = None,
    ignored: Collection[str] = (),
) -> CandidateList:
    """Check and plan every drafter; `count` counts weights that no rule covers. Findings on fields
    in `ignored` are dropped. CompatibilityError if the target is refused."""
    with asking():
        findings = check_target(files, ignored)
        if refused := [f.text for f in findings if f.level == "refused"]:
            raise CompatibilityError(_no_target(target, refused))
        checked = [check_drafter(files, drafter, ignored) for drafter in drafters]
    return CandidateList(
        target=target,
        findings=findings,
        target_plan=plan_target(files, setup, count),
        candidates=tuple(_candidate(files, drafter, setup, count) for drafter in checked),
        experts=files.experts,
        left_out=tuple(left_out),
    )


@asking()
def unsupported_reasons(
    pairings: Sequence[Pairing], *, drafts: bool = True, ignored: Collection[str] = ()
) -> dict[str, str]:
    """Reasons why loading would refuse a pairing, by its name; fields in `ignored` do not count.

    Drafters are checked only if `drafts` is true. A pairing with a hub model that is not completely
    in the cache passes, unless the other model is a GGUF file.
    """

    def reasons(findings: Iterable[FitFinding]) -> list[str]:
        return [f.text for f in findings if f.keeps_from_loading]

    @cache
    def of_target(spec: ModelSpec) -> tuple[ModelFiles, list[str]]:
        files = open_model(spec)
        return files, reasons(check_target(files, ignored))

    refused_pairings: dict[str, str] = {}
    for pairing in pairings:
        target, drafter = pairing.target, pairing.drafter
        if not all(spec.folder is not None or has_weights(spec) for spec in pairing.models):
            gguf = next((spec.source for spec in pairing.models if spec.is_gguf), None)
            if drafts and gguf:  # before the other model is downloaded
                refused_pairings[pairing.name] = f"{gguf} {GGUF_ADVICE}"
            continue
        files, refused = of_target(target.model)
        if refused:
            refused_pairings[pairing.name] = _no_target(target, refused)
        elif drafts and (refused := reasons(check_drafter(files, drafter, ignored).findings)):
            why = "; ".join(refused)
            refused_pairings[pairing.name] = f"{drafter.name} cannot draft for {target.name}: {why}"
    return refused_pairings


def _no_target(target: Target, refused: Sequence[str]) -> str:
    return f"{target.name} cannot be a target: {'; '.join(refused)}"


def _candidate(
    files: ModelFiles, checked: Compatibility, setup: DeploymentSpec, count: CountWeights | None
) -> DraftCandidate:
    candidate = DraftCandidate(compatibility=checked, plan=None)
    if candidate.is_refused:
        return candidate
    try:
        return replace(candidate, plan=plan_pair(files, checked.drafter, setup, count))
    except (ModelError, TypeError, ValueError, LookupError) as error:
        return candidate.noting(finding("memory", "refused", reason=why_unreadable(error)))
