"""The drafting methods: one row each, with all facts that do not need torch.

Plans, memory, help, `list`, the YAML reference, exporters and importers read the row. The class
that drafts is in `drafters/<name>.py`, an engine's name of a method in that engine's file. A set of
two methods, such as `mtp+ngram_mod`, is a row made of both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from specbench.errors import ModelError, UsageError
from specbench.files.config import DENSE
from specbench.files.dflash import DFlashStyle, dflash_fit, method_of
from specbench.files.eagle import EAGLE3_NAMES, EAGLE_NAMES, Style, eagle3_fit, eagle_fit
from specbench.files.gemma4_mtp import (
    AssistantStyle,
    assistant_reason,
    assistant_shapes,
    gemma4_mtp_fit,
)
from specbench.files.gguf import GgufFile
from specbench.files.head_files import (
    DFLASH2_LAYOUTS,
    DFLASH_LAYOUTS,
    DSPARK_LAYOUTS,
    EAGLE3_LAYOUTS,
    EAGLE_LAYOUTS,
    GEMMA4_LAYOUTS,
    MEDUSA_LAYOUTS,
    MTP_LAYOUTS,
    PEAGLE_LAYOUTS,
    Fit,
    HeadFiles,
    HeadTarget,
    Layouts,
    misfits,
    new_name,
)
from specbench.files.medusa import NEW_HEADS, MedusaLayout, MedusaTree, medusa_fit, medusa_tensors
from specbench.files.model import ModelFiles
from specbench.files.mtp import (
    FAMILIES,
    family_name,
    family_of,
    layer_tensors,
    mtp_fit,
    num_mtp_layers,
    require_mtp_tensors,
)
from specbench.footprint import (
    DEEPEST_BEAM,
    MOST_DRAFTS,
    NGRAM_BUCKETS,
    num_dynamic_drafts,
    num_static_drafts,
    spare_slots,
)
from specbench.settings.words import nearest
from specbench.topology import EAGLE_STATIC, RANK_PROBS, recycling_tree

Setting = int | float | str | bool | tuple[int, ...]
Settings = Mapping[str, Any]  # all parameters of a method, by name
Files = HeadFiles[Any]
OpenHead = Callable[[], Files | None]
VocabSize = Callable[[], int | None]

NEW_BLOCK_SIZE = 16  # of a DFlash head with random weights
_ID_BYTES = 8  # per token id or count on the device

_WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list of whole numbers above 0",  # the widths of a tree, level by level
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting of a drafter under `parameters:` in pairings.yaml, of the type of its default."""

    name: str
    default: Setting
    allowed: range | tuple[str, ...] | None
    description: str

    def complaint(self, value: object) -> str | None:
        """The reason why a value is not allowed; None if it is."""
        wanted = type(self.default)
        if wanted is tuple and isinstance(value, tuple):
            return _complaint_of_widths(value)
        is_right = type(value) is wanted or (wanted is float and type(value) is int)
        if is_right and (self.allowed is None or value in self.allowed):
            return None
        return f"is {value!r}; expected {self.wanted}"

    @property
    def wanted(self) -> str:
        if isinstance(self.allowed, range):
            return f"a whole number from {self.allowed.start} to {self.allowed.stop - 1}"
        if self.allowed is not None:
            *first, last = self.allowed
            return f"{', '.join(first)} or {last}" if first else last
        return _WORDS[type(self.default)]


def _complaint_of_widths(widths: tuple[object, ...]) -> str | None:
    numbers = [width for width in widths if type(width) is int and width > 0]
    if len(numbers) < len(widths):
        return f"is {list(widths)!r}; expected {_WORDS[tuple]}"
    if len(numbers) > MOST_DRAFTS or num_static_drafts(numbers, len(numbers)) > MOST_DRAFTS:
        return f"is {list(widths)!r}; expected at most {MOST_DRAFTS} drafts in all levels"
    return None


class RoundShape(NamedTuple):
    """The sizes of a round's draft; of the largest possible tree, if its shape depends on data."""

    num_drafts: int  # tokens that the target verifies in addition to the current one
    num_forwards: int  # sequential ones of the drafter's layers, which read all its weights
    spare_slots: int = 0  # of the drafter's cache, in addition to those of the target's
    num_small: int = 0  # of `num_forwards`: those that read only a small part of the weights


class BufferSizes(NamedTuple):
    """The sizes that determine a drafter's buffers other than its KV cache."""

    num_rows: int
    capacity: int  # tokens per row
    vocab_size: int  # of the target
    state_bytes: int  # of a hidden state of the target


class LayerReport(NamedTuple):
    """The layers that a head has or reads, as the field and reason of a finding."""

    field: str
    layers: object
    reason: str


def _no_answer(_: object) -> None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFacts:
    """A kind of draft head: how to recognize its files, to check them, and to read their tensors.

    Files are recognized by `by_config`, which returns the reason or None, then by the names of
    tensors, and last by `architecture`.
    """

    layouts: Layouts
    fit: Callable[[Files, HeadTarget], Fit]  # ModelError
    tensor_names: Mapping[str, str] = field(default_factory=dict)  # current prefixes by old ones
    by_config: Callable[[ModelFiles], str | None] = _no_answer
    by_tensors: Callable[[frozenset[str]], bool] = lambda _: False
    architecture: str | None = None
    is_speculators_type: bool = True  # whether its name is also a `speculators_model_type`
    reads_target_head: bool = False
    report_layers: Callable[[Files, int], LayerReport | None] = lambda *_: None
    # Shapes by name of the tensors that it runs with, if they differ from those of its files.
    kept_shapes: Callable[[Files, HeadTarget], Mapping[str, tuple[int, ...]]] | None = None
    # Numbers in these tensors that a forward does not read.
    num_unread: Callable[[Files], int] = lambda _: 0
    # For layers that may be in a model's own files: their number, a function that selects their
    # tensors, and whether a target has them.
    num_model_layers: Callable[[Files], int] | None = None
    select: Callable[[Files], Files] | None = None
    is_in_target: Callable[[ModelFiles], bool] = lambda _: False

    # Whether only its modules know all names and shapes of its tensors (fit/loaded_tensors.py).
    needs_modules: Callable[[Files], bool] = lambda _: False

    def tensors(self, files: Files) -> Mapping[str, Any]:
        """The head's tensors by their current names. ModelError."""
        return (self.select or self.renamed)(files).tensors

    def renamed(self, files: Files) -> Files:
        """The files with the current names of tensors. ModelError."""
        return files.renamed(self.tensor_names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A drafting method.

    `draws`: above temperature 0, drafts are sampled from the drafter's distribution, except those
    of a dynamic tree, which are the likeliest. `learns`: it drafts from the answers of other
    requests. `retokenizes`: its model may have a different tokenizer than the target.
    `always_drafts`: every round drafts, so that a count of drafting rounds counts all rounds.
    `is_builtin`: the built-in decoder has it; other methods are those of serving engines.
    `usual_ks`: the K of a default range, if it has others than most; `only_k`: the K of a method
    whose engine has no option for it.
    """

    name: str
    summary: str
    model: Literal["required", "optional", "refused"] = "refused"
    head: HeadFacts | None = None  # if its model is a head for one target
    draws: bool = False
    learns: bool = False
    retokenizes: bool = False
    always_drafts: bool = False
    is_builtin: bool = True
    usual_ks: tuple[int, ...] = ()
    only_k: int | None = None
    parameters: tuple[Parameter, ...] = ()
    tree: Callable[[Settings], str | None] = _no_answer  # kind; None: a chain
    round_shape: Callable[[Settings, int], RoundShape] = lambda _, k: RoundShape(k, 0)  # K > 0
    # The largest K; None: no limit. The head is None if its weights are random, and the target's
    # vocabulary size if it is unknown; both are read only if the result depends on them.
    deepest: Callable[[Settings, OpenHead, VocabSize], int | None] = lambda *_: None
    buffer_bytes: Callable[[Settings, BufferSizes], int] = lambda *_: 0  # without its KV cache
    # The number of the target's first layers that draft, given its number of layers.
    num_target_layers: Callable[[Settings, int], int] | None = None

    @property
    def module(self) -> str:
        return f"specbench.drafters.{self.name}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The methods of a set, the one with a model first; of others only their own name."""
        return tuple(self.name.split(_AND))

    @property
    def is_head(self) -> bool:
        return self.head is not None

    @property
    def shares_tokens(self) -> bool:
        """Whether its model is a complete model with the target's tokens."""
        return self.model == "required" and not self.is_head and not self.retokenizes

    def parameter(self, name: str) -> Parameter:
        """The parameter of this name; UsageError lists the existing ones."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        allowed = ", ".join(parameter.name for parameter in self.parameters) or "none"
        raise UsageError(f"{self.name}: unknown parameter {name!r}; allowed: {allowed}")

    def settings(self, given: Mapping[str, Setting]) -> Settings:
        """All parameters: the given values, and the defaults of the others."""
        return {**{p.name: p.default for p in self.parameters}, **given}

    def shape(self, given: Mapping[str, Setting], k: int) -> RoundShape:
        """The shape of a round that drafts up to k tokens deep, with these parameters."""
        return self.round_shape(self.settings(given), k) if k else RoundShape(0, 0)

    def takes_p_min(self, given: Mapping[str, Setting], *, is_gguf: bool = False) -> bool:
        """Whether it drafts a chain of tokens with probabilities, with these parameters; llama.cpp,
        the only engine for GGUF files, drafts nothing but chains."""
        return self.draws and (is_gguf or self.tree(self.settings(given)) is None)

    def draws_with(self, given: Mapping[str, Setting]) -> bool:
        """Whether drafts are sampled above temperature 0, with these parameters."""
        return self.draws and self.tree(self.settings(given)) != "dynamic"


def all_methods() -> tuple[Method, ...]:
    """Every method of the built-in decoder, by name."""
    return tuple(method for method in METHODS.values() if method.is_builtin)


def listed_methods() -> tuple[Method, ...]:
    """Every method by name, without sets of two."""
    return tuple(method for method in METHODS.values() if len(method.parts) == 1)


def find_method(name: str) -> Method:
    """The method of this name, or the set of two; UsageError lists the existing ones."""
    if name not in METHODS:
        allowed = ", ".join(method.name for method in listed_methods())
        raise UsageError(
            f"unknown method {name!r}{nearest(name, METHODS)}; allowed: {allowed}; or a method "
            f"with a model and a lookup ({', '.join(LOOKUPS)}): {MODEL_METHOD}{_AND}{LOOKUPS[0]}"
        )
    return METHODS[name]


def require_builtin(method: Method) -> None:
    """Raise UsageError for a method that the built-in decoder lacks."""
    if not method.is_builtin:
        raise UsageError(f"{method.name}: {ONLY_SERVED}")


def set_name(method: str, lookup: str) -> str:
    """The name of the set in which the lookup drafts if it finds something, else the method."""
    return f"{method}{_AND}{lookup}"


def split_set(word: str) -> tuple[str, str]:
    """`draft.gguf+ngram_mod` without the lookup, and the lookup; empty for other words."""
    first, _, lookup = word.rpartition(_AND)
    return (first, lookup) if first and lookup in LOOKUPS else (word, "")


class ModelKind(NamedTuple):
    """The method that drafts with a model, or None, and the reason."""

    method: str | None
    reason: str

    @property
    def is_model(self) -> bool:
        """Whether it is a complete model, which generates text by itself."""
        return self.method == MODEL_METHOD


def gguf_method(file: GgufFile) -> str:
    """The method that drafts with a GGUF file; most have the architecture's name in llama.cpp."""
    if file.is_assistant:
        return "gemma4_mtp"
    if file.is_dspark:
        return "dspark"
    if file.is_dflash2:
        return "dflash2"
    if file.is_mtp_head:
        return "mtp"
    return file.architecture if file.architecture in METHODS else MODEL_METHOD


def gguf_depth(method: str, file: GgufFile) -> int | None:
    """The most tokens that llama.cpp drafts with a file, whatever K (common/speculative.cpp);
    None: K of them. Several MTP layers draft one token each, and one drafts all."""
    if method == "mtp":
        return file.mtp_layers if file.mtp_layers > 1 else None
    if method in ("dflash", "dspark"):
        starts_at_anchor = method == "dspark" and file.keys.get("dflash.sample_from_anchor") is True
        return file.number("block_size", NEW_BLOCK_SIZE) - (not starts_at_anchor)
    return None


def gguf_draftless(file: GgufFile) -> tuple[str, ...]:
    """The methods by which llama.cpp drafts for a GGUF file without another file."""
    return (*(["mtp"] if file.mtp_layers else []), *LOOKUPS)


def kind_of(files: ModelFiles) -> ModelKind:
    """The kind of a folder, by its config if that is enough, else by its tensors. ModelError."""
    heads = [(method.name, method.head) for method in _ROWS if method.head]
    of_speculators = files.config.get("speculators_model_type")
    if of_speculators is not None:
        known = [name for name, head in heads if head.is_speculators_type]
        method = of_speculators if of_speculators in known else None
        return ModelKind(method, f"speculators_model_type {of_speculators}")
    for name, head in heads:
        if reason := head.by_config(files):
            return ModelKind(name, reason)
    tensor_names = _names(files)
    for name, head in heads:
        if head.by_tensors(tensor_names):
            return ModelKind(name, "the names of its tensors")
    architecture = files.architecture or ""
    for name, head in heads:
        if head.architecture and head.architecture in architecture.lower():
            return ModelKind(name, f"architecture {architecture}")
    if reads := _reads_from_target(files):
        return ModelKind(None, f"architecture {architecture} reads its target's {reads}")
    if files.config.get("is_encoder_decoder"):
        return ModelKind(None, f"architecture {architecture} has an encoder")
    if _CAUSAL.fullmatch(architecture):
        return ModelKind(MODEL_METHOD, f"architecture {architecture}")
    if architecture:
        return ModelKind(None, f"architecture {architecture} writes no text")
    return ModelKind(None, "names no architecture")


def _reads_from_target(files: ModelFiles) -> str | None:
    """What a drafter of no known method cannot compute by itself: hidden states, or the keys and
    values of all its layers. None: nothing."""
    if files.config.get("backbone_hidden_size"):
        return "hidden states and KV cache (backbone_hidden_size)"
    num_shared, num_layers = (files.field(f"num_{part}_layers") for part in ("kv_shared", "hidden"))
    if isinstance(num_shared, int) and isinstance(num_layers, int) and 0 < num_layers <= num_shared:
        return "KV cache (num_kv_shared_layers)"
    return None


MODEL_METHOD = "draft_model"  # the default for a complete model
_AND = "+"  # of the names in a set
ONLY_SERVED = (
    "only serving engines draft with it, and the built-in decoder does not; add --engine llama_cpp"
)
_CAUSAL = re.compile(r".*(ForCausalLM|LMHeadModel|ForConditionalGeneration)")
_MEDUSA_NAME = re.compile(r"(medusa_heads?\.)?(\d+\.\d+\.linear|blocks\.\d+\.layers\.\d+)\.weight")


def _names(files: ModelFiles) -> frozenset[str]:
    """The names of the tensors; empty if they cannot be read without unpickling."""
    try:
        return frozenset(files.head.tensors)
    except ModelError:
        return frozenset()


def _joins(rename: Mapping[str, str], layer: str, names: frozenset[str]) -> bool:
    """Whether the head has the product that joins token and state, and then a layer with this
    tensor."""
    return {"fc.weight", f"layers.0.{layer}.weight"} <= {new_name(name, rename) for name in names}


def _has_masks(names: frozenset[str]) -> bool:
    return "mask_hidden" in names


def _peagle_config(files: ModelFiles) -> str | None:
    if files.config.get("parallel_drafting"):
        return "parallel_drafting"
    return files.architecture if _is_named(files, "peagle") else None


def _is_named(files: ModelFiles, method: str) -> bool:
    return method in (files.architecture or "").lower()


def _dflash_config(files: ModelFiles, method: str) -> str | None:
    architecture = files.architecture or ""
    return f"architecture {architecture}" if method_of([architecture]) == method else None


def _eagle3_config(files: ModelFiles) -> str | None:
    is_eagle3 = _is_named(files, "eagle3") and not _has_masks(_names(files))
    return f"architecture {files.architecture}" if is_eagle3 else None


def _medusa_config(files: ModelFiles) -> str | None:
    if "medusa_num_heads" in files.config:
        return "medusa_num_heads"
    return "its files" if any(files.folder.glob("medusa_lm_head.*")) else None


def _are_mtp_layers(names: frozenset[str]) -> bool:
    """Whether all tensors belong to MTP layers; otherwise the layers are part of a model."""
    prefixes = ("mtp.", "mtp_layers.", "model.mtp_layers.")
    return bool(names) and all(name.startswith(prefixes) for name in names)


def _has_mtp_layers(target: ModelFiles) -> bool:
    if family_name(target.config.get("model_type")) not in FAMILIES:
        return False
    try:
        return bool(layer_tensors(target.head).tensors)
    except ModelError:
        return False


def _mtp_fit(files: Files, target: HeadTarget) -> Fit:
    family_of(files)
    if files.tensors:
        layer_tensors(files)
    fit = mtp_fit(files, target)
    if files.tensors and not misfits(fit):
        require_mtp_tensors(files, target.hidden_size)
    return fit


def _medusa_shapes(files: Files, target: HeadTarget) -> Mapping[str, tuple[int, ...]]:
    shapes = MedusaLayout.of(medusa_tensors(files), target).shapes
    return {name: shape for name, shape in shapes.items() if name != "token_map"}


def _eagle3_layers(files: Files, num_layers: int, *, is_parallel: bool = False) -> LayerReport:
    style = Style.of(files, num_layers, is_parallel=is_parallel)
    reason = "the inputs of these layers are read; all are there"
    return LayerReport("layer_ids", list(style.layer_ids), reason)


def _named_tree(settings: Settings) -> str | None:
    return None if settings["tree"] == "chain" else str(settings["tree"])


def _feature_tree(settings: Settings, k: int) -> RoundShape:
    """Known tokens need one forward, whose last state also yields the first drafts."""
    if settings["tree"] == "chain":
        return RoundShape(k, k)
    if settings["tree"] == "static":
        static = EAGLE_STATIC.cut(k)
        return RoundShape(static.num_drafts, static.depth)
    top_k, most = settings["top_k"], settings["max_drafts"]
    depth = min(k, DEEPEST_BEAM)
    return RoundShape(num_dynamic_drafts(depth, top_k, most), depth, spare_slots(top_k, most))


def feature_depth(tree: str) -> int | None:
    """The largest K of heads that continue from hidden states; None for chains: no limit."""
    return {"static": EAGLE_STATIC.depth, "dynamic": DEEPEST_BEAM}.get(tree)


def _medusa_shape(settings: Settings, k: int) -> RoundShape:
    return RoundShape(k if settings["tree"] == "chain" else settings["max_drafts"], 1)


def _medusa_depth(settings: Settings, head: OpenHead, vocab_size: VocabSize) -> int:
    files, most = head(), vocab_size()
    kind, max_drafts = settings["tree"], settings["max_drafts"]
    if files is not None:
        return MedusaTree.of(files, kind=kind, max_drafts=max_drafts, vocab_size=most).depth
    new = MedusaTree(num_heads=NEW_HEADS, num_tokens=most, kind=kind, max_drafts=max_drafts)
    return new.depth


def _dflash_depth(settings: Settings, head: OpenHead, vocab_size: VocabSize) -> int:  # noqa: ARG001
    files = head()
    return DFlashStyle.of(files).depth if files else NEW_BLOCK_SIZE - 1


def num_first_layers(requested: int, most: int) -> int:
    """The number of the target's `most` layers that draft; a setting of 0 means a quarter."""
    return requested or max(most // 4, 1)


def lookahead_depth(ngram: int) -> int:
    """The largest K: an n-gram without its first token, which is known."""
    return ngram - 1


def _lookahead_shape(settings: Settings, k: int) -> RoundShape:  # noqa: ARG001
    """All tokens of the window and the guesses, except the first, which is the current token."""
    levels = settings["ngram"] - 1
    return RoundShape(levels * (settings["window"] + settings["guesses"]) - 1, 0)


def _lookahead_bytes(settings: Settings, sizes: BufferSizes) -> int:
    ngram: int = settings["ngram"]
    guesses: int = settings["guesses"]
    buckets = min(NGRAM_BUCKETS, sizes.vocab_size)
    levels: int = (ngram - 1) * settings["window"] + 1  # and how many of them are filled
    pool = (buckets * guesses + 1) * ngram + buckets
    return sizes.num_rows * _ID_BYTES * (levels + pool)


def _last_states(settings: Settings, sizes: BufferSizes) -> int:  # noqa: ARG001
    """Bytes for the hidden state before the current token of each row."""
    return sizes.num_rows * sizes.state_bytes


# Models that draft in every round, from their own distribution.
_draws = partial(Method, draws=True, always_drafts=True)
# Heads that continue from the target's last hidden state.
_continues = partial(
    _draws,
    model="required",
    buffer_bytes=_last_states,
    round_shape=lambda _, k: RoundShape(k, k),
)

_TREE_WIDTHS = Parameter(
    "tree",
    (),
    None,
    "How many children the nodes of each level have, 1 past its end; K is its depth.",
)
# Models that draft a chain, or the tree with these widths.
_branches = partial(
    _draws,
    tree=lambda settings: "static" if settings["tree"] else None,
    round_shape=lambda settings, k: RoundShape(num_static_drafts(settings["tree"], k), k),
)
_EAGLE_PARAMETERS = (
    Parameter(
        "tree",
        "dynamic",
        ("chain", "static", "dynamic"),
        "`dynamic`: the `max_drafts` most likely paths of a beam of `top_k` (EAGLE-2, "
        "arXiv:2406.16858). `static`: EAGLE-1's tree, 5 levels. `chain`: one by one.",
    ),
    Parameter(
        "top_k", 10, range(1, 65), "The width of a dynamic tree's beam, in tokens per level."
    ),
    Parameter("max_drafts", 59, range(1, 257), "The most drafts of a dynamic tree per round."),
)

_eagle = partial(
    _continues,
    parameters=_EAGLE_PARAMETERS,
    tree=_named_tree,
    round_shape=_feature_tree,
    deepest=lambda settings, *_: feature_depth(settings["tree"]),
)


def _dflash(name: str, layouts: Layouts, summary: str) -> Method:
    """A head that fills in a block of masks."""
    return _draws(
        name=name,
        summary=summary,
        model="required",
        # A small part of the head processes the text before the block.
        round_shape=lambda _, k: RoundShape(k, 2, num_small=1),
        deepest=_dflash_depth,
        head=HeadFacts(
            layouts=layouts,
            fit=partial(dflash_fit, method=name),
            reads_target_head=True,
            by_config=partial(_dflash_config, method=name),
            report_layers=lambda files, _: LayerReport(
                "layer_ids", list(DFlashStyle.of(files).layer_ids), "all are there"
            ),
        ),
    )


# Models with another tokenizer than the target's.
_retokenizes = partial(
    Method, model="required", retokenizes=True, round_shape=lambda _, k: RoundShape(k, k)
)

# Files of heads are recognized in this order.
_ROWS = (
    _continues(
        name="mtp",
        summary=(
            "The multi-token prediction layers of the target "
            "(DeepSeek-AI 2024, arXiv:2412.19437, 2.2)."
        ),
        model="optional",
        head=HeadFacts(
            layouts=MTP_LAYOUTS,
            fit=_mtp_fit,
            by_tensors=_are_mtp_layers,
            reads_target_head=True,
            report_layers=lambda files, _: LayerReport(
                "mtp_layers", num_mtp_layers(files), "in the files"
            ),
            num_model_layers=num_mtp_layers,
            select=layer_tensors,
            is_in_target=_has_mtp_layers,
            needs_modules=lambda files: family_of(files).decoder not in DENSE,
        ),
    ),
    _continues(
        name="gemma4_mtp",
        summary=(
            "Google's assistants of Gemma 4 (MTP drafters), which attend to the target's own keys "
            "and values."
        ),
        head=HeadFacts(
            layouts=GEMMA4_LAYOUTS,
            fit=gemma4_mtp_fit,
            by_config=lambda files: assistant_reason(files.architecture),
            is_speculators_type=False,
            kept_shapes=assistant_shapes,
            num_unread=lambda files: AssistantStyle.of(files).num_unread,
        ),
    ),
    _continues(
        name="peagle",
        summary="EAGLE-3's head, trained to draft K tokens in one forward (arXiv:2602.01469).",
        round_shape=lambda _, k: RoundShape(k, min(k, 2)),
        head=HeadFacts(
            layouts=PEAGLE_LAYOUTS,
            fit=partial(eagle3_fit, is_parallel=True),
            tensor_names=EAGLE3_NAMES,
            by_config=_peagle_config,
            by_tensors=_has_masks,
            report_layers=partial(_eagle3_layers, is_parallel=True),
        ),
    ),
    _dflash(
        "dflash",
        DFLASH_LAYOUTS,
        "A block-diffusion head fills in K masks in one forward "
        "(Chen et al. 2026, arXiv:2602.06036).",
    ),
    _dflash(
        "dflash2",
        DFLASH2_LAYOUTS,
        "DFlash's block with convolutions, drafted token by token among the likeliest "
        "(Inco AI 2026).",
    ),
    _dflash(
        "dspark",
        DSPARK_LAYOUTS,
        "DFlash's block, drafted token by token with a bias by the token before "
        "(DeepSeek-AI 2026, arXiv:2607.05147).",
    ),
    _eagle(
        name="eagle3",
        summary="A head over three of the target's hidden states, trained on its own drafts.",
        head=HeadFacts(
            layouts=EAGLE3_LAYOUTS,
            fit=eagle3_fit,
            tensor_names=EAGLE3_NAMES,
            by_config=_eagle3_config,
            by_tensors=partial(_joins, EAGLE3_NAMES, "hidden_norm"),
            report_layers=_eagle3_layers,
        ),
    ),
    _eagle(
        name="eagle",
        summary=(
            "One-layer head that continues from the target's last hidden state (arXiv:2401.15077)."
        ),
        head=HeadFacts(
            layouts=EAGLE_LAYOUTS,
            fit=eagle_fit,
            tensor_names=EAGLE_NAMES,
            by_tensors=partial(_joins, EAGLE_NAMES, "self_attn.q_proj"),
            architecture="eagle",
            reads_target_head=True,
        ),
    ),
    Method(
        name="medusa",
        summary=(
            "Heads that each guess one token further ahead (Cai et al. 2024, arXiv:2401.10774)."
        ),
        model="required",
        always_drafts=True,
        parameters=(
            Parameter(
                "tree",
                "auto",
                ("auto", "chain", "published", "stage2", "fitted"),
                "`auto` is a tree fitted to the heads' measured accuracies if their config "
                "has them, else the published one.",
            ),
            Parameter(
                "max_drafts",
                63,
                range(1, 257),
                "The most nodes of the tree, which K cuts to its levels.",
            ),
        ),
        tree=_named_tree,
        round_shape=_medusa_shape,
        deepest=_medusa_depth,
        buffer_bytes=_last_states,
        head=HeadFacts(
            layouts=MEDUSA_LAYOUTS,
            fit=medusa_fit,
            by_config=_medusa_config,
            by_tensors=lambda names: any(_MEDUSA_NAME.fullmatch(name) for name in names),
            is_speculators_type=False,
            kept_shapes=_medusa_shapes,
        ),
    ),
    _branches(
        name=MODEL_METHOD,
        summary=(
            "Chain or tree drafting with its own KV cache "
            "(Leviathan et al. 2023, arXiv:2211.17192)."
        ),
        model="required",
        parameters=(_TREE_WIDTHS,),
    ),
    _retokenizes(
        name="token_intersection",
        summary=(
            "Drafts from a model with another tokenizer, only tokens that both have "
            "(Timor et al. 2025, arXiv:2502.05202, TLI)."
        ),
        draws=True,
    ),
    _retokenizes(
        name="string_match",
        summary=(
            "Drafts the text of a model with another tokenizer, encoded again in the target's "
            "tokens (Timor et al. 2025, arXiv:2502.05202, SLEM)."
        ),
    ),
    _branches(
        name="self_speculation",
        summary=(
            "The target's first layers draft for all of it "
            "(Elhoushi et al. 2024, arXiv:2404.16710)."
        ),
        parameters=(
            Parameter(
                "num_layers",
                0,
                range(257),
                "How many of the target's first layers draft; 0: a quarter of all.",
            ),
            _TREE_WIDTHS,
        ),
        num_target_layers=lambda settings, most: num_first_layers(settings["num_layers"], most),
    ),
    Method(
        name="ngram",
        summary=(
            "Prompt lookup without a model; a suffix that never occurred before drafts nothing."
        ),
        parameters=(
            Parameter(
                "max_ngram", 3, range(1, 33), "The longest suffix that is looked up, in tokens."
            ),
            Parameter(
                "min_ngram", 1, range(1, 33), "The shortest suffix that may match, in tokens."
            ),
        ),
    ),
    Method(
        name="suffix",
        summary=(
            "Suffix decoding: trees of the text and of earlier answers "
            "(Oliaro 2024, arXiv:2411.04975)."
        ),
        learns=True,
        parameters=(
            Parameter("max_depth", 24, range(2, 129), "The depth of the suffix trees, in tokens."),
            Parameter(
                "max_cached_requests", 1000, range(100_001), "How many earlier answers are kept."
            ),
            Parameter(
                "max_spec_factor", 1.0, None, "The most tokens drafted per token matched, above 0."
            ),
            Parameter(
                "min_token_prob",
                0.1,
                None,
                "The least probability of a drafted token by the counts, 0 to 1.",
            ),
        ),
    ),
    Method(
        name="lookahead",
        summary=(
            "Jacobi iterations run alongside decoding and collect n-grams to try (Fu et al. 2024, "
            "arXiv:2402.02057)."
        ),
        parameters=(
            Parameter(
                "window",
                5,
                range(1, 65),
                "The tokens of each level; the paper has 15 for a 7B model on an A100, its "
                "code's examples 7.",
            ),
            Parameter("ngram", 5, range(2, 17), "The tokens of an n-gram; K is at most one less."),
            Parameter("guesses", 5, range(1, 65), "The most n-grams that are tried per round."),
            Parameter(
                "pool_from_prompt", True, None, "Whether the n-grams of the prompt are collected."
            ),
        ),
        tree=lambda _: "dynamic",
        round_shape=_lookahead_shape,
        deepest=lambda settings, *_: lookahead_depth(settings["ngram"]),
        buffer_bytes=_lookahead_bytes,
    ),
    Method(
        name="token_recycling",
        summary=(
            "A tree of the successors each token had last time (Luo et al. 2024, arXiv:2408.08696)."
        ),
        parameters=(
            Parameter(
                "max_drafts", 80, range(1, 257), "The drafts of the whole tree, which K cuts."
            ),
            Parameter(
                "warm_start",
                False,
                None,
                "Whether the table is kept for the next pass, as in a server; a benchmark "
                "decodes the same prompts again, and that flatters it.",
            ),
        ),
        tree=lambda _: "dynamic",
        round_shape=lambda settings, _: RoundShape(settings["max_drafts"], 0),
        deepest=lambda settings, _, size: recycling_tree(settings["max_drafts"], size()).depth,
        buffer_bytes=lambda _, sizes: (sizes.vocab_size + 1) * len(RANK_PROBS) * _ID_BYTES,
    ),
    Method(
        name="previous_turn",
        summary=(
            "Copies from the previous answer, or from the text being edited, at the position the "
            "new answer has reached."
        ),
        parameters=(
            Parameter(
                "max_ngram",
                3,
                range(1, 33),
                "How many of the last tokens are looked for in the reference.",
            ),
            Parameter(
                "verify_prediction_first",
                False,
                None,
                "Whether all that the reference says is checked in one long forward when the "
                "first token is known.",
            ),
        ),
        # The reference text of each row, its length and two positions in it.
        buffer_bytes=lambda _, sizes: sizes.num_rows * _ID_BYTES * (sizes.capacity + 3),
    ),
)

_LONG = (16, 48)  # the K of lookups of long matches; llama.cpp's own default is 48 or 64
_lookup = partial(Method, is_builtin=False, usual_ks=_LONG)
_KEY_SIZE = Parameter("key_size", 12, range(1, 129), "The tokens that are looked up.")
_MIN_HITS = Parameter("min_hits", 1, range(1, 129), "How often they must have occurred.")
# Source: docs/speculative.md and common/speculative.cpp of llama.cpp, 2026-11.
_SERVED_LOOKUPS = (
    _lookup(
        name="ngram_map_k",
        summary="Lookup of llama.cpp that remembers how many tokens of each match were accepted.",
        parameters=(_KEY_SIZE, _MIN_HITS),
    ),
    _lookup(
        name="ngram_map_k4v",
        summary="Lookup of llama.cpp that keeps up to four continuations of a key and drafts one "
        "that clearly came most often.",
        parameters=(_KEY_SIZE, _MIN_HITS),
    ),
    _lookup(
        name="ngram_mod",
        summary="Lookup of llama.cpp in a hash table that all requests share.",
        learns=True,
        parameters=(
            Parameter("match_length", 24, range(1, 129), "The tokens that are looked up."),
            Parameter("min_drafts", 1, range(129), "The fewest tokens that are drafted."),
        ),
    ),
    _lookup(
        name="ngram_cache",
        summary="Lookup of llama.cpp by counts of short n-grams, up to 8 tokens.",
        usual_ks=(),
        only_k=8,
    ),
)
LOOKUPS = ("ngram", *(method.name for method in _SERVED_LOOKUPS))
SET_LOOKUP = "ngram_mod"  # the one that people combine with a model


_MODEL_DRAFTS = Parameter(
    "model_drafts", 3, range(1, 65), "The most tokens that the model drafts per round, at most K."
)


def _set(first: Method, lookup: Method) -> Method:
    """The lookup drafts if it finds something, else the first method; K is the lookup's."""
    return replace(
        first,
        name=set_name(first.name, lookup.name),
        summary=f"{lookup.name} if it finds something, else {first.name}.",
        parameters=(*first.parameters, *lookup.parameters, _MODEL_DRAFTS),
        learns=lookup.learns,
        deepest=lookup.deepest,
        is_builtin=False,
        usual_ks=lookup.usual_ks,
        only_k=lookup.only_k,
    )


_SINGLE = {m.name: m for m in sorted((*_ROWS, *_SERVED_LOOKUPS), key=lambda m: m.name)}
_SETS = [
    _set(method, _SINGLE[lookup])
    for method in _SINGLE.values()
    if method.model != "refused"
    for lookup in LOOKUPS
]
METHODS: Mapping[str, Method] = {**_SINGLE, **{method.name: method for method in _SETS}}
