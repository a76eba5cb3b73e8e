"""The files of a draft head: its config, its tensors or their headers, and its layout."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from specbench.errors import ModelError
from specbench.files.config import Fields

MISFIT = "made for another target; choose the head that its authors trained for this one"
Fit = Mapping[str, tuple[object, object]]  # field -> the head's value, the target's
Shapes = Mapping[str, tuple[int, ...]]

SPECULATORS = "speculators_model_type"
TOKEN_MAP = "token_map"
TOKEN_ORDERING = "masked_embedding.token_ordering"
ID_TABLES = ("d2t", "t2d", TOKEN_MAP, TOKEN_ORDERING)  # integers, not weights
OLD_ROTARY = "rotary_emb.inv_freq"  # stored by old transformers; it follows from the config
_MOST_NAMES = 12  # of tensors, in an error message


class Shaped(Protocol):
    """The type and shape of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...  # torch's, or as safetensors name it
    def is_floating_point(self) -> bool: ...


T_co = TypeVar("T_co", bound=Shaped, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFiles(Generic[T_co]):
    """A head's config, and its tensors, perhaps read on access; messages call it `source`."""

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, T_co] = field(repr=False)
    revision: str | None = None  # the commit on the hub

    @property
    def fields(self) -> Fields:
        """The config as Fields, which check the types of its values."""
        return Fields(source=self.source, values=self.config)

    def renamed(self, rename: Mapping[str, str]) -> Self:
        """The files with prefixes of tensor names replaced, see `new_name`."""
        return self._mapped(lambda name: new_name(name, rename))

    def without(self, suffix: str) -> Self:
        """The files without the tensors whose names end with the suffix."""
        return self._mapped(lambda name: None if name.endswith(suffix) else name)

    def under(self, prefix: str) -> Self:
        """The files with only the tensors whose names begin with the prefix, which is removed."""
        return self._mapped(lambda n: n.removeprefix(prefix) if n.startswith(prefix) else None)

    def _mapped(self, new_name: Callable[[str], str | None]) -> Self:
        """The files with tensors renamed, without reading them; None leaves a tensor out."""
        names: dict[str, str] = {}
        for old in self.tensors:
            new = new_name(old)
            if new in names:
                raise ModelError(f"{self.source} does not fit: {old} repeats {names[new]}")
            if new is not None:
                names[new] = old
        return replace(self, tensors=_RenamedTensors(self.tensors, names))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; the tensor is not read if its file's header states it."""
        return tuple(header_of(self.tensors, name).shape)

    def whole_numbers(self, name: str) -> list[int]:
        """The values of a small table; ModelError if they are not integers."""
        table: Any = self.tensors[name]
        try:
            numbers: list[Any] = table.tolist()
        except (TypeError, OSError):
            numbers = [None]
        if not all(isinstance(number, int) for number in numbers):
            raise ModelError(f"{self.source}: {name} must contain integers")
        return numbers

    def require(self, shapes: Mapping[str, tuple[int, ...]], optional: frozenset[str]) -> None:
        """Raise a ModelError that lists every tensor that is missing, unknown, of the wrong shape,
        or not in plain numbers (packed weights)."""
        needed = set(shapes) - optional
        wrong = [
            f"{name} is {stored}, not {shape}"
            for name, shape in sorted(shapes.items())
            if name in self.tensors and (stored := self.shape(name)) != shape
        ]
        weights = {*shapes} & {*self.tensors} - {*ID_TABLES}
        difference = Difference(
            missing=tuple(sorted(needed - set(self.tensors))),
            unread=tuple(sorted(set(self.tensors) - set(shapes))),
            other=(*wrong, *packed(self.tensors, weights)),
        )
        if reason := difference.reason:
            raise ModelError(f"{self.source} does not fit: {reason}")


AnyFiles = TypeVar("AnyFiles", bound=HeadFiles[Any])  # with tensors, or with headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How the stored tensors of a model or a head differ from those that its modules read.

    Any of the first three lists means that what would run is not what was stored.
    """

    missing: tuple[str, ...] = ()  # read, and not stored
    unread: tuple[str, ...] = ()  # stored for a module that runs, which does not read it
    other: tuple[str, ...] = ()  # stored in another shape or format, in words
    left_out: tuple[str, ...] = ()  # stored, and read by no module that runs

    @classmethod
    def of_keys(
        cls,
        read: Collection[str],
        unexpected: Collection[str],
        *,
        missing: Collection[str] = (),
        other: Collection[str] = (),
    ) -> Self:
        """The difference by the names that modules read and the stored ones that none reads."""
        owners = {_owner(name) for name in read}
        unread = {name for name in unexpected if _owner(name) in owners}
        unread = {name for name in unread if not name.endswith(_WITHOUT_EFFECT)}
        return cls(
            missing=tuple(sorted(missing)),
            unread=tuple(sorted(unread)),
            other=tuple(sorted(other)),
            left_out=tuple(sorted({*unexpected} - unread)),
        )

    def of_format(self) -> Self:
        """For a stored format, whose kernels need not read all that it stores."""
        return replace(self, unread=(), left_out=tuple(sorted((*self.unread, *self.left_out))))

    @property
    def reason(self) -> str | None:
        """Why the files cannot be loaded as they were meant; None if they can."""
        listed = {"missing: ": self.missing, "unknown: ": self.unread, "": self.other}
        return "; ".join(kind + _listed(names) for kind, names in listed.items() if names) or None


# Scales of a cache in 8 bits, which never runs, TransformerEngine's state of training, and
# constants that old transformers stored: rotary tables and causal masks.
_WITHOUT_EFFECT = (
    *(".k_scale", ".v_scale", ".kv_scale", "._extra_state", OLD_ROTARY),
    *(".attn.bias", ".attention.bias", ".masked_bias"),
)


def _owner(name: str) -> str:
    """The layer that a tensor belongs to; for one outside of numbered layers, its module."""
    layer = re.match(r".*?(?:^|\.)\d+\.", name)
    return layer[0] if layer else name.rpartition(".")[0]


_PLAIN = re.compile(r"(torch\.)?(B?F(16|32|64)|b?float(16|32|64))")


def packed(tensors: Mapping[str, Shaped], weights: Iterable[str]) -> tuple[str, ...]:
    """The weights that are not in plain numbers: integers, and floating-point numbers of a byte or
    less, which mean nothing without their scales."""
    dtypes = ((name, str(header_of(tensors, name).dtype)) for name in sorted(weights))
    return tuple(
        f"{name} is stored as {dtype}, not in plain numbers"
        for name, dtype in dtypes
        if not _PLAIN.fullmatch(dtype)
    )


_PACKED = re.compile(r"(.+)\.(q?weight|weight_packed|_?weight_qdata)")
# Without those of activations and of the cache.
_SCALES = re.compile(r"(.+?)\.(weight\.)?(?!(input|output|q|k|v|kv)_)[^.]*(scale|absmax|SCB)[^.]*")


def unscaled(tensors: Mapping[str, Shaped], *, always: bool) -> tuple[str, ...]:
    """The packed weights without scales, if the format always has them or some weights do."""
    owners = {found[1]: name for name in tensors if (found := _PACKED.fullmatch(name))}
    owners = {owner: name for owner, name in owners.items() if packed(tensors, (name,))}
    scaled = {found[1] for name in tensors if (found := _SCALES.fullmatch(name))}
    if not always and scaled.isdisjoint(owners):
        return ()  # the format has no scales, or names them in another way
    return tuple(sorted(owners[owner] for owner in owners.keys() - scaled))


def new_name(name: str, rename: Mapping[str, str]) -> str:
    """The name with its prefix replaced according to the first matching entry of `rename`."""
    for old, new in rename.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _listed(names: Sequence[str]) -> str:
    """The names, separated by commas; those after the first _MOST_NAMES are only counted."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def header_of(tensors: Mapping[str, Shaped], name: str) -> Shaped:
    """A tensor's header if `tensors` can read it separately, else the tensor itself."""
    header: Callable[[str], Shaped] = getattr(tensors, "header", tensors.__getitem__)
    return header(name)


class LazyTensors(Mapping[str, T_co]):
    """Tensors by name, each read on access; a value in `names` locates the tensor."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names  # the default of Mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _RenamedTensors(LazyTensors[T_co]):
    """Another mapping's tensors under other names."""

    def __init__(self, tensors: Mapping[str, T_co], names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._tensors = tensors

    def __getitem__(self, name: str) -> T_co:
        return self._tensors[self._names[name]]

    def header(self, name: str) -> Shaped:
        return header_of(self._tensors, self._names[name])


class HeadTarget(Protocol):
    """Sizes of a target that heads must fit."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    def field(self, name: str, /) -> Any:
        """A field of the language model's config; None if it is missing."""


def misfits(fit: Fit) -> Fit:
    """The fields in which the head's value differs from the target's."""
    return {name: pair for name, pair in fit.items() if pair[0] != pair[1]}


def require_tensors(files: HeadFiles[Shaped], shapes: Shapes, optional: Shapes) -> None:
    """Raise ModelError unless a head has all tensors in `shapes` and no others but `optional`."""
    files.without(OLD_ROTARY).require({**shapes, **optional}, frozenset(optional))


def table_shapes(D: int, V: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a head's id tables: d2t maps its D tokens to the target's V, t2d marks those."""
    return {"d2t": (D,), "t2d": (V,)}


def token_ids(files: HeadFiles[Shaped], D: int, V: int) -> list[int] | None:
    """The target's id of each of a head's D tokens; None: all V. ModelError if d2t, which contains
    offsets, is missing or wrong, or if t2d does not match it."""
    d2t, t2d = (
        files.whole_numbers(name) if name in files.tensors else None for name in table_shapes(D, V)
    )
    if t2d is not None and D == V and not any(t2d):
        t2d = None  # SafeAILab never fills it in for heads that draft all tokens
    if d2t is None:
        if D != V:
            raise ModelError(
                f"{files.source} does not fit: missing: d2t; draft_vocab_size is {D}, "
                f"vocab_size {V}"
            )
        if t2d is not None and not all(t2d):
            raise ModelError(f"{files.source}: t2d leaves tokens out, and d2t is missing")
        return None
    ids = [i + offset for i, offset in enumerate(d2t)]
    if min(ids) < 0 or max(ids) >= V or len(set(ids)) != D:
        is_ids = sorted(set(d2t)) == d2t and min(d2t) >= 0 and max(d2t) < V
        hint = "; it contains ids instead of offsets (d2t[i] = id - i)" if is_ids else ""
        raise ModelError(
            f"{files.source}: d2t does not map to {D} different tokens of the target's {V}{hint}"
        )
    if t2d is not None and {i for i, is_marked in enumerate(t2d) if is_marked} != set(ids):
        raise ModelError(
            f"{files.source}: d2t and t2d name different tokens; one belongs to another head"
        )
    return ids


class Layout(NamedTuple):
    """The project whose layout a head's files have, and whether its heads were tested.

    `release` is the one whose heads were tested in `tests/foreign_heads`; None: not tested, the
    layout was only read in `source`. docs/heads.md has a table of these facts.
    """

    author: str
    source: str
    release: str | None = None

    @property
    def note(self) -> str:
        if self.release is not None:
            return f"as {self.author} writes it: logits equal those of {self.release}'s own forward"
        read = f"{self.author}'s layout, read in {self.source}"
        return f"{read}; never tested with a published head"


Files = HeadFiles[Any]
Layouts = tuple[tuple[Callable[[Files], bool], Layout], ...]  # the first match counts


def layout_of(files: Files, layouts: Layouts) -> Layout | None:
    """The first of these layouts that the files match; names of pickled tensors are unknown."""
    return next((layout for matches, layout in layouts if matches(files)), None)


def _has_field(name: str, section: str | None = None) -> Callable[[Files], bool]:
    def has_field(files: Files) -> bool:
        values = files.config if section is None else files.config.get(section)
        return isinstance(values, dict) and values.get(name) is not None

    return has_field


def _holds(*prefixes: str) -> Callable[[Files], bool]:
    return lambda files: any(name.startswith(prefixes) for name in files.tensors)


def _is_specforge_eagle3(files: Files) -> bool:
    """SafeAILab's heads have the same tensors, but `architectures` names a plain Llama."""
    return _holds("midlayer.")(files) and "LlamaForCausalLMEagle3" in files.fields.texts(
        "architectures"
    )


def _is_any(_: Files) -> bool:
    return True


_SPECULATORS = Layout("speculators", "speculators 0.9.0", "speculators 0.9.0")
_SPECFORGE = Layout("SpecForge", "SpecForge 0.2.0", "SpecForge 0.2.0")
_MODELOPT = Layout("NVIDIA's modelopt", "modelopt 0.47.0", "modelopt 0.47.0")
_EAGLE = "SafeAILab/EAGLE at cb7e084, eagle/model"
_VLLM = "vllm-project/vllm"
_MEDUSA = f"{_VLLM} at 01dbb08, models/medusa.py"
_OF_SPECULATORS = (_has_field(SPECULATORS), _SPECULATORS)
EAGLE_LAYOUTS: Layouts = (
    (
        _has_field(SPECULATORS),
        Layout("speculators", "vllm-project/speculators at 8a49095, models/eagle.py"),
    ),
    (_is_any, Layout("SafeAILab", f"{_EAGLE}/cnets1.py")),
)
EAGLE3_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_has_field("next_layer_regular", "eagle_config"), _MODELOPT),
    (_is_specforge_eagle3, _SPECFORGE),
    (_is_any, Layout("SafeAILab", f"{_EAGLE}/cnets.py")),
)
PEAGLE_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_has_field("mask_token_id"), _SPECFORGE),
    (_is_any, Layout("Amazon", f"{_VLLM} at 00bd149, models/llama_eagle3.py")),
)
DFLASH_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_has_field("causal", "dflash_config"), _MODELOPT),
    (_has_field("num_target_layers"), _SPECFORGE),
    (_is_any, Layout("z-lab", "z-lab/dflash at 1012959, dflash/model.py")),
)
DFLASH2_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_is_any, Layout("z-lab", "dflash 0.1.0, dflash/model.py", "dflash 0.1.0")),
)
DSPARK_LAYOUTS: Layouts = (
    (
        _has_field(SPECULATORS),
        Layout("speculators", f"{_VLLM} at 0302ff4, models/qwen3_dspark.py"),
    ),
    (_is_any, Layout("DeepSeek", f"{_VLLM} at 0302ff4, models/qwen3_dspark.py")),
)
MEDUSA_LAYOUTS: Layouts = (
    (_holds("medusa_heads."), _MODELOPT),
    (_holds("blocks."), Layout("vLLM", _MEDUSA)),
    (
        _is_any,
        Layout(
            "FasterDecoding",
            "FasterDecoding/Medusa at e2a5d20, medusa/model/medusa_model.py",
        ),
    ),
)
GEMMA4_LAYOUTS: Layouts = (
    (_is_any, Layout("Google", "transformers 5.24, models/gemma4_assistant")),
)
MTP_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (
        _is_any,
        Layout(
            "its model",
            f"{_VLLM} at 4f7c144, 028aedf, 98debc2, ffdc985 and 01d9980, models/*_mtp.py",
        ),
    ),
)
