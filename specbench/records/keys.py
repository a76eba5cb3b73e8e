"""What was measured: a draft under a condition.

Files and tables have a key flat, an entry per axis (axes.py). Here it is in two parts, because
cells that are compared have their condition in common.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from typing import Annotated, Any, ClassVar, get_type_hints

from pydantic_core import SchemaSerializer, core_schema

from specbench.records.axes import AXES, REQUIRED
from specbench.records.doc import Doc
from specbench.records.lengths import Auto, Fixed, Length
from specbench.settings import BUILTIN, TRANSFORMERS

NO_DRAFTER = "none"  # drafter and method of the K = 0 baseline
ASSISTED_DEFAULT = "assisted_default"  # a peer's method whose K is its own business
GENERATE = "generate"  # a peer's method without drafts
# The methods of K = 0 that others are compared with, one an engine.
BASELINE_METHODS = (NO_DRAFTER, GENERATE)
_REQUESTS = ("concurrency", "request_rate", "num_samples")  # said in one breath
# The neutral value of an axis that `without` leaves out.
_LEFT_OUT: Mapping[str, Any] = {
    "target": "",
    "workload": "",
    "engine": "",
    "concurrency": 0,
    "context": None,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What drafts, how, how far, and by which rule drafts are accepted."""

    drafter: str
    method: str
    length: Length
    lossy: str | None = None  # the rule that changes the target's distribution, as LossyRule says

    none: ClassVar["Draft"]  # K = 0: the same for all drafters

    @property
    def k(self) -> int:
        """The most tokens drafted in a round; 0: it does not speculate."""
        return self.length.most

    @property
    def is_fixed(self) -> bool:
        return isinstance(self.length, Fixed)

    @property
    def is_adaptive(self) -> bool:
        return isinstance(self.length, Auto)

    @property
    def way(self) -> tuple[str, str, str | None]:
        """The draft whatever its length."""
        return self.drafter, self.method, self.lossy

    def marked(self, name: str) -> str:
        """The name of a pairing, drafter or method, marked where its text is not the target's."""
        return name if self.lossy is None else f"{name} (lossy)"

    @property
    def label(self) -> str:
        """Such as `K=0`, `draft K=4`, `draft auto`."""
        if self.drafter == NO_DRAFTER:
            return self.length.named
        return f"{self.marked(self.drafter)} {self.length.named}"

    @property
    def order(self) -> tuple[int, int]:
        """The plainer one first: a fixed K before others, then the smaller."""
        return self.length.order


Draft.none = Draft(drafter=NO_DRAFTER, method=NO_DRAFTER, length=Fixed(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """What the cells that are compared have in common. Its fields are in the order of words."""

    target: str
    workload: str
    temperature: float
    concurrency: int
    request_rate: float | None = None  # arrivals a second; None: the next one when a row is free
    num_samples: int = 1  # answers to a prompt, decoded together; the likeliest is picked
    context: int | None = None  # prompts lengthened to so many tokens; None: as they are
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
    def requests(self) -> str:
        """The batch size in words, and the arrivals where they set the pace; empty without one."""
        if not self.concurrency:
            return ""
        if self.request_rate is not None:
            return f"up to {self.concurrency} at once, {self.request_rate:g} requests per second"
        if self.num_samples > 1:
            return f"best of {self.num_samples} samples"
        if self.concurrency == 1:
            return "one request at a time"
        return f"{self.concurrency} requests at once"

    @property
    def label(self) -> str:
        """Such as `demo, temperature 0, one request at a time, float32, builtin engine`."""
        engine = f"{self.engine} engine" if self.engine else ""
        words = (self.target, AXES["temperature"].told(self), self.requests, *self.unusual)
        return ", ".join(filter(None, (*words, self.dtype, engine)))

    @property
    def unusual(self) -> tuple[str, ...]:
        """What goes without saying unless it was asked for, and is not in `requests`."""
        own = [f for f in fields(self) if f.default is not MISSING and f.name not in _REQUESTS]
        return tuple(AXES[f.name].told(self) for f in own if getattr(self, f.name) != f.default)

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
        """The same without these axes: equal for conditions that differ in them alone."""
        return replace(self, **{name: _LEFT_OUT[name] for name in axes})

    def told_apart(self, among: Collection["Condition"], *, also: str = "") -> tuple[str, ...]:
        """What tells it from the others, in words, and what `also` names."""
        names = [field.name for field in fields(self)]
        varying = {name for name in names if len({getattr(c, name) for c in among}) > 1}
        if "concurrency" in varying:
            varying.discard("request_rate")  # which the words for the requests have, too
        return tuple(AXES[name].told(self) for name in names if name in varying | {also})


@dataclass(frozen=True, kw_only=True, slots=True)
class CellKey:
    """What was measured: one cell of a run, the same in every run."""

    condition: Condition
    draft: Draft

    # What JSON of any record shows of a key.
    __pydantic_serializer__: ClassVar[SchemaSerializer]

    @property
    def pairing(self) -> str:
        """`target/drafter`; the bare target where nothing is drafted."""
        target, drafter = self.condition.target, self.draft.drafter
        return target if drafter == NO_DRAFTER else f"{target}/{drafter}"

    @property
    def is_baseline(self) -> bool:
        """Whether the other cells of its condition are compared with this one."""
        return self.draft.k == 0 and self.draft.method in BASELINE_METHODS

    @property
    def id(self) -> str:
        pieces = (axis.piece(self) for axis in AXES.values())
        return "|".join(piece for piece in pieces if piece is not None)

    @property
    def source(self) -> str:
        """The pairing, and in the engine that has several methods for it the method, too."""
        name = self.draft.marked(self.pairing)
        return f"{name}, {self.draft.method}" if self.condition.engine == TRANSFORMERS else name

    @property
    def label(self) -> str:
        """Such as `demo/draft K=4 on code`, with whatever is out of the ordinary."""
        at = self.condition
        name = f"{self.source} K={self.draft.length.label} on {at.workload}"
        requests = at.requests if at.overlaps else ""
        temperature = AXES["temperature"].told(at) if at.temperature else ""
        return ", ".join(filter(None, (name, requests, temperature, *at.unusual)))

    def without(self, *axes: str) -> "CellKey":
        """The same without these axes of its condition."""
        return replace(self, condition=self.condition.without(*axes))

    def at(self, length: Length) -> "CellKey":
        """The same with another length of drafts."""
        return replace(self, draft=replace(self.draft, length=length))

    @property
    def flat(self) -> dict[str, Any]:
        """An entry per axis, as files and tables have it."""
        return {name: axis.of(self) for name, axis in AXES.items()}

    def entries(self, *first: str, without: Collection[str]) -> dict[str, Any]:
        """The flat key, its first entries in the order of a document's."""
        flat = self.flat
        return {name: flat[name] for name in (*first, *flat) if name not in without}

    @classmethod
    def of_flat(cls, flat: Mapping[str, Any]) -> "CellKey":
        """From an entry per axis, which may leave out those that have a default."""
        values = {name: flat.get(name, axis.default) for name, axis in AXES.items()}
        k, adaptive = values["num_speculative_tokens"], values["adaptive"]
        values["length"] = Auto(k) if adaptive else Fixed(k)
        condition, draft = ({f.name: values[f.name] for f in fields(p)} for p in (Condition, Draft))
        key = cls(condition=Condition(**condition), draft=Draft(**draft))
        if key.pairing != values["pairing"]:
            raise ValueError(f"pairing {values['pairing']} is not {key.pairing}")
        return key

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda flat: cls.of_flat(vars(flat)), handler(FlatKey), serialization=_FLAT
        )


def _serialise(key: CellKey, info: core_schema.SerializationInfo) -> dict[str, Any]:
    flat = key.flat
    return {n: v for n, v in flat.items() if v is not None} if info.exclude_none else flat


_FLAT = core_schema.plain_serializer_function_ser_schema(_serialise, info_arg=True)
CellKey.__pydantic_serializer__ = SchemaSerializer(core_schema.any_schema(serialization=_FLAT))


def _annotation(path: str) -> Any:
    """The type of what a key has there: a field of a part, or a property."""
    part, _, name = path.rpartition(".")
    owner: Any = {"": CellKey, "condition": Condition, "draft": Draft}[part]
    getter = getattr(getattr(owner, name), "fget", None)
    return get_type_hints(getter)["return"] if getter else get_type_hints(owner)[name]


def _entries() -> Iterator[tuple[str, Any, Any]]:
    for name, axis in AXES.items():
        default = MISSING if axis.default is REQUIRED else axis.default
        kind: Any = _annotation(axis.path)
        yield name, Annotated[kind, Doc(axis.meaning, axis.unit)], field(default=default)


# What files and tables have: an entry per axis, of the type that it has in a key.
FlatKey = make_dataclass("FlatKey", _entries(), frozen=True, kw_only=True)
