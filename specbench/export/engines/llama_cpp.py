"""llama.cpp: `llama-server`, whose dialect changed with pull request 22673 of May 2026.

Since then a draft model drafts only where --spec-type says how; before, --model-draft alone did,
and --spec-type knew the kinds without a model. Drafts of another vocabulary were translated then
and are refused by later builds. `--engine-version` is a date (2026-04) or a
build (b9235) as `llama-server --version` prints it.
"""

import re
from datetime import date
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.export.deployment import (
    PAD,
    SMALL_MODEL,
    Deployment,
    Export,
    exported,
    model_name,
    settings_lost,
)

CONFIG_NAME = None

_CHANGED = date(2026, 5, 16)  # pull request 22673 merged
_NEW_BUILD, _OLD_BUILD = 9235, 9000  # known to be after and before it
MODEL_FLAGS = ("--model", "--model-draft")
_MODEL, _LOOKUP = "draft-simple", "ngram-simple"
_KINDS = {
    "draft_model": _MODEL,
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "ngram": _LOOKUP,
}
_NEAREST = {
    "suffix": "ngram; ngram-map-k4v also weighs continuations by how often they came",
    "previous_turn": "ngram; ngram-mod also remembers earlier answers",
    "string_match": (
        f"{SMALL_MODEL}, or a build that translates drafts (--engine-version 2026-04)"
    ),
}
_MAX_DIFFERENCE, _FIRST_COMPARED = 128, 5  # of vocab_size; id whose token is compared


class _Dialect(NamedTuple):
    name: str
    is_new: bool


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """common/speculative.cpp compares sizes and tokens; if they differ too much, the server logs
    an error and serves without drafts."""
    target, draft = deployment.vocab_sizes or (0, 0)
    compared = range(_FIRST_COMPARED, min(target, draft))
    if abs(target - draft) > _MAX_DIFFERENCE:
        raise UsageError(
            f"{deployment.unequal_vocab_sizes}: llama.cpp serves without drafts if they are more "
            f"than {_MAX_DIFFERENCE} apart; {PAD}"
        )
    if ids := [i for i in deployment.different_ids if i in compared]:
        raise UsageError(f"llama.cpp serves without drafts, as the token of id {ids[0]} differs")
    return []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:  # noqa: ARG001
    """Models are GGUF files: the command names them after the models, to be converted first."""
    dialect = _dialect(version)
    target = deployment.target
    command = ["llama-server", MODEL_FLAGS[0], _gguf(model_name(target))]
    lost = [
        *settings_lost(deployment),
        *deployment.tiers_lost,
        f"hub ids and folders: llama.cpp reads GGUF files; make {command[-1]} with its "
        "convert_hf_to_gguf.py (the drafter's likewise), or name one that you have",
    ]
    deployment = deployment.flat
    if target.revision:
        lost.append(f"revision {target.revision} of the target: convert that one")
    if deployment.dtype:
        measured = ", in which it was measured" if deployment.measured_with else ""
        lost.append(f"{deployment.dtype}{measured}: convert with that --outtype")
    if deployment.k:
        if dialect.is_new:  # earlier builds translated drafts
            vocabulary_notes(deployment)
        command += _draft_flags(deployment, dialect)
        lost += _lost(deployment)
    return exported(deployment, "llama_cpp", dialect.name, command, lost)


def _dialect(version: str | None) -> _Dialect:
    if version is None:
        return _Dialect("builds since 2026-05-16", is_new=True)
    if match := re.fullmatch(r"b?(\d{4,6})", version.strip()):
        build = int(match[1])
        if _OLD_BUILD < build < _NEW_BUILD:
            raise UsageError(
                f"--engine-version {version!r}: the flags changed between b{_OLD_BUILD} and "
                f"b{_NEW_BUILD}; give the build's date, such as 2026-05-16"
            )
        return _Dialect(f"b{build}", is_new=build >= _NEW_BUILD)
    match = re.fullmatch(r"(\d{4})-(\d{2})(?:-(\d{2}))?", version.strip())
    try:
        built = date(*(int(part or 1) for part in match.groups())) if match else None
    except ValueError:
        built = None
    if built is None:
        raise UsageError(
            f"--engine-version {version!r}: expected a date such as 2026-04 or a build such as "
            f"b{_NEW_BUILD} (llama-server --version)"
        )
    return _Dialect(f"builds of {version.strip()}", is_new=built >= _CHANGED)


def _draft_flags(deployment: Deployment, dialect: _Dialect) -> list[str]:
    k = str(deployment.k)
    names = _KINDS if dialect.is_new else {**_KINDS, "string_match": _MODEL}
    kind = deployment.named("llama_cpp", names, _NEAREST, head="an eagle3 head")
    flags = []
    if deployment.drafter is not None:
        flags += [MODEL_FLAGS[1], _gguf(model_name(deployment.drafter))]
    # Every round drafts K, as it was measured: no draft is given up for being unlikely.
    if dialect.is_new:
        flags += ["--spec-type", kind, "--spec-draft-n-max", k]
        if kind == _LOOKUP:
            size = str(deployment.setting("max_ngram"))
            flags += ["--spec-ngram-simple-size-n", size, "--spec-ngram-simple-size-m", k]
            return [*flags, "--spec-ngram-simple-min-hits", "1"]
        return [*flags, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
    if kind == _LOOKUP:
        size = str(deployment.setting("max_ngram"))
        flags += ["--spec-type", kind, "--draft-max", k]
        return [*flags, "--spec-ngram-size-n", size, "--spec-ngram-size-m", k]
    if kind != _MODEL:
        raise UsageError(
            f"llama.cpp before {_CHANGED} has no {deployment.method}; nearest: draft_model, or a "
            "newer build"
        )
    return [*flags, "--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]


def _gguf(source: str) -> str:
    """`owner/Name` -> `Name.gguf`; a file that is GGUF already stays."""
    return source if source.endswith(".gguf") else f"{source.rstrip('/').rsplit('/', 1)[-1]}.gguf"


def _lost(deployment: Deployment) -> list[str]:
    lost = []
    if deployment.drafter is not None and deployment.drafter.revision:
        lost.append(f"revision {deployment.drafter.revision} of the drafter: convert that one")
    lost += deployment.tree_lost
    if deployment.method == "ngram":
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
