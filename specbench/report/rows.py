"""Rows to share: each answer of a run, with what it holds for, in one line.

A row is a JSON object, ROW, or a line of a Markdown table with the columns of
`importers/specbench_row.py`, which reads both. A fact that the run does not show is null.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from specbench.doc import Doc, JsonObject, Key, Maybe
from specbench.errors import ModelError
from specbench.files.gguf import gguf_of
from specbench.files.model import format_name, open_model
from specbench.files.model_spec import ModelSpec
from specbench.importers.specbench_row import COLUMNS, MARK, VERSION, cells
from specbench.inputs.stored_targets import pairings_of
from specbench.metrics.aggregate import usable_sessions
from specbench.metrics.registry import all_metrics
from specbench.metrics.server_facts import facts_of
from specbench.records import (
    NO_DRAFTER,
    CellSummary,
    Decision,
    Interval,
    Kind,
    Reason,
    ServerRecord,
    SpeedupVerdict,
)
from specbench.records.keys import flat_keys
from specbench.report.document import Document
from specbench.settings.words import BUILTIN, TRANSFORMERS, limits_text
from specbench.words.answers import decision_sentence, text

# Names of flags and settings of servers.
_KV_TYPE = ("kv_cache_dtype", "cache_dtype", "--kv-cache-dtype")
_K_TYPE, _V_TYPE = ("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv")
_OFFLOADED, _DEVICE = ("-ngl", "--gpu-layers", "--n-gpu-layers"), ("-dev", "--device")
_GGUF_FILE = "gguf_file"
_CONTEXT = ("n_ctx", "max_model_len", "context_length")
_LLAMA_CPP, _ITS_KV_TYPE = "llama_cpp", "f16"  # its default


class _RowModel(NamedTuple):
    """A model of a row; None: unknown."""

    name: str
    quantization: str | None
    hash: str | None


_ACCEPTANCE = ("acceptance_rate", "mean_acceptance_length", "acceptance_rate_per_position")
_SYNTHETIC = "acceptance was simulated or the weights are dummies"
_WITHOUT_ANSWER = (
    *(Kind.NOTHING_VALID, Kind.ALL_INVALID, Kind.NEVER_DRAFTED),
    Kind.CONFIRMATION_INVALID,
)
_NO_MODEL = _RowModel(NO_DRAFTER, NO_DRAFTER, NO_DRAFTER)  # of a method that drafts without one


class _RowSource:
    """A decision with its cell, its models and its servers."""

    def __init__(self, document: Document, decision: Decision) -> None:
        self.document, self.decision, self.key = document, decision, decision.leader
        self.run, self.condition = document.run, decision.leader.condition
        in_process = (BUILTIN, TRANSFORMERS)
        self.is_in_process = self.condition.engine in in_process and not document.imported

    @cached_property
    def cell(self) -> CellSummary:
        return next(cell for cell in self.document.cells if cell.key == self.key)

    @cached_property
    def servers(self) -> list[ServerRecord]:
        """The sessions of its cell that count."""
        at, draft = self.condition, self.key.draft
        cell = (at.target, at.engine, at.variant, draft.drafter, draft.method, draft.k)
        sessions = usable_sessions(self.document.servers).values()
        return [
            s
            for s in sessions
            if cell
            == (s.target, s.engine, s.variant, s.drafter, s.method, s.num_speculative_tokens)
        ]

    @cached_property
    def settings(self) -> dict[str, str]:
        """What its servers report and the arguments they got, without addresses and folders."""
        facts: dict[str, dict[str, None]] = {}
        for name, value in (fact for server in self.servers for fact in facts_of(server)):
            facts.setdefault(name, {})[value] = None
        return {name: _joined(values) or "" for name, values in facts.items()}

    @property
    def model(self) -> _RowModel | None:
        return self._weights(
            self.condition.target,
            {t.name: t.model for t in pairings_of(self.run).targets},
            _GGUF_FILE,
        )

    @property
    def draft_model(self) -> _RowModel | None:
        of_target = (t for t in pairings_of(self.run).targets if t.name == self.condition.target)
        drafters = {d.name: d.model for t in of_target for d in t.drafters}
        return self._weights(self.key.draft.drafter, drafters, f"draft_{_GGUF_FILE}")

    def _weights(
        self, name: str, specs: Mapping[str, ModelSpec | None], setting: str
    ) -> _RowModel | None:
        """The model as it was loaded or served, or else as its files are here; None: unknown."""
        spec = specs.get(name)
        loaded = {model for model in self.document.models if model.name == name}
        named = (spec.folder.name if spec.folder else spec.source) if spec else name
        served = {file for server in self.servers if (file := server.settings.get(setting))}
        if len(served) == 1:
            quantization, _, digest = served.pop().partition(" ")
            return _RowModel(named, quantization, f"gguf-header:{digest}")
        if len(loaded) == 1:
            (model,) = loaded
            packed = spec.quantization if spec else None
            return _RowModel(model.source, packed or model.dtype, f"weights:{model.content_sha256}")
        if spec is None:
            return _NO_MODEL if name in specs else None
        try:
            return self._of_files(named, spec)
        except (ModelError, OSError):  # they are elsewhere
            return _RowModel(named, spec.quantization, None)

    def _of_files(self, name: str, spec: ModelSpec) -> _RowModel:
        """A model by its files, unless they were written after the run began."""
        if spec.is_gguf:
            header = gguf_of(spec)
            if self._is_later(header.path):
                return _RowModel(name, None, None)
            return _RowModel(name, header.quantization, f"gguf-header:{header.header_sha256}")
        files = open_model(spec)
        config = files.folder / "config.json"
        if self._is_later(config):
            return _RowModel(name, spec.quantization, None)
        stored, dtype = files.field("quantization_config"), files.field("dtype")
        packed = spec.quantization or (None if stored is None else format_name(stored))
        digest = hashlib.sha256(config.read_bytes()).hexdigest()
        return _RowModel(name, packed or (dtype and str(dtype)), f"config.json:{digest}")

    def _is_later(self, file: Path) -> bool:
        began = datetime.fromisoformat(self.run.environment.created_at)
        return file.stat().st_mtime > began.timestamp()

    @property
    def engine_version(self) -> str | None:
        packages = self.run.environment.packages
        if not self.is_in_process:
            return _joined(server.version for server in self.servers)
        if self.condition.engine == BUILTIN:
            torch = f", torch {packages['torch']}" if "torch" in packages else ""
            return f"specbench {self.run.environment.specbench_version}{torch}"
        version = packages.get("transformers")
        return f"transformers {version}" if version else None

    @property
    def backend(self) -> str | None:
        """Of a server it follows from its program's devices, if it was asked for them."""
        device = self.run.environment.device.partition(":")[0]
        if self.is_in_process:
            return device or None
        is_off = self._setting(*_OFFLOADED) == "0" or self._setting(*_DEVICE) == "none"
        devices = "none" if is_off else self._setting("devices") or ""
        kind = re.match("[a-z]+", devices.lower())
        return kind and ("cpu" if kind[0] == "none" else kind[0])

    @property
    def machine(self) -> str | None:
        """The GPU, or the CPU if there is none; unknown of a server that was running."""
        is_here = self.servers and not any(server.addresses for server in self.servers)
        machines = (self.run.environment, *self.document.sessions)
        is_known = self.is_in_process or is_here
        return _joined(machine.processor for machine in machines) if is_known else None

    @property
    def num_gpus(self) -> int | None:
        return max((s.num_gpus for s in self.servers if s.num_gpus is not None), default=None)

    @property
    def kv_type(self) -> str | None:
        if self.is_in_process:
            return self.condition.dtype
        is_ours = self.servers and all(server.command for server in self.servers)
        usual = _ITS_KV_TYPE if is_ours and self.condition.engine == _LLAMA_CPP else None
        sides = [self._setting(*names) or usual for names in (_K_TYPE, _V_TYPE)]
        found = self._setting(*_KV_TYPE)
        if found == "auto":  # the dtype of a model that the server did not report
            return None
        return found or (_joined(filter(None, sides)) if all(sides) else None)

    @property
    def context_limit(self) -> int | None:
        limit = self._setting(*_CONTEXT) or ""
        return int(limit) if limit.isdecimal() else None

    def _setting(self, *names: str) -> str | None:
        return next((self.settings[name] for name in names if name in self.settings), None)

    @property
    def limits(self) -> str | None:
        slo = self.run.settings.load.slo
        return limits_text(slo) if slo else None

    @property
    def num_prompts(self) -> int:
        return len(self.document.prompts.get(self.key, ())) or self.cell.num_prompts

    @property
    def invalid_reasons(self) -> list[str]:
        """Those of the cell and of its answer; of a synthetic run that it is one."""
        unanswered = (r for r in self.decision.answer if r.kind in _WITHOUT_ANSWER)
        reasons: Iterable[Reason] = self.cell.invalid_reasons or unanswered
        return [*([_SYNTHETIC] if self.decision.is_synthetic else []), *map(text, reasons)]


def _joined(values: Iterable[str]) -> str | None:
    """Different values in one text; None without one."""
    return " | ".join(dict.fromkeys(filter(None, values))) or None


_HASH = (
    "`weights:`, `gguf-header:` or `config.json:` with its sha256; null if the file is not here "
    "or was written after the run began"
)
_MODEL = JsonObject(
    "RowModel",
    "A model of a row.",
    {
        "name": Key(str, Doc("its file, folder or hub id; `none`: the method has no model")),
        "quantization": Key(
            str | None, Doc("of most weights of a GGUF file, else its format or dtype")
        ),
        "hash": Key(str | None, Doc(_HASH, is_text=True)),
    },
)
ROW = JsonObject(
    "Row",
    "An answer of a run with what it holds for: a line of `specbench report --row --json`.",
    {
        MARK: Key(Literal[1], "version of this object", lambda _: VERSION),
        **flat_keys(lambda answer: answer.key),
        "model": Key(Maybe(_MODEL), "the target; null if unknown, as all below"),
        "draft_model": Key(Maybe(_MODEL), "the drafter's own model"),
        "engine_version": Key(str | None, "build of the engine, with its library"),
        "backend": Key(str | None, "`cpu`, `cuda`, `vulkan` or another; null for most servers"),
        "machine": Key(str | None, "its NVIDIA GPU, or else its CPU"),
        "num_gpus": Key(int | None, Doc("GPUs that the server ran on", "GPUs")),
        "kv_type": Key(str | None, "dtype of the KV cache; of keys and values if they differ"),
        "context_limit": Key(
            int | None, Doc("most tokens of a request, as the server reports", "tokens")
        ),
        "settings": Key(Mapping[str, str], "settings and arguments of the server"),
        "verdict": Key(
            SpeedupVerdict,
            "`faster`, `no speedup` or `undecided`",
            lambda answer: answer.decision.verdict,
        ),
        "speedup": Key(
            Interval | None,
            Doc("of decoding, as the answer quotes it", "x"),
            lambda answer: None if answer.limits else answer.decision.speedup,
        ),
        "end_to_end": Key(
            Interval | None,
            Doc("of whole requests", "x"),
            lambda answer: answer.decision.end_to_end,
        ),
        "limits": Key(str | None, "limits of the SLO by which K was chosen; null without one"),
        "goodput": Key(
            Interval | None,
            Doc("requests per second within `limits` / those at K = 0; null without them", "x"),
            lambda answer: answer.decision.speedup if answer.limits else None,
        ),
        **{name: all_metrics()[name].key(attrgetter("cell")) for name in _ACCEPTANCE},
        "num_prompts": Key(int, Doc("behind the speedup", "prompts")),
        "num_requests": Key(
            int,
            Doc("of the cell in the exploration phase", "requests"),
            lambda answer: answer.cell.num_requests,
        ),
        "workload_sha256": Key(
            str | None,
            Doc("hash of the prompts' file", is_text=True),
            lambda answer: answer.run.workload_sha256.get(answer.condition.workload),
        ),
        "valid": Key(
            bool,
            "whether the measurement may support the answer",
            lambda answer: not answer.invalid_reasons,
        ),
        "invalid_reasons": Key(tuple[str, ...], "why not; empty if it may"),
        "text": Key(
            str,
            Doc("the answer in words", is_text=True),
            lambda answer: decision_sentence(answer.decision),
        ),
        "run_id": Key(str, "the run's id", lambda answer: answer.run.run_id),
        "measured_at": Key(str, "ISO 8601, UTC", lambda answer: answer.run.environment.created_at),
        "specbench_version": Key(
            str,
            "that measured it",
            lambda answer: answer.run.environment.specbench_version,
        ),
    },
)


def rows(document: Document) -> Iterator[dict[str, Any]]:
    """A row per answer of a run, in the order of the report; StoreError for damaged pairings."""
    for decision in document.decisions:
        yield ROW.of(_RowSource(document, decision))


def table(shared: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a Markdown table of rows."""
    for line in (list(COLUMNS), ["---"] * len(COLUMNS), *map(cells, shared)):
        yield f"| {' | '.join(line)} |"
