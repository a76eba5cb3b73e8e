"""Everything that can be said of a target and its drafters before one of them is loaded."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from specbench.errors import CompatibilityError, ModelError
from specbench.files.config import Experts
from specbench.files.model import ModelFiles, has_weights, open_model
from specbench.files.model_spec import GGUF_ADVICE, ModelSpec
from specbench.fit.compatibility import (
    Compatibility,
    FitFinding,
    check_drafter,
    check_target,
    finding,
)
from specbench.fit.discover import SkippedModel
from specbench.fit.memory_plan import (
    CountWeights,
    DeploymentSpec,
    MemoryPlan,
    plan_pair,
    plan_target,
)
from specbench.inputs.pairing import DrafterSpec, Pairing, Target


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftCandidate:
    """A drafter, how it fits, and what it takes; no plan if it is refused or not countable."""

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
        """False if there is only a config."""
        return not any(item.lacks_weights for item in self.compatibility.findings)

    @property
    def fits(self) -> bool:
        """Not refused, and not known to be too large."""
        return not self.is_refused and (self.plan is None or self.plan.fits is not False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateList:
    """The candidates in the order that they were named or found."""

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
        """Tokens of context a row loses to this drafter; None if that is unknown."""
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
    """Check and plan every drafter; `count` counts weights that no rule covers, fields in `ignored`
    refuse nothing. CompatibilityError for the target."""
    findings = check_target(files, ignored)
    if refused := [f.text for f in findings if f.level == "refused"]:
        raise CompatibilityError(_no_target(target, refused))
    return CandidateList(
        target=target,
        findings=findings,
        target_plan=plan_target(files, setup, count),
        candidates=tuple(
            _candidate(files, check_drafter(files, drafter, ignored), setup, count)
            for drafter in drafters
        ),
        experts=files.experts,
        left_out=tuple(left_out),
    )


def unsupported_reasons(
    pairings: Sequence[Pairing], *, drafts: bool = True, ignored: Collection[str] = ()
) -> dict[str, str]:
    """Reasons why loading would refuse a pairing, by its name, without `ignored` fields.

    Drafters are checked only with `drafts`. Hub models that are not completely in the cache pass,
    unless the other model is a GGUF file.
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
    drafter = checked.drafter
    if checked.level == "refused":
        return DraftCandidate(compatibility=checked, plan=None)
    try:
        plan = plan_pair(files, drafter, setup, count)
    except (ModelError, TypeError, ValueError, LookupError) as error:
        reason = str(error) if isinstance(error, ModelError) else repr(error)
        memory = finding("memory", "refused", reason=reason)
        refused = Compatibility(drafter=drafter, findings=(*checked.findings, memory))
        return DraftCandidate(compatibility=refused, plan=None)
    return DraftCandidate(compatibility=checked, plan=plan)
