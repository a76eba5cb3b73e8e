"""ik_llama.cpp: a fork of llama.cpp, whose `llama-server` has other flags and streams no ids.

Sources: examples/server/ and common/ of ik-llama-cpp-python 0.1.5, whose server was run, and of the
repository on 2026-08-15. Since pull request 1908 of June 2026 drafts are one `--spec-type
mtp:n_max=3`, and `-mtp`, `--draft-max` and their like are refused.
`--engine-version` is a date (2026-05) or a build (b4557); a program is asked by its help.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.engines.deployment import (
    Deployment,
    Export,
    FirstBuild,
    exported,
    model_name,
    read_build,
)
from specbench.engines.served import llama_cpp
from specbench.engines.served.llama_cpp import (
    AUTOTUNE,
    MODEL_FLAGS,
    DraftTimings,
    TokenStep,
    draft_notes,
    gguf_name,
    help_of,
    plain_command,
    require_gguf_pair,
    server_command,
)
from specbench.engines.served_engine import (
    COUNTED_STREAM,
    DraftedRound,
    EngineProperties,
    StartCommand,
    StartOptions,
    ask_chat,
    counts_of_rounds,
    counts_of_sums,
    request_fields,
)
from specbench.errors import UsageError
from specbench.records import DraftConfig, Request, RequestCounts
from specbench.servers.response import Payload, StreamedResponse

if TYPE_CHECKING:
    from specbench.servers.client import Client

_NAME = "ik_llama_cpp"
# Pull requests 1261, 1270, 1595, 1908, 1970 and 2280.
_LOOKING_UP = FirstBuild(date(2026, 2, 13), 4192)
_MTP = FirstBuild(date(2026, 2, 22), 4216)
_TUNING = FirstBuild(date(2026, 4, 8), 4393)
_STAGES = FirstBuild(date(2026, 6, 4), 4557)
_FIRST = {
    "mtp": _MTP,
    "gemma4_mtp": _STAGES,
    "dflash": FirstBuild(date(2026, 6, 16), 4623),
    "dspark": FirstBuild(date(2026, 8, 10), 4813),
}


def _version_of(program: Path | None) -> str | None:
    """The program's build; if it was not made from a clone, the first day of a build with the
    flags in its help; None: unknown."""
    name = str(program or "llama-server")
    if number := re.search(r"version: (\d{4,})", help_of((name, "--version"))):
        return f"b{number[1]}"
    options = help_of((name, "--help"))
    signs = {"--spec-type SPEC": _STAGES, AUTOTUNE: _TUNING, "-mtp": _MTP}
    return next((str(first.day) for sign, first in signs.items() if sign in options), None)


def _fields_of_draft(draft: DraftConfig) -> dict[str, Any]:
    """examples/server/server-context.cpp. What looks n-grams up has its length from the start."""
    return {} if draft.method in _LOOKUPS else {"speculative.n_max": draft.k}


PROPERTIES = EngineProperties(
    start_s=5.0,
    ask_version=_version_of,
    read_command=llama_cpp.read_command,
    schemes_reach=16,
    fields_of_draft=_fields_of_draft,
)
COUNTERS = replace(  # its page has no counts of drafts
    llama_cpp.COUNTERS, engine=_NAME, marker="llamacpp:kv_cache_usage_ratio", is_of_model=False
)
LOG, CONFIG_NAME = llama_cpp.LOG, llama_cpp.CONFIG_NAME
facts = llama_cpp.facts


def launch(start: StartOptions) -> StartCommand:
    """As llama.cpp is started, with the model's own chat template."""
    return server_command(start, ("--jinja",))


class _Event(Payload):
    timings: DraftTimings | None = None


@dataclass(kw_only=True, slots=True)
class _IkStream(StreamedResponse):
    """A chat with one token per event. `usage` and draft counts are those after its round, also of
    tokens past the end of the text, and the finish reason is always "stop"."""

    steps: list[TokenStep] = field(default_factory=list)  # one per round
    num_shown: int = 0  # events with text of the last one

    def add(self, event: Mapping[str, Any]) -> None:
        timings, text = _Event.model_validate(event).timings, self.text
        metrics = timings and {**timings.model_dump(), "steps": self.steps}
        StreamedResponse.add(self, {**event, "metrics": metrics})
        known = self.steps[-1].num_tokens if self.steps else 0
        if timings and self.num_tokens is not None and self.num_tokens > known:
            drafts = timings.draft_n, timings.draft_n_accepted
            self.steps.append(TokenStep(self.num_tokens, *drafts))
            self.num_shown = 0
        self.num_shown += self.text != text

    def end(self) -> None:
        """Count the tokens of the last round up to the end of the text, which is not shown."""
        if not self.steps:
            return
        num_shown = (self.steps[-2].num_tokens if len(self.steps) > 1 else 0) + self.num_shown
        is_ended = num_shown < self.steps[-1].num_tokens
        self.num_tokens, self.num_total_tokens = num_shown + is_ended, None
        self.finish_reason = "stop" if is_ended else "length"


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Stream the response without ids, with the counts of each round.

    Its draft model repeats what it knows of the last answer if the same prompt comes twice in a
    row.
    """
    fields = {
        **request_fields(model, request),
        "top_k": request.sampling.top_k,
        "min_p": 0.0,
        "cache_prompt": request.keeps_prefixes,
        "timings_per_token": True,
        **COUNTED_STREAM,
    }
    stream = _IkStream()
    await ask_chat(client, request, fields, stream)
    stream.end()
    return stream


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:
    """Counts of each round; sums if a round showed no text."""
    if not answer.metrics or not k:
        return None
    steps: list[TokenStep] = answer.metrics["steps"]
    rounds, plain = list[DraftedRound](), TokenStep(1, 0, 0)
    for old, new in pairwise([plain, *steps]):
        num_drafted = new.num_drafted - old.num_drafted
        num_accepted = new.num_accepted - old.num_accepted
        if new.num_tokens - old.num_tokens - num_accepted > 1:
            last = steps[-1]
            return counts_of_sums(
                answer, num_accepted=last.num_accepted, num_drafted=last.num_drafted
            )
        if num_drafted:
            rounds.append(DraftedRound(num_drafted, num_accepted))
    num_overshot = steps[-1].num_tokens - (answer.num_tokens or 0)
    return counts_of_rounds(answer, rounds, k, num_overshot=num_overshot)


class _NgramStage(NamedTuple):
    """The parameters of a lookup by the key of its stage, and the key for K besides n_max."""

    kind: str
    parameters: Mapping[str, str]
    k: str | None = None


_MAPS = {"ngram_size_n": "key_size", "ngram_min_hits": "min_hits"}
_LOOKUPS = {
    "ngram": _NgramStage("ngram-simple", {"ngram_size_n": "max_ngram"}, "ngram_size_m"),
    "ngram_map_k": _NgramStage("ngram-map-k", _MAPS, "ngram_size_m"),
    "ngram_map_k4v": _NgramStage("ngram-map-k4v", _MAPS, "ngram_size_m"),
    "ngram_mod": _NgramStage("ngram-mod", {"ngram_size_n": "match_length", "n_min": "min_drafts"}),
    "ngram_cache": _NgramStage("ngram-cache", {}),
}
_KINDS = {
    "draft_model": "draft",
    "string_match": "draft",  # it translates drafts of another vocabulary
    "mtp": "mtp",
    "gemma4_mtp": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
    **{method: lookup.kind for method, lookup in _LOOKUPS.items()},
}
# Earlier flags by the keys of a stage.
_OLD_FLAGS = {
    "n_max": "--draft-max",
    "n_min": "--draft-min",
    "p_min": "--draft-p-min",
    "ngram_size_n": "--spec-ngram-size-n",
    "ngram_size_m": "--spec-ngram-size-m",
    "ngram_min_hits": "--spec-ngram-min-hits",
}


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """common/speculative.cpp translates drafts of a model with another vocabulary."""
    require_gguf_pair(deployment)
    if not deployment.unequal_vocab_sizes and not deployment.different_ids:
        return []
    return ["ik_llama.cpp translates drafts between the two vocabularies, which costs time"]


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:  # noqa: ARG001
    """The command names GGUF files after the models, as llama.cpp's does."""
    built = read_build(version, _STAGES)
    deployment, command, lost = plain_command(deployment)
    if deployment.simulated is not None:
        raise UsageError("--simulate-acceptance: ik_llama.cpp cannot simulate it")
    if deployment.k:
        deployment = deployment.noting(vocabulary_notes(deployment))
        command += _draft_flags(deployment, built)
        lost += draft_notes(deployment)
        if deployment.drafter is not None:
            lost.append("the context: add --ctx-size N; without it the server does not draft")
    newest = max(_STAGES, _FIRST.get(deployment.method, _STAGES))
    name = f"builds since {newest.day}" if version is None else f"builds of {version.strip()}"
    return exported(deployment, _NAME, name, command, lost)


def _draft_flags(deployment: Deployment, built: date | int | None) -> list[str]:
    kind, method = deployment.named(_NAME, _KINDS), deployment.method
    if not (first := _FIRST.get(method, _LOOKING_UP)).is_in(built):
        deployment.refuse(_NAME, f"a build since {first.day}, such as b{first.number}")
    k = str(deployment.k)
    keys = {"n_max": k}
    if lookup := _LOOKUPS.get(method):
        keys |= {key: str(deployment.setting(name)) for key, name in lookup.parameters.items()}
        keys |= {lookup.k: k} if lookup.k else {}
    else:
        keys |= {"n_min": "0", "p_min": f"{deployment.p_min:g}"}
    flags = []
    if deployment.drafter is not None:
        flags += [MODEL_FLAGS[1], gguf_name(model_name(deployment.drafter))]
    if _STAGES.is_in(built):
        stage = ",".join(f"{key}={value}" for key, value in keys.items())
        return [*flags, "--spec-type", f"{kind}:{stage}"]
    flags += ["-mtp"] if kind == "mtp" else ["--spec-type", kind] if lookup else []
    for key, value in keys.items():
        flags += [_OLD_FLAGS[key], value]
    return flags


def adaptive(
    deployment: Deployment, version: str | None, program: Path | None
) -> dict[str, tuple[str, ...]]:
    """A bandit tries lengths from 1 to 16 or K, whichever is more, and keeps the fastest
    (common/spec-tuner.cpp)."""
    built = read_build(version or _version_of(program), _STAGES)
    if not _TUNING.is_in(built):
        raise UsageError(f"{AUTOTUNE} of ik_llama.cpp needs a build since {_TUNING.day}")
    return {"autotune": (AUTOTUNE,)} if deployment.method in _KINDS else {}
