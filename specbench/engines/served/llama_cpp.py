"""llama.cpp: `llama-server`, which reads GGUF files.

Source: tools/server/ of llama.cpp, 2026-10. Only the completion endpoint reports token ids, so
three requests are sent: to apply the chat template, to tokenize the prompt, and to complete it.

Its flags changed with pull request 22673 of May 2026. Since then a draft model needs --spec-type.
Before, --model-draft was enough, --spec-type was only for methods without a model, and drafts of
another vocabulary were translated; later builds refuse them.
`--engine-version` is a date (2026-04) or a build (b9235) as `llama-server --version` prints it.
"""

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from specbench.engines.deployment import (
    PAD,
    SMALL_MODEL,
    Deployment,
    Export,
    FirstBuild,
    exported,
    model_name,
    read_build,
    settings_lost,
)
from specbench.engines.served_engine import (
    DraftedRound,
    EngineProperties,
    StartCommand,
    StartOptions,
    conversation_fields,
    counts_of_rounds,
    counts_of_sums,
    without_omitted,
)
from specbench.errors import ModelError, RefusedError, UsageError
from specbench.files.gguf import FIRST_COMPARED_ID, MAX_VOCAB_DIFFERENCE, differences, gguf_of
from specbench.files.model_spec import ModelSpec
from specbench.inputs.model_spec import without_owner
from specbench.methods import LOOKUPS, MODEL_METHOD, gguf_method, set_name, split_set
from specbench.records import Request, RequestCounts, RequestSettings
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import DRAFT_COUNTERS, CounterPage, count_of
from specbench.servers.response import Count, Payload, StreamedResponse, TokenId, invalid_field
from specbench.servers.server_log import ARGUMENTS, MEMORY, PORT, LogFormat

if TYPE_CHECKING:
    from specbench.servers.client import Client

# Settings by the command, and flags of the model files that they are about.
DEVICES, GGUF_FILE = "devices", "gguf_file"
_FILES = {"--model": GGUF_FILE, "-m": GGUF_FILE}
_FILES |= {flag: f"draft_{GGUF_FILE}" for flag in ("--model-draft", "-md", "--spec-draft-model")}


def read_command(command: Sequence[str]) -> dict[str, str]:
    """The devices of the program, and the quantization and hash of the header of each model file;
    what cannot be read is left out."""
    found = {DEVICES: _devices(command[0])}
    for flag, name in pairwise(command):
        if flag in _FILES:
            with suppress(ModelError, OSError):
                file = gguf_of(ModelSpec(source=name, folder=Path(name).absolute()))
                found[_FILES[flag]] = f"{file.quantization} {file.header_sha256}"
    return {name: value for name, value in found.items() if value}


@cache
def _devices(program: str) -> str:
    """`CUDA0, CUDA1`; `none` if it computes on the CPU only; empty if unknown."""
    _, title, listed = help_of((program, "--list-devices")).partition("Available devices:")
    names = re.findall(r"^ +(\w+): ", listed, re.MULTILINE)
    return ", ".join(names) or ("none" if title and "(none)" in listed else "")


PROPERTIES = EngineProperties(
    start_s=5.0,  # it compiles and captures nothing
    limits_k=True,
    read_command=read_command,
    simulated_by=("LLAMA_ARG_SPEC_SYNTH_LEN", "LLAMA_ARG_SPEC_SYNTH_RATES"),
    unsupported=("tool_choice",),  # its endpoint of completions takes a schema, and no tools
)
COUNTERS = CounterPage(  # tools/server/server-task.cpp
    engine="llama_cpp",
    path="/metrics",
    prefix="llamacpp:",
    counters={
        **DRAFT_COUNTERS,
        "spec_decode_num_drafts": "num_rounds",
        "tokens_predicted": "num_tokens",
        "prompt_tokens": "num_prompt_tokens",
        "prompt_tokens_cached": "num_cached_tokens",
    },
    in_progress=("requests_processing", "requests_deferred"),
    is_of_model=True,
)
_GGUF = "make the GGUF file again, or name another: --engine-args '--model FILE'"
LOG = LogFormat(
    prefix=re.compile(r"[\d.]+ (?P<level>[A-Z]) "),
    known={
        r"^error: invalid argument|^error while handling argument": ARGUMENTS,
        r"failed to open GGUF|invalid magic characters|corrupted or incomplete": _GGUF,
        r"couldn't bind .*socket": PORT,
        r"(?:failed|unable) to allocate": MEMORY,
    },
)

_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def launch(start: StartOptions) -> StartCommand:
    """`exported` is `llama-server --model NAME.gguf ...`; each file is replaced by its path."""
    return server_command(start, () if start.keeps_prefixes else ("--no-cache-prompt",))


def server_command(start: StartOptions, more: Sequence[str] = ()) -> StartCommand:
    """The command for an address, slots and a context, with these arguments as well."""
    command = list(start.exported)
    for i, word in enumerate(command):
        if word in MODEL_FLAGS and word not in start.arguments:
            command[i + 1] = str(_find_gguf(command[i + 1], word, start.models))
    if start.python is not None:
        command[0] = str(start.python)
    command += ["--host", start.host, "--port", str(start.port), "--seed", str(start.seed)]
    command += ["--metrics", "--parallel", str(start.max_concurrency)]
    if start.context is not None:  # slots share it evenly
        command += ["--ctx-size", str(start.context * start.max_concurrency)]
    command += [] if start.keeps_prefixes else ["--cache-ram", "0"]
    return StartCommand(command=(*command, *more, *start.arguments))


def _find_gguf(name: str, flag: str, folders: Sequence[Path]) -> Path:
    """The path of a GGUF file: as it is named, or next to its model's folder, or in that folder,
    if it has this name or is the only one there."""
    named = [folder for folder in folders if folder.name == Path(name).stem]
    paths = [Path(name)]
    for folder in named:
        inside = sorted(folder.glob("*.gguf"))
        paths += [folder.parent / Path(name).name, folder / Path(name).name]
        paths += inside if len(inside) == 1 else []
    for path in paths:
        if path.is_file():
            return path
    searched = "".join(f", {folder.parent} or {folder}" for folder in named)
    raise UsageError(
        f"llama.cpp needs a GGUF file: {name} is not in {Path.cwd()}{searched}; make it from the "
        "`model:` in pairings.yaml with llama.cpp's convert_hf_to_gguf.py MODEL --outfile "
        f"{name}, or name an existing one: --engine-args '{flag} FILE'"
    )


async def facts(client: "Client", names: ModelNames) -> ServerFacts:
    """Facts from several pages. The slots may show whether the server speculates; the counters show
    K after the first draft. A router of several models needs the model's name for each page."""
    model = (await names.card(client))["id"]
    of_model = f"?model={quote(model)}"
    props: Mapping[str, Any] = {}
    with suppress(RefusedError):  # a router may load the model only with its first request
        props = await client.json(f"{client.address.root}/props{of_model}")
    counters = await client.counters(COUNTERS.path_of(model), [COUNTERS])
    speculates = {slot.speculative for slot in await _slots(client, f"/slots{of_model}")} - {None}
    drafts = any(speculates) if speculates else None
    default = props.get("default_generation_settings")
    n_ctx = default.get("n_ctx") if isinstance(default, dict) else None  # of a slot
    reported = {name: props.get(name) for name in ("model_path", "model_ftype", "total_slots")}
    reported["n_ctx"] = n_ctx
    return ServerFacts(
        version=str(props.get("build_info", "")),
        model=model,
        k=Fact.read(COUNTERS.path, counters.num_positions)
        + Fact.read("/slots", 0 if drafts is False else None),
        drafts=Fact.read("/slots", drafts),
        context=count_of(str(n_ctx)),
        settings={n: str(value) for n, value in reported.items() if value is not None},
        prefix_cache=Fact.read("its requests", "by request"),
    )


class _Slot(Payload):
    speculative: bool | None = None


async def _slots(client: "Client", path: str) -> list[_Slot]:
    """The server's slots; empty if the page is turned off. ServerError."""
    page = await client.page(path) or "[]"
    try:
        return TypeAdapter(list[_Slot]).validate_json(page)
    except ValidationError as error:
        client.fail(f"/slots: {invalid_field(error)}")


class TokenStep(NamedTuple):
    """The totals after a token: tokens, and draft tokens of all rounds so far."""

    num_tokens: int
    num_drafted: int
    num_accepted: int


class DraftTimings(Payload):
    """The part of a stream's `timings` that counts draft tokens."""

    draft_n: Count = 0
    draft_n_accepted: Count = 0


class _LlamaEvent(Payload):
    content: str | None = None
    tokens: list[TokenId] | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    stop_type: str | None = None
    timings: DraftTimings | None = None


@dataclass(kw_only=True, slots=True)
class _LlamaStream(StreamedResponse):
    """A stream in llama.cpp's format, with one token per event."""

    reports_all_ids: ClassVar[bool] = False

    steps: list[TokenStep] = field(default_factory=list)

    def add(self, event: Mapping[str, Any]) -> None:
        fields = _LlamaEvent.model_validate(event)
        timings = fields.timings
        reason = _REASONS.get(fields.stop_type or "")
        choice = {"text": fields.content, "token_ids": fields.tokens, "finish_reason": reason}
        usage = {
            "completion_tokens": fields.tokens_predicted,
            "prompt_tokens": fields.tokens_evaluated,
        }
        metrics = timings and {**timings.model_dump(), "steps": self.steps}
        StreamedResponse.add(self, {"choices": [choice], "usage": usage, "metrics": metrics})
        if timings and fields.tokens and fields.tokens_predicted is not None:
            drafts = timings.draft_n, timings.draft_n_accepted
            self.steps.append(TokenStep(fields.tokens_predicted, *drafts))


class _PromptText(Payload):
    prompt: str


class _PromptTokens(Payload):
    tokens: list[TokenId]


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Stream the response with token ids; without ids if a token ended within a character, since
    the server then omits some."""
    root, sampling = client.address.root, request.sampling
    fields = {"model": model, **conversation_fields(request)}
    template = await client.parsed(f"{root}/apply-template", _PromptText, fields)
    text = {"model": model, "content": template.prompt, "add_special": True, "parse_special": True}
    prompt = await client.parsed(f"{root}/tokenize", _PromptTokens, text)
    body = {
        "model": model,
        "prompt": prompt.tokens,
        "n_predict": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0.0,
        "seed": request.seed,
        "cache_prompt": request.keeps_prefixes,
        "timings_per_token": True,
        **_constraints(request.settings),
        **request.settings.extra_body,
    }
    stream = _LlamaStream(sent_s=perf_counter(), prompt_ids=prompt.tokens)
    await client.stream("/completion", without_omitted(request, body), stream)
    if len(stream.token_ids) != stream.num_tokens:
        del stream.token_ids[:]
    return stream


def _constraints(settings: RequestSettings) -> dict[str, Any]:
    """The fields of a completion for `stop` and `response_format`."""
    fields: dict[str, Any] = {"stop": list(settings.stop)} if settings.stop else {}
    if settings.response_format is not None:
        form = settings.response_format.get("json_schema", {"schema": {"type": "object"}})
        fields["json_schema"] = form["schema"]
    return fields


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:
    """Counts from the totals; if each token was reported, also those of each round, and the draft
    tokens accepted past the end."""
    totals = answer.metrics
    if not totals or not k:
        return None
    steps = totals["steps"]
    if len(steps) != answer.num_tokens:
        accepted, drafted = totals["draft_n_accepted"], totals["draft_n"]
        return counts_of_sums(answer, num_accepted=accepted, num_drafted=drafted)
    drafting = [(old, new) for old, new in pairwise(steps) if new.num_drafted > old.num_drafted]
    rounds = [
        DraftedRound(new.num_drafted - old.num_drafted, new.num_accepted - old.num_accepted)
        for old, new in drafting
    ]
    num_overshot = 0
    if drafting:
        num_emitted = len(steps) + 1 - drafting[-1][1].num_tokens  # since the last of them began
        num_overshot = max(rounds[-1].num_accepted + 1 - num_emitted, 0)
    return counts_of_rounds(answer, rounds, k, num_overshot=num_overshot)


CONFIG_NAME = ""

# The days of pull requests, and builds known to be after them.
_CHANGED = FirstBuild(date(2026, 5, 16), 9235)  # 22673
_OLD_BUILD = 9000  # known to be before it
_LATER = {  # methods: 23398, 25173 and 27816
    "gemma4_mtp": FirstBuild(date(2026, 6, 8), 9568),
    "dspark": FirstBuild(date(2026, 7, 28), 10236),
    "dflash2": FirstBuild(date(2026, 8, 27), 10760),
}
_SIMULATING = FirstBuild(date(2026, 9, 1), 10919)  # acceptance: 27711, of August
MODEL_FLAGS = ("--model", "--model-draft")
_MODEL, _LOOKUP = "draft-simple", "ngram-simple"
HELP_S = 30.0
_MODEL_KINDS = {
    "draft_model": _MODEL,
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "gemma4_mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "dflash2": "draft-dflash",
    "dspark": "draft-dspark",
}


class _Lookup(NamedTuple):
    """A lookup: its kind, the flag for K, and the parameters of other flags."""

    kind: str
    k: str | None
    parameters: Mapping[str, str]


_LOOKUPS = {
    "ngram": _Lookup(
        _LOOKUP,
        "--spec-ngram-simple-size-m",
        {"--spec-ngram-simple-size-n": "max_ngram"},
    ),
    **{
        f"ngram_{name}": _Lookup(
            f"ngram-{kind}",
            f"--spec-ngram-{kind}-size-m",
            {
                f"--spec-ngram-{kind}-size-n": "key_size",
                f"--spec-ngram-{kind}-min-hits": "min_hits",
            },
        )
        for name, kind in (("map_k", "map-k"), ("map_k4v", "map-k4v"))
    },
    "ngram_mod": _Lookup(
        "ngram-mod",
        "--spec-ngram-mod-n-max",
        {"--spec-ngram-mod-n-match": "match_length", "--spec-ngram-mod-n-min": "min_drafts"},
    ),
    "ngram_cache": _Lookup("ngram-cache", None, {}),
}
# The values of --spec-type, also of a set: its lookup drafts if it finds something, whatever their
# order (common_speculative_init in common/speculative.cpp).
_KINDS = {
    **_MODEL_KINDS,
    **{method: lookup.kind for method, lookup in _LOOKUPS.items()},
    **{
        set_name(method, name): f"{kind},{lookup.kind}"
        for method, kind in _MODEL_KINDS.items()
        for name, lookup in _LOOKUPS.items()
    },
}
_NEAREST = {
    "suffix": "ngram; ngram_map_k4v also weighs continuations by how often they came",
    "previous_turn": "ngram; ngram_mod also remembers earlier answers",
    "string_match": (
        f"{SMALL_MODEL}, or a build that translates drafts (--engine-version 2026-04)"
    ),
}
_HYBRIDS = (
    "llama.cpp turned speculation off for it before pull request 19493 (April 2026), and "
    "copies the whole state in every round since then, which may cost more than drafts bring"
)


def spec_types(command: Sequence[str]) -> frozenset[str]:
    """The values of --spec-type in the help that `llama-server --help` prints; empty if none.

    UsageError if it is ik_llama.cpp's.
    """
    options = help_of(command)
    if AUTOTUNE in options:
        raise UsageError(
            f"{command[0]} is ik_llama.cpp, and `pair` measures on llama.cpp: give its "
            "llama-server as --engine-python, or use sweep-k --engine ik_llama_cpp --target "
            "TARGET.gguf --draft DRAFT"
        )
    listed = re.search(r"--spec-type\s+\[?([\w|,-]+)", options)
    return frozenset(re.split(r"[|,]", listed[1])) - {"none"} if listed else frozenset()


def help_of(command: Sequence[str]) -> str:
    """What the command prints; empty if it does not run."""
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HELP_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""


# A draft ends at a token that the drafter finds less likely: the default of builds until 2026-05,
# and what pull request 27210 of August 2026 compares its adaptive depth with.
_P_MIN = "0.75"
AUTOTUNE = "--spec-autotune"  # of ik_llama.cpp


def adaptive(
    deployment: Deployment, version: str | None, program: Path | None
) -> dict[str, tuple[str, ...]]:
    """The drafter's confidence ends a draft (common/speculative.cpp); lookups have none."""
    if deployment.p_min:
        raise UsageError(
            f"{deployment.pairing.name}: llama.cpp adapts by a p_min of {_P_MIN} instead of "
            f"{deployment.p_min:g}; leave out --adaptive, or --draft-p-min"
        )
    flag = "--spec-draft-p-min" if _dialect(version, deployment.method).is_new else "--draft-p-min"
    server = str(program or "llama-server")
    options = help_of((server, "--help"))
    if options and flag not in options:
        remedy = f"it needs a build that has {flag}"
        if AUTOTUNE in options:
            remedy = "it is ik_llama.cpp: use --engine ik_llama_cpp"
        raise UsageError(f"{server} has no {flag}, by which llama.cpp's drafts adapt; {remedy}")
    return {} if deployment.method in LOOKUPS else {"p_min": (flag, _P_MIN)}


def why_missing(method: str, types: Collection[str]) -> str | None:
    """Why a llama-server with these `spec_types` cannot draft by a method; None if it can, or if
    they are unknown."""
    kinds = _KINDS.get(method, method).split(",")
    lacking = [kind for kind in kinds if types and kind not in types]
    return f"this llama-server has no --spec-type {lacking[0]}" if lacking else None


def other_types(types: Collection[str]) -> list[str]:
    """The types of a llama-server by which no method here drafts."""
    return sorted(set(types).difference(_KINDS.values()))


class _Dialect(NamedTuple):
    name: str
    is_new: bool
    simulates: bool = True  # acceptance: --spec-synth-rates
    has_method: bool = True  # if it is one of _LATER


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """common/speculative.cpp compares sizes and tokens. If they differ too much, the server logs
    an error and serves without drafts."""
    require_gguf_pair(deployment)
    target, draft = deployment.vocab_sizes or (0, 0)
    compared = range(FIRST_COMPARED_ID, min(target, draft))
    if abs(target - draft) > MAX_VOCAB_DIFFERENCE:
        raise UsageError(
            f"{deployment.unequal_vocab_sizes}: llama.cpp serves without drafts if they are more "
            f"than {MAX_VOCAB_DIFFERENCE} apart; {PAD}"
        )
    if ids := [i for i in deployment.different_ids if i in compared]:
        raise UsageError(f"llama.cpp serves without drafts, as the token of id {ids[0]} differs")
    return []


def require_gguf_pair(deployment: Deployment) -> None:
    """UsageError if llama.cpp would serve without drafts, since a drafter's file has another
    vocabulary, kind or shape than the target needs; ModelError for a broken file."""
    name, target, draft = deployment.pairing.name, deployment.target, deployment.drafter
    of_target = gguf_of(target) if target.is_gguf else None
    if draft is None or not (target.is_gguf or draft.is_gguf):
        return
    if of_target is None or not draft.is_gguf:
        raise UsageError(
            f"{name}: only one of {target.source} and {draft.source} is a GGUF file; name two of "
            "them, or two checkpoints"
        )
    of_draft = gguf_of(draft)
    if (method := gguf_method(of_draft)) != deployment.row.parts[0]:
        raise UsageError(
            f"{name}: {draft.source} is for the method {method}, not for {deployment.method}"
        )
    effect = "serves without drafts" if method == MODEL_METHOD else "cannot draft with it"
    for rule in differences(of_target, of_draft):
        if rule.is_refused:
            raise UsageError(
                f"{name}: llama.cpp {effect}: {rule.field} is {rule.of_target} in "
                f"{target.source} and {rule.of_draft} in {draft.source} ({rule.reason})"
            )


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:  # noqa: ARG001
    dialect = _dialect(version, deployment.method)
    deployment, command, lost = plain_command(deployment)
    if deployment.k:
        if dialect.is_new:  # earlier builds translated drafts
            vocabulary_notes(deployment)
        command += _draft_flags(deployment, dialect)
        if deployment.simulated is not None:
            if not dialect.simulates:
                raise UsageError(
                    f"--simulate-acceptance: {dialect.name} of llama.cpp cannot simulate it; it "
                    "came with pull request 27711 (--engine-version 2026-09 or later)"
                )
            command += ["--spec-synth-rates", ",".join(f"{r:g}" for r in deployment.simulated)]
        lost += draft_notes(deployment)
    return exported(deployment, "llama_cpp", dialect.name, command, lost, hybrids=_HYBRIDS)


def plain_command(deployment: Deployment) -> tuple[Deployment, list[str], list[str]]:
    """The deployment with one K, the command that serves its target without drafts, and notes.

    The command names GGUF files after the models, which must be converted first.
    """
    target = deployment.target
    command = ["llama-server", MODEL_FLAGS[0], gguf_name(model_name(target))]
    lost = settings_lost(deployment)
    deployment, tiers_lost = deployment.flat()
    lost += tiers_lost
    if not target.is_gguf:
        lost.append(
            f"hub ids and folders: llama.cpp reads GGUF files; make {command[-1]}, and the "
            "drafter's file, with its convert_hf_to_gguf.py, or name existing files"
        )
    if target.revision:
        lost.append(f"revision {target.revision} of the target: convert that one")
    if deployment.dtype:
        measured = ", in which it was measured" if deployment.measured_with else ""
        lost.append(f"{deployment.dtype}{measured}: convert with that --outtype")
    return deployment, command, lost


def _dialect(version: str | None, method: str) -> _Dialect:
    first = _LATER.get(split_set(method)[0], _CHANGED)
    built = read_build(version, _CHANGED)
    if version is None:
        return _Dialect(f"builds since {first.day}", is_new=True)
    if isinstance(built, int) and _OLD_BUILD < built < _CHANGED.number:
        raise UsageError(
            f"--engine-version {version!r}: the flags changed between b{_OLD_BUILD} and "
            f"b{_CHANGED.number}; give the build's date, such as {_CHANGED.day}"
        )
    name = f"b{built}" if isinstance(built, int) else f"builds of {version.strip()}"
    return _Dialect(name, _CHANGED.is_in(built), _SIMULATING.is_in(built), first.is_in(built))


def _draft_flags(deployment: Deployment, dialect: _Dialect) -> list[str]:
    k = str(deployment.k)
    names = _KINDS if dialect.is_new else {**_KINDS, "string_match": _MODEL}
    kind = deployment.named("llama_cpp", names, _NEAREST, head="an eagle3 head")
    if dialect.is_new and not dialect.has_method:
        first = _LATER[split_set(deployment.method)[0]]
        deployment.refuse("llama_cpp", f"a build since {first.day}, such as b{first.number}")
    flags = []
    if deployment.drafter is not None:
        flags += [MODEL_FLAGS[1], gguf_name(model_name(deployment.drafter))]
    if dialect.is_new:
        is_set = len(deployment.row.parts) > 1
        of_model = min(deployment.k, deployment.whole("model_drafts")) if is_set else k
        flags += ["--spec-type", kind, "--spec-draft-n-max", str(of_model)]
        if set(deployment.row.parts) & {*_MODEL_KINDS}:
            # As in the measurement: its own defaults would also drop short drafts.
            flags += ["--spec-draft-n-min", "0", "--spec-draft-p-min", f"{deployment.p_min:g}"]
        for lookup in filter(None, map(_LOOKUPS.get, deployment.row.parts)):
            for flag, parameter in lookup.parameters.items():
                flags += [flag, str(deployment.setting(parameter))]
            flags += [lookup.k, k] if lookup.k else []
            flags += ["--spec-ngram-simple-min-hits", "1"] if lookup.kind == _LOOKUP else []
        return flags
    if kind == _LOOKUP:
        size = str(deployment.setting("max_ngram"))
        flags += ["--spec-type", kind, "--draft-max", k]
        return [*flags, "--spec-ngram-size-n", size, "--spec-ngram-size-m", k]
    if kind != _MODEL:
        raise UsageError(
            f"llama.cpp before {_CHANGED.day} has no {deployment.method}; nearest: draft_model, or "
            "a newer build"
        )
    return [*flags, "--draft-max", k, "--draft-min", "0", "--draft-p-min", f"{deployment.p_min:g}"]


def gguf_name(source: str) -> str:
    """`owner/Name` -> `Name.gguf`; the name of a GGUF file is not changed."""
    return source if source.endswith(".gguf") else f"{without_owner(source)}.gguf"


def draft_notes(deployment: Deployment) -> list[str]:
    """Notes on settings of the drafts that llama.cpp does not have."""
    lost = []
    if deployment.drafter is not None and deployment.drafter.revision:
        lost.append(f"revision {deployment.drafter.revision} of the drafter: convert that one")
    lost += deployment.tree_lost
    if "ngram" in deployment.row.parts:
        lost.append(
            f"min_ngram {deployment.setting('min_ngram')}: {_LOOKUP} looks up suffixes of "
            f"exactly {deployment.setting('max_ngram')} tokens"
        )
    if deployment.temperature > 0 and deployment.draws_drafts:
        lost.append(
            "rejection sampling: llama.cpp accepts a draft only if it equals the token it "
            "samples, so it accepts fewer above temperature 0"
        )
    return lost
