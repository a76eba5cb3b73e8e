"""Deployments, which engines export as commands, and code that the exports share.

A deployment consists of a pairing and a K for each batch size. The file of an engine with an export
is an `Exporter`: engines/served/NAME.py, and engines/transformers.py.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, TypeVar, cast

from specbench.errors import ModelError, UsageError
from specbench.files.config import is_hybrid
from specbench.files.model import num_rows, open_model
from specbench.files.model_spec import GGUF_ADVICE, ModelSpec
from specbench.inputs.pairing import Pairing
from specbench.methods import Method, Setting, find_method
from specbench.records import SIMULATED, Kind, Reason, acceptance_rule
from specbench.settings import EXPORTED, SERVED, TRANSFORMERS
from specbench.settings.words import one_of
from specbench.stats.rounds import Acceptance, acceptance_rates

LOOKUP = "ngram, which copies from the text"
SMALL_MODEL = "draft_model with a small model of the target's family"
PAD = "pad the smaller embedding (and output) in a copy of its model, and its vocab_size"

# The note on recurrent state after a rejected draft, for engines whose file has no other one.
ROLLBACK = "no source that was read says whether this engine rolls it back with this method"

_READ_GGUF = ("ik_llama_cpp", "llama_cpp")
_STOPPING = (*_READ_GGUF, TRANSFORMERS)  # at p_min

Name = TypeVar("Name")
Release = tuple[int, ...]


class Tier(NamedTuple):
    """K for up to `num_rows` concurrent requests; None: for any number."""

    num_rows: int | None
    num_speculative_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A pairing with K for each batch size; K = 0: do not speculate."""

    pairing: Pairing
    tiers: tuple[Tier, ...]  # by rows, rising; never empty
    temperature: float = 0.0
    dtype: str | None = None  # of the measurement; None: the checkpoint's
    context: int | None = None  # tokens of the prompts that K is for, if others need another K
    basis: tuple[Reason, ...] = ()  # the origin of K
    conditions: tuple[Reason, ...] = ()  # the run, and what was measured
    limits: tuple[Reason, ...] = ()  # what the basis leaves open, and how the engine differs
    measured_with: str | None = None  # the engine; None: K was set by hand
    arguments: tuple[str, ...] = ()  # arguments of that engine's fastest variant
    acceptance: Acceptance | None = None  # to simulate, for benchmarks
    undecided: tuple[int, ...] = ()  # concurrencies with K = 0 only for lack of evidence

    @property
    def k(self) -> int:
        """The deepest K of all tiers."""
        return max(tier.num_speculative_tokens for tier in self.tiers)

    @property
    def is_undecided(self) -> bool:
        """Whether no K is shown to help, and for lack of evidence."""
        return self.k == 0 and bool(self.undecided)

    @property
    def served_dtype(self) -> str | None:
        """A dtype that serving engines know; None: the checkpoint's."""
        return None if self.dtype == "float64" else self.dtype

    @property
    def is_tiered(self) -> bool:
        return len({tier.num_speculative_tokens for tier in self.tiers}) > 1

    @property
    def ranges(self) -> list[tuple[int, int | None, int]]:
        """The first and last batch size of each tier, with its K; a last one of None: any size."""
        firsts = [1, *(num_rows + 1 for num_rows, _ in self.tiers if num_rows is not None)]
        return [(first, *tier) for first, tier in zip(firsts, self.tiers, strict=False)]

    @property
    def method(self) -> str:
        return self.pairing.drafter.method

    @property
    def p_min(self) -> float:
        """The probability below which drafting stops; 0: every round drafts K tokens."""
        return self.pairing.drafter.p_min or 0.0

    @property
    def row(self) -> Method:
        return find_method(self.method)

    @property
    def target(self) -> ModelSpec:
        return self.pairing.target.model

    @property
    def drafter(self) -> ModelSpec | None:
        """The drafter's model; None for a method without one."""
        return self.pairing.drafter.model

    def setting(self, name: str) -> Setting:
        """A parameter of the drafter; its default if pairings.yaml does not set it."""
        setting: Setting = self.row.settings(self.pairing.drafter.parameters)[name]
        return setting

    def whole(self, name: str) -> int:
        """A parameter that is a whole number."""
        value = self.setting(name)
        assert isinstance(value, int)
        return value

    @property
    def tree(self) -> str | None:
        """The kind of token tree that is drafted; None: a chain, or no draft tokens."""
        return self.row.tree(self.row.settings(self.pairing.drafter.parameters))

    @property
    def draws_drafts(self) -> bool:
        """Whether drafts are drawn from a distribution q, above temperature 0."""
        return self.row.draws_with(self.pairing.drafter.parameters)

    @property
    def acceptance_rule(self) -> str:
        """The acceptance rule of the measurement, or that of the simulation."""
        if self.simulated is not None:
            return SIMULATED
        rule = self.pairing.drafter.lossy
        return acceptance_rule(rule, self.temperature, draws=self.draws_drafts)

    @property
    def simulated(self) -> tuple[float, ...] | None:
        """Joint rates to simulate at the deepest K; None: drafts are verified. UsageError for a K
        without rates."""
        return acceptance_rates(self.acceptance, self.k) if self.acceptance and self.k else None

    @property
    def head(self) -> ModelSpec:
        """The drafter's model; only for methods that need one."""
        assert self.drafter is not None
        return self.drafter

    @property
    def vocab_sizes(self) -> tuple[int, int] | None:
        """Rows of the embeddings of target and draft model, padding included; None for other
        methods and if unknown."""
        if not self.row.shares_tokens:
            return None
        target, draft = num_rows(self.target), num_rows(self.head)
        return (target, draft) if target and draft else None

    @property
    def unequal_vocab_sizes(self) -> str:
        """Both sizes in words; empty if they are equal or not known."""
        target, draft = self.vocab_sizes or (0, 0)
        if target == draft:
            return ""
        names = self.pairing.target.name, self.pairing.drafter.name
        return f"vocab_size {target:,} of {names[0]}, {draft:,} of {names[1]}"

    @property
    def different_ids(self) -> list[int]:
        """Ids of different tokens, or of a token in only one tokenizer; empty if not readable."""
        if self.vocab_sizes is None:
            return []
        with suppress(ModelError):
            target, draft = (open_model(spec).vocabulary for spec in (self.target, self.head))
            if target and draft:
                return sorted(
                    {i for _, i in target.ids_by_token.items() ^ draft.ids_by_token.items()}
                )
        return []

    def noting(self, notes: Sequence[str]) -> "Deployment":
        """The deployment with these notes added to its `limits`."""
        return replace(self, limits=(*self.limits, *(Kind.NOTE(text=note) for note in notes)))

    def named(
        self,
        engine: str,
        names: Mapping[str, Name],
        nearest: Mapping[str, str] | None = None,
        head: str = SMALL_MODEL,
    ) -> Name:
        """The engine's name for the method, from its `names`.

        UsageError if the engine has no such method. It names the `nearest` one, or by default
        `head` for a head, and for other methods one that every engine has.
        """
        if self.method in names:
            return names[self.method]
        row, usual = self.row, LOOKUP
        if len(row.parts) > 1:
            usual = f"{row.parts[0]} without a lookup"
        elif row.is_head:
            usual = head
        elif row.model != "refused" or row.num_target_layers:
            usual = SMALL_MODEL
        self.refuse(engine, (nearest or {}).get(self.method, usual))

    def refuse(self, engine: str, nearest: str) -> NoReturn:
        """Raise UsageError: the engine has no such method."""
        raise UsageError(
            f"{engine} has no method {self.method} ({self.pairing.name}); nearest: {nearest}"
        )

    def flat(self) -> "tuple[Deployment, list[str]]":
        """The deployment for an engine with one K for all batch sizes, that of one request, and a
        note on the tiers that it drops."""
        if not self.is_tiered:
            return self, []
        by_rows = ", ".join(
            f"K={tier.num_speculative_tokens} for up to {tier.num_rows}" for tier in self.tiers
        )
        k = self.tiers[0].num_speculative_tokens
        note = (
            f"K by batch size ({by_rows}): K={k} is used for all; --concurrency N uses that of N "
            "concurrent requests"
        )
        return replace(self, tiers=(Tier(None, k),)), [note]

    @property
    def contexts_lost(self) -> list[str]:
        """A note on K by context, for which no engine has an option."""
        if self.context is None:
            return []
        return [
            f"K by context: this engine has no limit by context length; the K of {self.context:,} "
            "tokens is used for all, and --prompt-tokens N uses that of N tokens"
        ]

    @property
    def tree_lost(self) -> list[str]:
        """A note on a tree that becomes a chain."""
        if not self.tree:
            return []
        return [
            f"the {self.tree} token tree: exported as a chain of depth K={self.k}, which accepts "
            "fewer tokens than the tree did"
        ]


class ConfigFile(NamedTuple):
    """A file that the command refers to."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """An engine's command line, with notes on its differences from the measured configuration."""

    engine: str
    written_for: str  # the engine's version
    command: tuple[str, ...]
    config: ConfigFile | None
    acceptance_rule: str | None  # None: no drafts
    not_expressed: tuple[str, ...]  # settings that the engine does not have
    basis: tuple[Reason, ...]  # these three as in `Deployment`
    conditions: tuple[Reason, ...]
    limits: tuple[Reason, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for the command

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell, after its environment."""
        names = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*names, shlex.join(self.command)])


def exported(
    deployment: Deployment,
    engine: str,
    written_for: str,
    command: Sequence[str],
    lost: Sequence[str],
    config: ConfigFile | None = None,
    *,
    hybrids: str = ROLLBACK,
    environment: Mapping[str, str] | None = None,
) -> Export:
    """The export of a deployment; `lost` lists settings that the engine does not have, `hybrids`
    describes its drafts for a target with recurrent layers. UsageError for GGUF files, except for
    llama.cpp and ik_llama.cpp."""
    for spec in deployment.pairing.models if engine not in _READ_GGUF else ():
        if spec.is_gguf:
            raise UsageError(f"{engine}: {spec.source} {GGUF_ADVICE}")
    if deployment.k and deployment.p_min and engine not in _STOPPING:
        raise UsageError(
            f"{engine} has no p_min ({deployment.pairing.name}); leave out --draft-p-min, or use "
            f"{' or '.join(_STOPPING)}"
        )
    is_measured = engine == deployment.measured_with
    lost_arguments = (
        ()
        if is_measured or not deployment.arguments
        else (
            f"{shlex.join(deployment.arguments)} of the fastest variant, which is an argument of "
            f"{deployment.measured_with}",
        )
    )
    return Export(
        engine=engine,
        written_for=written_for,
        command=(*command, *(deployment.arguments if is_measured else ())),
        config=config,
        acceptance_rule=deployment.acceptance_rule if deployment.k else None,
        not_expressed=(
            *lost,
            *lost_arguments,
            *deployment.contexts_lost,
            *(_unknown(deployment, hybrids) if deployment.k else ()),
        ),
        basis=deployment.basis,
        conditions=deployment.conditions,
        limits=deployment.limits,
        environment=environment or {},
    )


def _unknown(deployment: Deployment, hybrids: str) -> Iterator[str]:
    """Notes on facts about these models that are unknown."""
    if recurrent_type(deployment.target) is not None:
        yield (
            f"{deployment.target.source} has recurrent layers, whose state is rolled back after a "
            f"rejected draft: {hybrids}; compare its text with that of -k 0 (specbench verify)"
        )
    if deployment.row.shares_tokens and deployment.vocab_sizes is None:
        yield (
            f"vocab_size of {deployment.target.source} and {deployment.head.source}: unknown; if "
            "they differ, this command might not start; download both and export again"
        )


class Exporter(Protocol):
    """The file of an engine with an export."""

    CONFIG_NAME: str  # of the file that the command refers to; empty: it never has one

    def vocabulary_notes(self, deployment: Deployment) -> list[str]:
        """Notes on a draft model whose vocabulary is not the target's.

        UsageError if the engine would not start, or would serve without drafts. The docstrings of
        implementations name the engine's source file.
        """
        ...

    def export(self, deployment: Deployment, version: str | None, config_name: str) -> Export:
        """The command that serves the deployment; UsageError if the engine cannot.

        `version` None means the newest known release.
        """
        ...

    def adaptive(
        self, deployment: Deployment, version: str | None, program: Path | None
    ) -> dict[str, tuple[str, ...]]:
        """The engine's own schemes that choose K while it serves: their arguments, by name.

        Empty if it has none for the method. They draft up to the deepest K or `schemes_reach`; the
        tiers are K by concurrency, for a scheme that needs such a table. UsageError if this
        `version`, or the `program`, lacks one. The docstrings of implementations name the engine's
        sources.
        """
        ...


def find_exporter(engine: str) -> Exporter:
    """The exporter of an engine; UsageError lists the engines with an export."""
    engine = one_of("--engine", engine, *EXPORTED)
    package = "specbench.engines.served" if engine in SERVED else "specbench.engines"
    return cast(Exporter, import_module(f"{package}.{engine}"))


def vocabulary_notes(engine: str, pairing: Pairing, temperature: float) -> list[str]:
    """The engine's notes on the draft model's vocabulary, or the error if it cannot draft."""
    deployment = Deployment(pairing=pairing, tiers=(Tier(None, 1),), temperature=temperature)
    try:
        return find_exporter(engine).vocabulary_notes(deployment)
    except UsageError as error:
        return [str(error)]


def tiers_of(concurrency: Sequence[int], k: int) -> tuple[Tier, ...]:
    """K for the lowest concurrency, and half of it for each further one, at least 1."""
    return tuple(Tier(at, max(k >> i, 1)) for i, at in enumerate(sorted(concurrency)))


def read_release(engine: str, text: str | None, *, oldest: Release, newest: Release) -> Release:
    """`v0.30.1` -> (0, 30, 1). UsageError for releases before `oldest`, whose flags differed.

    None means the newest. A later release is accepted, and exported like the newest known one.
    """
    if text is None:
        return newest
    match = re.fullmatch(r"v?(\d{1,4}(?:\.\d{1,4}){0,3})(?:[a-z+.-].*)?", text.strip())
    if match is None:
        raise UsageError(f"--engine-version {text!r}: expected a release such as {dotted(newest)}")
    release = tuple(map(int, match[1].split(".")))
    if release < oldest:
        raise UsageError(
            f"--engine-version {text!r}: {engine} before {dotted(oldest)} had other flags; "
            f"{dotted(oldest)} to {dotted(newest)} are supported"
        )
    return release


class FirstBuild(NamedTuple):
    """The first build of a program that has something, by day and by number."""

    day: date
    number: int

    def is_in(self, built: date | int | None) -> bool:
        """Whether a build has it, by what is known of the build; None: the newest."""
        if isinstance(built, int):
            return built >= self.number
        return built is None or built >= self.day


def read_build(version: str | None, known: FirstBuild) -> date | int | None:
    """`b9235` -> 9235, `2026-04` -> its first day; UsageError, with a known build, for others.

    None means the newest.
    """
    if version is None:
        return None
    if number := re.fullmatch(r"b?(\d{4,6})", version.strip()):
        return int(number[1])
    day = re.fullmatch(r"(\d{4})-(\d{2})(?:-(\d{2}))?", version.strip())
    with suppress(ValueError):
        if day:
            return date(*(int(part or 1) for part in day.groups()))
    raise UsageError(
        f"--engine-version {version!r}: expected a date such as {known.day:%Y-%m} or a build such "
        f"as b{known.number} (llama-server --version)"
    )


def dotted(release: Release) -> str:
    """(0, 30) -> `0.30`."""
    return ".".join(map(str, release))


def newer_release_note(release: Release, newest: Release) -> list[str]:
    """A note for a release that is newer than all known ones."""
    if release[: len(newest)] <= newest:
        return []
    return [f"{dotted(release)} is newer than {dotted(newest)}, for which this is written"]


def recurrent_type(spec: ModelSpec) -> str | None:
    """The model type of a model with recurrent layers, by its config; None for other models, and
    if the model is not on this machine or cannot be read."""
    try:
        files = open_model(spec)
        return str(files.field("model_type")) if is_hybrid(files.field) else None
    except ModelError:
        return None


def model_name(spec: ModelSpec) -> str:
    """The model's name in pairings.yaml, or its absolute path if other tools would not find it.

    UsageError for a shape without weights."""
    if spec.is_shape:
        raise UsageError(f"{spec.source} has no weights; only a real model can be served")
    is_usable = spec.folder is None or Path(spec.source).resolve() == spec.folder.resolve()
    return spec.source if is_usable else spec.location


def server_flags(deployment: Deployment) -> list[str]:
    """Flags shared by the servers that load Hugging Face checkpoints."""
    target = deployment.target
    flags = ["--revision", target.revision] if target.revision else []
    if deployment.served_dtype:
        flags += ["--dtype", deployment.served_dtype]
    return [*flags, "--trust-remote-code"] if target.trust_remote_code else flags


def server_notes(
    deployment: Deployment, release: Release, newest: Release, *, keeps_lossy: bool = False
) -> list[str]:
    """Notes shared by the servers that load Hugging Face checkpoints, as in `settings_lost`."""
    lost = newer_release_note(release, newest) + settings_lost(deployment, keeps_lossy=keeps_lossy)
    if deployment.dtype and not deployment.served_dtype:
        lost.append(f"{deployment.dtype}: this engine takes the checkpoint's dtype")
    return lost


def settings_lost(deployment: Deployment, *, keeps_lossy: bool = False) -> list[str]:
    """Notes on settings of pairings.yaml that other engines do not have; `keeps_lossy`: this engine
    has the lossy rule."""
    lost = []
    rule = deployment.pairing.drafter.lossy
    if rule is not None and deployment.k and not keeps_lossy:
        lost.append(
            f"the lossy rule {rule}: without it fewer drafts are accepted, so the measured "
            "speedup does not apply to this engine"
        )
    for role, spec in (("target", deployment.target), ("drafter", deployment.drafter)):
        if spec is None:
            continue
        if spec.quantization:
            lost.append(
                f"{spec.quantization} weights of the {role}, packed on loading: serve a checkpoint "
                "quantized for this engine"
            )
        if spec.device_map not in (None, "cpu", "cuda"):
            lost.append(
                f"device_map {spec.device_map} of the {role}: choose this engine's parallelism"
            )
    return lost
