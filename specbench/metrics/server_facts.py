"""Facts about servers that figures depend on, and the facts in which two servers differ.

The gate compares those of two runs, and a cell those of its server and of its baseline's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from specbench.doc import Doc
from specbench.records import ServerRecord

VERSION = "version"
ABSENT = "absent"
DRAFT_FIELDS = "draft fields of requests"  # a setting of servers whose requests set K
_UNKNOWN = {ABSENT, "", "unknown"}  # as a server's fact; an argument is given or absent

# Settings and arguments of vLLM, SGLang and llama.cpp, with `-` for `_`, that change the weights in
# memory, the arithmetic or the GPUs: seconds under different ones do not compare engines, or K.
_LIKE_HARDWARE = {
    *("dtype", "torch-dtype", "quantization", "model-ftype", "load-format", "gguf-file"),
    *("kv-cache-dtype", "cache-dtype", "cache-type-k", "cache-type-v", "ctk", "ctv"),
    *("tensor-parallel-size", "tp", "tp-size", "pipeline-parallel-size", "pp", "pp-size"),
    *("data-parallel-size", "dp", "dp-size", "enable-expert-parallel", "ep-size"),
    *("n-gpu-layers", "gpu-layers", "ngl", "split-mode", "tensor-split", "device", "devices"),
}
# Addresses, names of the model, and what the server computed itself.
_NOT_ABOUT_FIGURES = {
    *(
        "host",
        "port",
        "dist-init-addr",
        "rpc",
        "data-parallel-address",
        "model",
        "m",
        "model-path",
        "served-model-name",
        "tokenizer",
        "alias",
    ),
    *("api-key", "log-file", "download-dir", "seed", "random-seed"),
    *("p", "publish", "v", "volume", "mount", "name", "rm", "e", "env", "network"),  # docker's
    "w",  # Python's
    *("num-gpu-blocks", "num-cpu-blocks", "kv-cache-size-tokens", "kv-cache-memory-bytes"),
}
# `auto` is the dtype of the model: for a checkpoint with a quantized KV cache, vLLM and SGLang
# replace it by the cache's.
_CACHE_DTYPES = {"cache-dtype", "kv-cache-dtype"}
_DTYPES = {"float16", "bfloat16", "float32"}  # of a model, with these names in vLLM and SGLang
_ABOUT_DRAFTS = ("spec", "draft")  # they are in the cell's key


class RunDifference(NamedTuple):
    """A fact that differs between baseline and candidate."""

    name: Annotated[str, Doc("a word of `--allow-different`, or the name of a fact")]
    baseline: Annotated[str, Doc("its text in the baseline")]
    candidate: Annotated[str, Doc("its text in the candidate")]

    @property
    def text(self) -> str:
        return f"{self.name}: {self.baseline} in the baseline, {self.candidate} in the candidate"


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[RunDifference]:
    """Facts that differ, or that only one side has. Whether `auto` differs from another dtype of
    the KV cache is unknown if the server does not report the model's dtype."""
    for name in dict.fromkeys((*before, *after)):
        values = {before.get(name), after.get(name)}
        is_cache = _plain(name.rpartition(", ")[2]) in _CACHE_DTYPES
        is_unknown = is_cache and "auto" in values and values <= {"auto", *_DTYPES}
        if len(values) > 1 and not is_unknown:
            yield RunDifference(name, before.get(name, ABSENT), after.get(name, ABSENT))


def differences_in(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[RunDifference, ...]:
    """Facts in which two servers of one comparison differ; a fact that one of them does not report
    is unknown, and no difference."""
    return tuple(
        change
        for change in changes_of(before, after)
        if change.name.startswith("-") or _UNKNOWN.isdisjoint(change[1:])
    )


def is_like_hardware(name: str) -> bool:
    """Whether seconds compare nothing but this fact if it differs, such as a dtype."""
    return name == "GPUs" or _plain(name) in _LIKE_HARDWARE


def named_facts(
    *,
    version: str,
    prefix_cache: str,
    settings: Mapping[str, str],
    command: Sequence[str] = (),
    num_gpus: int | None = None,
    is_of_k: bool = True,
) -> Iterator[tuple[str, str]]:
    """The facts of a server; `is_of_k`: K explains the arguments about drafts, which are left out,
    as the settings about them always are."""
    yield VERSION, version
    yield "prefix cache", prefix_cache
    if num_gpus is not None:
        yield "GPUs", str(num_gpus)
    dtype = settings.get("dtype") or dict(arguments(command)).get("--dtype", "auto")
    cache_dtypes = {"auto": dtype if dtype in _DTYPES else "auto", "bf16": "bfloat16"}
    for name, value in (*settings.items(), *arguments(command)):
        is_explained = is_about_drafts(name) and (is_of_k or name in settings)
        if _plain(name) in _CACHE_DTYPES:
            value = cache_dtypes.get(value, value)
        if _plain(name) not in _NOT_ABOUT_FIGURES and not is_explained:
            yield name, without_folders(value)


def facts_of(server: ServerRecord, *, is_of_k: bool = True) -> Iterator[tuple[str, str]]:
    """The facts of a session."""
    return named_facts(
        version=server.version,
        prefix_cache=server.prefix_cache,
        settings=server.settings,
        command=server.command,
        num_gpus=server.num_gpus,
        is_of_k=is_of_k,
    )


def session_differences(
    baseline: Iterable[ServerRecord], sessions: Iterable[ServerRecord]
) -> tuple[RunDifference, ...]:
    """Facts besides K in which the sessions of a cell differ from those of its baseline; none for
    K = 0, which has no baseline."""
    sides = []
    for servers in (baseline, sessions):
        values: dict[str, set[str]] = {}
        for server in servers:
            for name, value in (("model", without_folders(server.model)), *facts_of(server)):
                values.setdefault(name, set()).add(value)
        sides.append({name: " | ".join(sorted(values[name])) for name in values})
    return differences_in(*sides) if all(sides) else ()


def is_about_drafts(name: str) -> bool:
    """Whether a setting or an argument is about drafts."""
    return any(word in name for word in _ABOUT_DRAFTS)


def arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, or `given`; words before the first flag are skipped."""
    flag = ""
    values: list[str] = []
    for word in (*command, "-"):  # "-" ends the values of the last flag
        if word.startswith("-") and not word[1:2].isdigit():
            if flag:
                yield flag, " ".join(values) or "given"
            flag, _, value = word.partition("=")
            values = [value] if value else []
        else:
            values.append(word)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def without_folders(value: str) -> str:
    """The text with the last part of each path: another machine has its files elsewhere."""
    return re.sub(r"""[^\s"'{}\[\],=]*/(?=[^\s"'{}\[\],=])""", "", value).replace("/", "")
