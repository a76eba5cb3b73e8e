"""What figures of a serving engine belong to: its version, settings and arguments, its GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specbench.metrics.aggregate import usable_sessions
from specbench.records import ServerRecord

_PREFIX = "server "  # of the name of every fact

# Other weights in memory, other arithmetic or other GPUs: seconds then say nothing of the engine.
# As settings and arguments are called in vLLM, SGLang and llama.cpp, `_` and `-` being the same.
_LIKE_HARDWARE = {
    *("dtype", "torch-dtype", "quantization", "model-ftype", "load-format"),
    *("kv-cache-dtype", "cache-dtype", "cache-type-k", "cache-type-v"),
    *("tensor-parallel-size", "tp", "tp-size", "pipeline-parallel-size", "pp", "pp-size"),
    *("data-parallel-size", "dp", "dp-size", "enable-expert-parallel", "ep-size"),
    *("n-gpu-layers", "gpu-layers", "ngl", "split-mode", "tensor-split", "device"),
}
# Where it runs and what it calls the model; what it found out and was not told.
_NOT_ABOUT_FIGURES = {
    *("host", "port", "model", "m", "model-path", "served-model-name", "tokenizer", "alias"),
    *("api-key", "log-file", "download-dir", "seed", "random-seed"),
    *("p", "publish", "v", "volume", "mount", "name", "rm", "e", "env", "network"),  # docker's
    "w",  # Python's
    *("num-gpu-blocks", "num-cpu-blocks", "kv-cache-size-tokens", "kv-cache-memory-bytes"),
}
_ABOUT_DRAFTS = ("spec", "draft")  # they are in the cell's key


class ServedFacts(NamedTuple):
    """`hardware`: must be the same where seconds are compared; `software`: is reported."""

    hardware: Mapping[str, str]
    software: Mapping[str, str]


def served_facts(servers: Sequence[ServerRecord]) -> ServedFacts:
    """Facts of each engine and target, from its sessions without speculation where there are any.

    A fact that differs between sessions has all of its values.
    """
    hardware: dict[str, list[str]] = {}
    software: dict[str, list[str]] = {}
    for server in _telling(servers):
        for name, value in _facts(server):
            is_hardware = name == "GPUs" or _plain(name) in _LIKE_HARDWARE
            name = f"{_PREFIX}{server.engine} of {server.target}, {name}"
            values = (hardware if is_hardware else software).setdefault(name, [])
            if value not in values:
                values.append(value)
    return ServedFacts(
        *({name: " | ".join(own[name]) for name in own} for own in (hardware, software))
    )


def is_of_a_server(name: str) -> bool:
    """Whether a fact of that name is one of these."""
    return name.startswith(_PREFIX)


def _telling(servers: Sequence[ServerRecord]) -> Iterator[ServerRecord]:
    sound = usable_sessions(servers).values()
    plain = {(s.engine, s.target) for s in sound if not s.num_speculative_tokens}
    for server in sound:
        if not server.num_speculative_tokens or (server.engine, server.target) not in plain:
            yield server


def _facts(server: ServerRecord) -> Iterator[tuple[str, str]]:
    yield "version", server.version
    yield "prefix cache", server.prefix_cache
    if server.num_gpus is not None:
        yield "GPUs", str(server.num_gpus)
    for name, value in (*server.settings.items(), *_arguments(server.command)):
        is_about_drafts = any(word in name for word in _ABOUT_DRAFTS)
        if _plain(name) not in _NOT_ABOUT_FIGURES and not is_about_drafts:
            yield name, _without_folders(value)


def _arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values; `given` for one without. What is before the first is a program."""
    flag = ""
    values: list[str] = []
    for word in (*command, "-"):  # which ends the last flag's values
        if _is_flag(word) or word == "-":
            if flag:
                yield flag, " ".join(values) or "given"
            flag, _, value = word.partition("=")
            values = [value] if value else []
        else:
            values.append(word)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word != "-"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def _without_folders(value: str) -> str:
    """A path's last part: the same files lie elsewhere on another machine."""
    is_path = "/" in value and not any(c in value for c in ' {["')
    return value.rstrip("/").rpartition("/")[2] if is_path else value
