"""The records of pairings.yaml: a target, its drafters, and their pairings."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path

from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.model_spec import gguf_complaint
from specbench.methods import Setting
from specbench.records import NO_DRAFTER, LossyRule
from specbench.settings.words import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The page that published the entry, and its statements; None: not stated."""

    source: str
    checked: date
    license: str | None = None
    figure: str | None = None  # a figure that the authors report, in their terms


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterSpec:
    """A drafter of a target: its method, model and parameters."""

    name: str
    method: str
    model: ModelSpec | None = None
    parameters: Mapping[str, Setting] = field(default_factory=dict)
    num_speculative_tokens: int | None = None  # None: the default of a run
    lossy: LossyRule | None = None  # None: the text is the target's own
    p_min: float | None = None  # a chain ends where the draft has no likelier token; None: at K
    note: str = ""
    origin: Origin | None = None  # None: an entry of the user

    def at_p_min(self, p_min: float) -> "DrafterSpec":
        """The drafter that stops at this probability; 0: itself."""
        return replace(self, name=f"{self.name}-p{p_min:g}", p_min=p_min) if p_min else self

    @property
    def whole_name(self) -> str:
        """The name of the drafter that `at_p_min` was applied to."""
        return self.name.removesuffix(f"-p{self.p_min:g}") if self.p_min else self.name


TARGET_ONLY = DrafterSpec(name=NO_DRAFTER, method=NO_DRAFTER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The model whose distribution is preserved, and its drafters in the file's order."""

    name: str
    model: ModelSpec
    drafters: tuple[DrafterSpec, ...]
    workloads: Path | None = None  # a folder of prompts for this target
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """A target with one of its drafters."""

    target: Target
    drafter: DrafterSpec

    @property
    def name(self) -> str:
        return f"{self.target.name}/{self.drafter.name}"

    @property
    def weights_gib(self) -> float | None:
        """Memory of both models' weights; None if the file does not state it."""
        is_known = all(model.weights_gib is not None for model in self.models)
        return self.least_gib if is_known else None

    @property
    def least_gib(self) -> float:
        """The part of the memory that the file states; 0 if none."""
        return sum(model.weights_gib or 0.0 for model in self.models)

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """The models of the target and, if it has one, of the drafter."""
        drafter = self.drafter.model
        return (self.target.model, drafter) if drafter else (self.target.model,)

    @property
    def is_gguf(self) -> bool:
        """Whether one of the models is a GGUF file, which only llama.cpp reads."""
        return any(model.is_gguf for model in self.models)

    @property
    def sha256(self) -> str:
        """Hash of the entries that results follow from: models, method, parameters, lossy rule."""
        draft = self.drafter.model
        facts: dict[str, object] = {
            "models": [_weights(self.target.model), _weights(draft) if draft else None],
            "method": self.drafter.method,
            "parameters": dict(self.drafter.parameters),
            "lossy": str(self.drafter.lossy) if self.drafter.lossy else None,
        }
        if self.drafter.p_min is not None:
            facts["p_min"] = self.drafter.p_min
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairings:
    """The pairings of a pairings.yaml, and the shipped targets with other names."""

    path: Path
    targets: tuple[Target, ...]
    default: tuple[str, ...]  # names as `select` takes them
    shipped: tuple[Target, ...] = ()

    @property
    def all(self) -> tuple[Pairing, ...]:
        """The pairings of the file itself."""
        return _pairings(self.targets)

    @property
    def known(self) -> tuple[Pairing, ...]:
        """The pairings of the file, then the shipped ones."""
        return _pairings((*self.targets, *self.shipped))

    def select(self, names: Sequence[str] = (), methods: Sequence[str] = ()) -> tuple[Pairing, ...]:
        """The pairings named `target/drafter` or `target` (all its lossless drafters), each once.

        A lossy drafter is selected only by its full name. No names mean the file's default, no
        methods every method. UsageError for an unknown name, and for methods without a pairing.
        """
        chosen: dict[str, Pairing] = {}
        for name in names or self.default:
            named = {p.name: p for p in self.known if _is_named(p, name)}
            if not named:
                if complaint := gguf_complaint(name):
                    raise UsageError(complaint)
                known = [t.name for t in (*self.targets, *self.shipped)]
                known += [p.name for p in self.known]
                near = nearest(name, known)
                raise UsageError(
                    f"no pairing {name!r} in {self.path}{near}; `specbench list pairings` shows "
                    f"them all{'' if near else _as_a_model(name)}"
                )
            chosen |= named
        kept = tuple(p for p in chosen.values() if not methods or p.drafter.method in methods)
        if not kept:
            have = ", ".join(dict.fromkeys(p.drafter.method for p in chosen.values()))
            raise UsageError(
                f"--method {', '.join(methods)}: no pairing uses this method: {', '.join(chosen)} "
                f"have {have}"
            )
        return kept

    def target(self, name: str) -> Target:
        """The target of that name; UsageError if there is none."""
        every = (*self.targets, *self.shipped)
        for target in every:
            if target.name == name:
                return target
        raise UsageError(
            f"no target {name!r} in {self.path}{nearest(name, [t.name for t in every])}; "
            "a hub id is owner/name, the folder of a model has a config.json"
        )


def _pairings(targets: Sequence[Target]) -> tuple[Pairing, ...]:
    return tuple(Pairing(target=t, drafter=d) for t in targets for d in t.drafters)


def _as_a_model(word: str) -> str:
    """Advice for a word that looks like a model instead of a pairing."""
    if not set(word) & {"/", ":"} and not Path(word).is_dir():
        return ""
    return f"; to measure a model without a file: specbench run --target {word} --draft DRAFT"


def _weights(model: ModelSpec) -> dict[str, object]:
    """A model's entry without its location and stated sizes, which may differ for equal weights."""
    stated = ("folder", "weights_gib", "vocab_size")
    return {key: value for key, value in asdict(model).items() if key not in stated}


def _is_named(pairing: Pairing, name: str) -> bool:
    is_lossless = pairing.drafter.lossy is None
    return name == pairing.name or (name == pairing.target.name and is_lossless)
