"""The fingerprint of a run: facts that comparable runs share, or that may explain changes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from specbench.doc import Doc
from specbench.metrics.aggregate import usable_sessions
from specbench.metrics.server_facts import (
    VERSION,
    RunDifference,
    arguments,
    changes_of,
    facts_of,
    is_about_drafts,
    is_like_hardware,
)
from specbench.records import (
    Condition,
    EngineRecord,
    Environment,
    ImportedRecord,
    ModelIdentity,
    RunRecord,
    ServerRecord,
    chosen_threads,
)
from specbench.settings import DecoderSettings, ServerSettings
from specbench.settings.words import limits_text

HARDWARE = "hardware"
THREADS = "threads"
SOFTWARE = "software"
DRAFTER = "drafter"
TOKENIZER = "tokenizer"
# Names of `differences`, except the hardware.
SETTINGS = ("model", TOKENIZER, "workload", "sampling", "max-new-tokens", "slo", "synthetic")
_COMMIT = "commit"
# Software that does not decode: it may differ among the runs of one baseline.
AROUND = ("specbench", "python", _COMMIT, "driver")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """Facts that hold for all cells of a run."""

    models: Annotated[Mapping[str, str], Doc("target to the sha256 of its weights")]
    tokenizers: Annotated[Mapping[str, str], Doc("target to the sha256 of its tokenizer")]
    workloads: Annotated[Mapping[str, str], Doc("workload to its sha256")]
    request_settings: Annotated[
        Mapping[str, str], Doc("workload to the sha256 of its request settings, if it has any")
    ] = field(default_factory=dict)
    sampling: Annotated[str, Doc("top-k and top-p, in words")]
    hardware: Annotated[
        Mapping[str, str],
        Doc("device, GPU or CPU, cores, threads; how a server spreads a model"),
    ]
    torch: Annotated[str, Doc("version of torch")]
    max_new_tokens: Annotated[int | None, Doc("absent: the workload's own")] = None
    slo: Annotated[str, Doc("limits of `--slo`; empty: none")] = ""
    synthetic: Annotated[
        str, Doc("simulated acceptance or dummy weights; empty for a real run")
    ] = ""
    templates: Annotated[
        Mapping[str, str], Doc("target to the sha256 of its chat template; empty: without one")
    ] = field(default_factory=dict)
    # Differences in these never forbid a comparison; they may explain a change.
    drafters: Annotated[Mapping[str, str], Doc("pairing to the sha256 of its draft")] = field(
        default_factory=dict
    )
    software: Annotated[
        Mapping[str, str],
        Doc("driver, packages, forward, graph; a server's version, settings and arguments"),
    ] = field(default_factory=dict)
    entries: Annotated[
        Mapping[str, str], Doc("pairing to the sha256 of its entry in the pairings file")
    ] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """`cpu` or `cuda`; empty if unknown, as in the files of other tools."""
        return self.hardware.get("device", "")


def fingerprint_of(
    run: RunRecord,
    models: Sequence[ModelIdentity],
    engines: Sequence[EngineRecord] = (),
    imported: Sequence[ImportedRecord] = (),
    servers: Sequence[ServerRecord] = (),
) -> Fingerprint:
    targets = {key.condition.target for key in run.keys}
    settings, environment = run.settings, run.environment
    sampling = settings.sampling
    packed = {
        engine.target: f"{engine.quantization} of " for engine in engines if engine.quantization
    }
    numbers = " and ".join(map(str, chosen_threads(engines)))
    threads = {THREADS: numbers} if numbers else {}
    served = served_facts(servers)
    return Fingerprint(
        models={
            m.name: packed.get(m.name, "") + m.content_sha256 for m in models if m.name in targets
        },
        tokenizers={m.name: m.tokenizer_sha256 for m in models if m.name in targets},
        templates={
            m.name: m.template_sha256
            for m in models
            if m.name in targets and m.template_sha256 is not None
        },
        workloads=dict(run.workload_sha256),
        request_settings=dict(run.settings_sha256),
        sampling=sampling.cuts,
        max_new_tokens=sampling.max_new_tokens,
        slo=limits_text(settings.load.slo or {}),
        synthetic=_synthetic(settings.decoder),
        hardware={**environment.hardware, **threads, **served.hardware},
        torch=environment.packages.get("torch", ""),
        drafters=dict(_drafters(models, targets)),
        software={
            **_software(environment, engines, imported),
            **dict(_draft_arguments(settings.servers)),
            **served.software,
        },
        entries=dict(run.pairing_sha256),
    )


def differences(
    baseline: Fingerprint, candidate: Fingerprint, *, threads: bool = True
) -> tuple[RunDifference, ...]:
    """Differences that forbid a comparison, of targets, workloads and servers that both sides have.

    `threads`: include the number of CPU threads.
    """
    plain = (
        RunDifference("sampling", baseline.sampling, candidate.sampling),
        RunDifference(
            "max-new-tokens",
            str(baseline.max_new_tokens or "the workload's"),
            str(candidate.max_new_tokens or "the workload's"),
        ),
        RunDifference("slo", baseline.slo or "none", candidate.slo or "none"),
        RunDifference("synthetic", baseline.synthetic or "no", candidate.synthetic or "no"),
    )
    old, new = _servers(baseline), _servers(candidate)
    # Without a common server, one engine is compared with another, and all their facts count.
    not_shared = tuple(old ^ new) if old & new else ()
    return (
        *_hashes("model", baseline.models, candidate.models),
        *_tokenizers(baseline, candidate),
        *_hashes("workload", baseline.workloads, candidate.workloads),
        *_hashes("request-settings", baseline.request_settings, candidate.request_settings),
        *(d for d in plain if d.baseline != d.candidate),
        *(
            RunDifference(HARDWARE, f"{name} {before}", f"{name} {after}")
            for name, before, after in changes_of(baseline.hardware, candidate.hardware)
            if (threads or name != THREADS) and not name.startswith(not_shared)
        ),
    )


def thread_difference(baseline: Fingerprint, candidate: Fingerprint) -> RunDifference | None:
    """The numbers of CPU threads if they differ: then only ratios and counts are compared."""
    before, after = (side.hardware.get(THREADS, "unknown") for side in (baseline, candidate))
    return RunDifference(THREADS, before, after) if before != after else None


def changes(baseline: Fingerprint, candidate: Fingerprint) -> tuple[RunDifference, ...]:
    """Differences that a comparison permits: drafters, which are under test, and software."""
    return (
        *(change for _, change in draft_changes(baseline, candidate)),
        *changes_of(baseline.software, candidate.software),
    )


def draft_changes(
    baseline: Fingerprint, candidate: Fingerprint
) -> Iterator[tuple[str, RunDifference]]:
    """Differences of drafters that both sides have, by pairing; weights before entries."""
    for fact, old, new in (
        ("weights of {}", baseline.drafters, candidate.drafters),
        ("entry of {} (model, method, parameters)", baseline.entries, candidate.entries),
    ):
        for pairing in old:
            before, after = old[pairing], new.get(pairing, old[pairing])
            if before != after:
                yield pairing, RunDifference(fact.format(pairing), before[:12], after[:12])


def drafter_difference(
    pairing: str, baseline: Fingerprint, candidate: Fingerprint
) -> RunDifference | None:
    """The difference of one pairing's drafter; None without one, or if a side does not have it."""
    for name, (_, before, after) in draft_changes(baseline, candidate):
        if name == pairing:
            return RunDifference(DRAFTER, f"{pairing} {before}", f"{pairing} {after}")
    return None


def software_changes(
    baseline: Fingerprint, candidate: Fingerprint, ignored: Collection[str] = (_COMMIT,)
) -> tuple[RunDifference, ...]:
    """Packages, driver and engines that changed; the commit differs in every pull request."""
    changed = changes_of(baseline.software, candidate.software)
    return tuple(change for change in changed if change.name not in ignored)


def have_same_arithmetic(before: Fingerprint, after: Fingerprint) -> bool:
    """Whether greedy text must be the same: equal except for drafters and for software other than
    torch and serving engines."""
    same_engines = not any(
        is_of_a_server(d.name) for d in changes_of(before.software, after.software)
    )
    return not differences(before, after) and before.torch == after.torch and same_engines


def _tokenizers(before: Fingerprint, after: Fingerprint) -> Iterator[RunDifference]:
    """Targets with another tokenizer, or only with another chat template."""
    for difference in _hashes(TOKENIZER, before.tokenizers, after.tokenizers):
        name = difference.baseline.rpartition(" ")[0]
        templates = before.templates.get(name), after.templates.get(name)
        if None in templates or templates[0] == templates[1]:
            yield difference
        else:
            label = f"chat template of {name}: "
            shown = (label + (template[:12] if template else "none") for template in templates)
            yield RunDifference(TOKENIZER, *shown)


def _hashes(
    word: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[RunDifference]:
    for name in before:
        if name in after and before[name] != after[name]:
            yield RunDifference(
                word, f"{name} {_short(before[name])}", f"{name} {_short(after[name])}"
            )


def _short(sha256: str) -> str:
    packed, _, digest = sha256.rpartition(" of ")
    return f"{packed} of {digest[:12]}" if packed else digest[:12]


def _software(
    environment: Environment, engines: Sequence[EngineRecord], imported: Sequence[ImportedRecord]
) -> dict[str, str]:
    facts = {"specbench": environment.specbench_version, "python": environment.python}
    facts |= {f"package {name}": version for name, version in environment.packages.items()}
    if environment.git_commit:
        facts[_COMMIT] = environment.git_commit[:12]
    if environment.driver:
        facts["driver"] = environment.driver
    for engine in engines:
        chosen = (engine.forward, engine.graph, engine.attention)
        facts[f"{engine.engine} of {engine.target}"] = ", ".join(filter(None, chosen))
    for record in imported:
        if record.tool_version is not None:
            facts[record.tool] = record.tool_version
    return facts


def _drafters(models: Sequence[ModelIdentity], targets: set[str]) -> Iterator[tuple[str, str]]:
    """Hashes of drafters by pairing; a target is stored before its drafters."""
    target = ""
    for model in models:
        if model.name in targets:
            target = model.name
        else:
            yield f"{target}/{model.name}", model.content_sha256


def _synthetic(decoder: DecoderSettings) -> str:
    if not decoder.is_synthetic:
        return ""
    acceptance = "measured" if decoder.acceptance is None else str(decoder.acceptance)
    return f"acceptance {acceptance}, {'dummy' if decoder.dummy_weights else 'real'} weights"


_PREFIX = "server "  # of the name of every fact of a serving engine


class ServedFacts(NamedTuple):
    """`hardware` must be the same for seconds to be compared; `software` is only reported."""

    hardware: Mapping[str, str]
    software: Mapping[str, str]


def served_facts(servers: Sequence[ServerRecord]) -> ServedFacts:
    """Facts of each engine and target: version, settings, arguments, number of GPUs.

    They come from sessions without speculation if there are any. A fact that differs between
    sessions has all values.
    """
    hardware: dict[str, list[str]] = {}
    software: dict[str, list[str]] = {}
    for server in _preferred(servers):
        for name, value in facts_of(server, is_of_k=bool(server.num_speculative_tokens)):
            facts_of_kind = hardware if is_like_hardware(name) else software
            variant = f"variant {server.variant}, " if server.variant else ""
            name = f"{_PREFIX}{server.engine} of {server.target}, {variant}{name}"
            values = facts_of_kind.setdefault(name, [])
            if value not in values:
                values.append(value)
    return ServedFacts(
        *({name: " | ".join(facts[name]) for name in facts} for facts in (hardware, software))
    )


def is_of_a_server(name: str) -> bool:
    """Whether a fact of this name is about a serving engine."""
    return name.startswith(_PREFIX)


def is_software_of(name: str, at: Condition) -> bool:
    """Whether a software fact of this name is about the engine, target and variant of a cell, or
    about all of them."""
    subject, _, rest = name.removeprefix(_PREFIX).partition(", ")
    if " of " in subject and subject != f"{at.engine} of {at.target}":
        return False
    return not rest.startswith("variant ") or rest.startswith(f"variant {at.variant}, ")


def _servers(fingerprint: Fingerprint) -> set[str]:
    """How the names of facts begin, for each server and variant."""
    facts = filter(is_of_a_server, fingerprint.software)
    return {name.removesuffix(VERSION) for name in facts if name.endswith(f", {VERSION}")}


def _draft_arguments(servers: ServerSettings) -> Iterator[tuple[str, str]]:
    """The user's fields of a speculative config; only servers with speculation get them."""
    given = {"": servers.engine_args, **(servers.variants or {})}
    for variant, words in given.items():
        for flag, value in arguments(words):
            if "config" in flag and is_about_drafts(flag):
                yield f"{_PREFIX}{variant and f'variant {variant}, '}{flag}", value


def _preferred(servers: Sequence[ServerRecord]) -> Iterator[ServerRecord]:
    sound = usable_sessions(servers).values()
    plain = {(s.engine, s.target) for s in sound if not s.num_speculative_tokens}
    for server in sound:
        if not server.num_speculative_tokens or (server.engine, server.target) not in plain:
            yield server
