"""The key of a cell: a draft configuration under a condition, and the axes of both.

In files and tables a key is flat, one entry per axis. Here it has two parts, because cells that
are compared share their condition. A new axis is a field of `Condition` or `DraftConfig` and a
row of AXES: ids, files, columns, `check --allow-different` and sentences follow from it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, get_type_hints

from pydantic_core import SchemaSerializer, core_schema

from specbench.doc import Doc, Key, docs_of
from specbench.settings import BUILTIN, SERVED, TRANSFORMERS

# A length has `most`, the largest number of draft tokens per round; a `label`; a text with the name
# K; its part of ids of cells; and an `order` with the simpler one first.


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same K in every round; 0: no draft tokens."""

    most: int

    @property
    def label(self) -> str:
        return str(self.most)

    @property
    def named(self) -> str:
        return f"K={self.most}"

    @property
    def id(self) -> str:
        return f"k{self.most}"

    @property
    def order(self) -> tuple[int, int]:
        return 0, self.most


@dataclass(frozen=True, slots=True)
class Auto:
    """K is chosen in every round, up to `most`."""

    most: int

    label: ClassVar[str] = "auto"
    named: ClassVar[str] = "auto"
    id: ClassVar[str] = "kauto"

    @property
    def order(self) -> tuple[int, int]:
        return 1, self.most


Length = Fixed | Auto


def ranges(numbers: Sequence[int]) -> str:
    """Numbers with consecutive ones joined: 1, 3..5, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def lengths(all_lengths: Iterable[Length]) -> str:
    """Draft lengths, each once: `0..4, 8, auto`."""
    ordered = sorted(set(all_lengths), key=lambda length: length.order)
    fixed = ranges([length.most for length in ordered if isinstance(length, Fixed)])
    adaptive = (length.label for length in ordered if not isinstance(length, Fixed))
    return ", ".join(filter(None, dict.fromkeys((fixed, *adaptive))))


REQUIRED = object()  # the default of an axis that every file has


@dataclass(frozen=True, slots=True)
class Axis:
    """One entry of a flat key: a fact by which cells differ."""

    path: str  # of its attribute in a key
    meaning: str  # of its column
    unit: str = ""
    low: float | None = None  # the smallest value, as in `Doc`
    in_id: str = ""  # its part of an id, formatted with `key`; left out at the default
    words: str = ""  # for sentences, formatted with `at`, a condition; "": the value
    usual: str = ""  # for sentences, at the default
    # Words of --allow-different under which it may differ; each names the first axis that has it.
    allowed_by: tuple[str, ...] = ()
    default: Any = REQUIRED  # the value if a file has no such entry

    def of(self, key: Any) -> Any:
        return attrgetter(self.path)(key)

    def in_words(self, at: Any) -> str:
        """The value under a condition, in words."""
        value = getattr(at, self.path.removeprefix("condition."))
        words = self.usual if value == self.default else self.words.format(at=at)
        return words or str(value)


# In the order of files and of columns.
AXES: Mapping[str, Axis] = {
    "pairing": Axis("pairing", "`target/drafter`; of K = 0 the bare target", in_id="{key.pairing}"),
    "target": Axis("condition.target", "name of the target", allowed_by=("target",)),
    "drafter": Axis(
        "draft.drafter", "name of the drafter; `none` at K = 0", allowed_by=("drafter",)
    ),
    "workload": Axis(
        "condition.workload",
        "name of the workload",
        in_id="{key.condition.workload}",
        words="{at.workload_label}",
    ),
    "engine": Axis(
        "condition.engine",
        "what decoded, such as `builtin`",
        in_id="{key.condition.engine}",
        allowed_by=("engine",),
    ),
    "method": Axis(
        "draft.method",
        "how tokens are drafted, such as `draft_model`; `none` at K = 0",
        in_id="{key.draft.method}",
        allowed_by=("drafter", "engine"),
    ),
    "num_speculative_tokens": Axis(
        "draft.k",
        "K: the most tokens drafted per round",
        unit="tokens/round",
        in_id="{key.draft.length.id}",
        allowed_by=("K",),
    ),
    "concurrency": Axis(
        "condition.concurrency",
        "most requests decoded at the same time; no limit of servers with a request rate",
        unit="requests",
        low=1,
        in_id="c{key.condition.concurrency}",
        words="{at.requests}",
        allowed_by=("concurrency",),
    ),
    "temperature": Axis(
        "condition.temperature",
        "of sampling; 0 is greedy",
        low=0,
        in_id="t{key.condition.temperature:g}",
        words="temperature {at.temperature:g}",
        allowed_by=("temperature",),
    ),
    "dtype": Axis(
        "condition.dtype",
        "of the target's computation",
        in_id="{key.condition.dtype}",
        allowed_by=("dtype",),
    ),
    "adaptive": Axis(
        "draft.is_adaptive",
        "K was picked round by round, up to `num_speculative_tokens`",
        allowed_by=("K",),
        default=False,
    ),
    "context": Axis(
        "condition.context",
        "length that prompts were lengthened to; absent: unchanged",
        unit="tokens",
        low=1,
        in_id="x{key.condition.context}",
        words="context {at.context:,}",
        usual="prompts unchanged",
        allowed_by=("context",),
        default=None,
    ),
    "request_rate": Axis(
        "condition.request_rate",
        "arrivals; absent: closed loop, the next request starts when one ends",
        unit="requests/s",
        in_id="r{key.condition.request_rate:g}",
        words="{at.request_rate:g} requests per second",
        usual="closed loop",
        allowed_by=("request-rate",),
        default=None,
    ),
    "num_samples": Axis(
        "condition.num_samples",
        "answers to each prompt, of which the likeliest is picked",
        unit="samples",
        low=1,
        in_id="n{key.condition.num_samples}",
        words="best of {at.num_samples}",
        usual="one sample",
        allowed_by=("samples",),
        default=1,
    ),
    "request_settings": Axis(
        "condition.request_settings",
        "settings of the workload's requests, such as `response_format`; absent: none",
        in_id="{key.condition.request_settings}",
        words="with {at.request_settings}",
        usual="without request settings",
        allowed_by=("request-settings",),
        default=None,
    ),
    "variant": Axis(
        "condition.variant",
        "name of the set of engine arguments (`--variant`); absent: only one was measured",
        in_id="v{key.condition.variant}",
        words="variant {at.variant}",
        usual="without a variant",
        allowed_by=("variant",),
        default=None,
    ),
    "p_min": Axis(
        "draft.p_min",
        "drafting stops where the draft has no likelier token; absent: at K",
        low=0,
        in_id="p{key.draft.p_min:g}",
        allowed_by=("drafter",),
        default=None,
    ),
    "lossy": Axis(
        "draft.lossy",
        "the rule that changes the target's distribution; absent: lossless",
        in_id="lossy {key.draft.lossy}",
        allowed_by=("lossy",),
        default=None,
    ),
}


NO_DRAFTER = "none"  # drafter and method of the K = 0 baseline
ASSISTED_DEFAULT = "assisted_default"  # a peer's method that chooses K itself
GENERATE = "generate"  # a peer's method without drafts
# The methods of K = 0 that others are compared with, one per engine.
BASELINE_METHODS = (NO_DRAFTER, GENERATE)
# `requests` and `workload_label` have words for them.
_IN_OTHER_WORDS = ("concurrency", "request_rate", "num_samples", "request_settings")
# The neutral value of an axis that `without` leaves out.
_LEFT_OUT: Mapping[str, Any] = {
    "target": "",
    "workload": "",
    "request_settings": None,
    "engine": "",
    "concurrency": 0,
    "context": None,
    "variant": None,
}


def lossy_mark(rule: str | None) -> str:
    """What every sentence about a lossy rule ends with, such as ` [lossy: typical]`."""
    return "" if rule is None else f" [lossy: {rule}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """A draft configuration: drafter, method, number of draft tokens, and a lossy rule if any."""

    drafter: str
    method: str
    length: Length
    lossy: str | None = None  # the rule that changes the target's distribution, as text
    p_min: float | None = None  # as in DrafterSpec

    none: ClassVar["DraftConfig"]  # K = 0: the same for all drafters

    @property
    def k(self) -> int:
        """The largest number of draft tokens per round; 0: no speculation."""
        return self.length.most

    @property
    def is_fixed(self) -> bool:
        return isinstance(self.length, Fixed)

    @property
    def is_adaptive(self) -> bool:
        return isinstance(self.length, Auto)

    @property
    def stops_early(self) -> bool:
        """Whether rounds may draft fewer than K tokens by choice: an adaptive K, or p_min."""
        return self.is_adaptive or self.p_min is not None

    def marked(self, name: str) -> str:
        """The name of a pairing, drafter or method, marked if the output is not the target's."""
        return name if self.lossy is None else f"{name} (lossy)"

    @property
    def label(self) -> str:
        """For people: `K=0`, `draft K=4`, `draft auto`."""
        if self.drafter == NO_DRAFTER:
            return self.length.named
        return f"{self.marked(self.drafter)} {self.length.named}"

    @property
    def order(self) -> tuple[int, int]:
        """The simpler one first: a fixed K before others, then the smaller."""
        return self.length.order


DraftConfig.none = DraftConfig(drafter=NO_DRAFTER, method=NO_DRAFTER, length=Fixed(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """The facts that compared cells share. The order of fields is that of words in sentences."""

    target: str
    workload: str
    temperature: float
    concurrency: int
    request_rate: float | None = None  # arrivals per second; None: closed loop
    num_samples: int = 1  # outputs per prompt, decoded together; the likeliest is chosen
    context: int | None = None  # tokens that prompts are lengthened to; None: unchanged
    request_settings: str | None = None  # those of the workload in words; None: without any
    variant: str | None = None  # name of a server's arguments; None: only one set is measured
    dtype: str
    engine: str

    @property
    def is_stream(self) -> bool:
        """Whether requests overlap, so that passes are measured and not single requests."""
        return self.concurrency > 1 or self.request_rate is not None

    @property
    def overlaps(self) -> bool:
        """Whether requests run side by side: those of a stream, or the samples of one prompt."""
        return self.is_stream or self.num_samples > 1

    @property
    def batch_size(self) -> int:
        """The most sequences decoded at the same time."""
        return self.concurrency * self.num_samples

    @property
    def requests(self) -> str:
        """The concurrency in words, and the request rate if there is one; empty without either."""
        if not self.concurrency:
            return ""
        if self.request_rate is not None:
            rate = f"{self.request_rate:g} requests per second"
            # Servers get requests at their times, however many are open.
            return rate if self.engine in SERVED else f"up to {self.concurrency} at once, {rate}"
        if self.num_samples > 1:
            return f"best of {self.num_samples} samples"
        if self.concurrency == 1:
            return "one request at a time"
        return f"{self.concurrency} concurrent requests"

    @property
    def label(self) -> str:
        """For people: `demo, temperature 0, one request at a time, float32, builtin engine`."""
        engine = f"{self.engine} engine" if self.engine else ""
        words = (self.target, AXES["temperature"].in_words(self), self.requests, *self.unusual)
        return ", ".join(filter(None, (*words, self.dtype, engine)))

    @property
    def brief(self) -> str:
        """The workload, and the axes that are not at their default."""
        requests = self.requests if self.overlaps else ""
        temperature = AXES["temperature"].in_words(self) if self.temperature else ""
        return ", ".join(filter(None, (self.workload_label, requests, temperature, *self.unusual)))

    @property
    def workload_label(self) -> str:
        """The workload, and its request settings: `json (response_format)`."""
        settings = f" ({self.request_settings})" if self.request_settings else ""
        return f"{self.workload}{settings}"

    @property
    def unusual(self) -> tuple[str, ...]:
        """Axes that are not at their default, in words, except those in other words."""
        optional = [
            f for f in fields(self) if f.default is not MISSING and f.name not in _IN_OTHER_WORDS
        ]
        changed = [f.name for f in optional if getattr(self, f.name) != f.default]
        return tuple(AXES[name].in_words(self) for name in changed)

    @property
    def flat(self) -> dict[str, Any]:
        """An entry per axis, in the order of `CellKey.flat`."""
        names = {field.name for field in fields(self)}
        return {name: getattr(self, name) for name in AXES if name in names}

    @property
    def order(self) -> tuple[bool, float, int, int]:
        """Our own engine first, then greedy, short prompts and few requests."""
        is_peer = self.engine != BUILTIN
        return is_peer, self.temperature, self.context or 0, self.concurrency

    def without(self, *axes: str) -> "Condition":
        """The same without these axes: equal for conditions that differ only in them.

        Request settings belong to the workload.
        """
        if "workload" in axes:
            axes = (*axes, "request_settings")
        return replace(self, **{name: _LEFT_OUT[name] for name in axes})

    def distinct_parts(self, among: Collection["Condition"], *, also: str = "") -> tuple[str, ...]:
        """The values that differ among these conditions, in words, and the axis `also`."""
        names = [field.name for field in fields(self)]
        varying = {name for name in names if len({getattr(c, name) for c in among}) > 1}
        if "concurrency" in varying:
            varying.discard("request_rate")  # the words for concurrency contain it
        if "workload" in (*varying, also):
            varying.discard("request_settings")  # and those for the workload these
        return tuple(AXES[name].in_words(self) for name in names if name in varying | {also})


# The setting, and drafter, method and lossy rule: a decision is about one of these.
Question = tuple[Condition, tuple[str, str, str | None]]


def pairing_name(target: str, drafter: str) -> str:
    """`target/drafter`; only the target without a drafter."""
    return target if drafter == NO_DRAFTER else f"{target}/{drafter}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellKey:
    """The key of a cell, the same in every run."""

    condition: Condition
    draft: DraftConfig

    # Records in JSON contain a key flat.
    __pydantic_serializer__: ClassVar[SchemaSerializer]

    @property
    def pairing(self) -> str:
        """`target/drafter`; only the target at K = 0."""
        return pairing_name(self.condition.target, self.draft.drafter)

    @property
    def is_baseline(self) -> bool:
        """Whether the other cells of its condition are compared with this one."""
        return self.draft.k == 0 and self.draft.method in BASELINE_METHODS

    @property
    def question(self) -> Question:
        """The setting, and the draft configuration without K."""
        return self.condition, (self.draft.drafter, self.draft.method, self.draft.lossy)

    @property
    def id(self) -> str:
        return _id_of(self)

    @property
    def source(self) -> str:
        """The pairing, and also the method in the engine that has several methods for it."""
        name = self.draft.marked(self.pairing)
        return f"{name}, {self.draft.method}" if self.condition.engine == TRANSFORMERS else name

    @property
    def label(self) -> str:
        """For people: `demo/draft K=4 on code`, and the axes that are not at their default."""
        return f"{self.source} K={self.draft.length.label} on {self.condition.brief}"

    def without(self, *axes: str) -> "CellKey":
        """The same without these axes of its condition."""
        return replace(self, condition=self.condition.without(*axes))

    def at(self, length: Length) -> "CellKey":
        """The same with another number of draft tokens."""
        return replace(self, draft=replace(self.draft, length=length))

    @property
    def flat(self) -> dict[str, Any]:
        """An entry per axis, as files and tables have it."""
        return {name: axis.of(self) for name, axis in AXES.items()}

    def entries(self, *first: str, without: Collection[str]) -> dict[str, Any]:
        """The flat key without some entries; `first` are moved to the beginning."""
        flat = self.flat
        return {name: flat[name] for name in (*first, *flat) if name not in without}

    @classmethod
    def of_flat(cls, flat: Mapping[str, Any]) -> "CellKey":
        """The key with these entries; axes with a default may be absent."""
        values = {name: flat.get(name, axis.default) for name, axis in AXES.items()}
        k, adaptive = values["num_speculative_tokens"], values["adaptive"]
        values["length"] = Auto(k) if adaptive else Fixed(k)
        condition, draft = (
            {f.name: values[f.name] for f in fields(p)} for p in (Condition, DraftConfig)
        )
        key = cls(condition=Condition(**condition), draft=DraftConfig(**draft))
        if key.pairing != values["pairing"]:
            raise ValueError(f"pairing {values['pairing']} is not {key.pairing}")
        return key

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda flat: cls.of_flat(vars(flat)), handler(FlatKey), serialization=_FLAT
        )


@lru_cache(maxsize=4096)
def _id_of(key: CellKey) -> str:
    """Cached, because a run needs the id of a cell at every step."""
    axes = (axis for axis in AXES.values() if axis.in_id and axis.of(key) != axis.default)
    return "|".join(axis.in_id.format(key=key) for axis in axes)


def _serialize(key: CellKey, info: core_schema.SerializationInfo) -> dict[str, Any]:
    flat = key.flat
    return {n: v for n, v in flat.items() if v is not None} if info.exclude_none else flat


_FLAT = core_schema.plain_serializer_function_ser_schema(_serialize, info_arg=True)
CellKey.__pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_FLAT))


def _annotation(path: str) -> Any:
    """The type of the field or property of a key at a path."""
    part, _, name = path.rpartition(".")
    owner: Any = {"": CellKey, "condition": Condition, "draft": DraftConfig}[part]
    getter = getattr(getattr(owner, name), "fget", None)
    return get_type_hints(getter)["return"] if getter else get_type_hints(owner)[name]


def _entries() -> Iterator[tuple[str, Any, Any]]:
    for name, axis in AXES.items():
        default = MISSING if axis.default is REQUIRED else axis.default
        kind: Any = _annotation(axis.path)
        yield name, Annotated[kind, Doc(axis.meaning, axis.unit, axis.low)], field(default=default)


# A flat key: an entry per axis, of the type that it has in a key.
FlatKey = make_dataclass("FlatKey", _entries(), frozen=True, kw_only=True)


def flat_keys(
    get: Callable[[Any], "CellKey | Condition"], *, only: Collection[str] = tuple(AXES)
) -> dict[str, Key]:
    """A JSON key per axis, in the order of `only`; `get` returns a source's key or condition."""
    hints, docs = get_type_hints(FlatKey), docs_of(FlatKey)
    return {name: Key(hints[name], docs[name], _axis(get, name)) for name in only}


def _axis(get: Callable[[Any], "CellKey | Condition"], name: str) -> Callable[[Any], Any]:
    return lambda source: get(source).flat[name]
