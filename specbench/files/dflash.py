"""Facts about a DFlash, DFlash 2 or DSpark head from its files, and whether it fits.

Sources: z-lab/dflash (dflash/model.py), speculators 0.9 (models/dflash), SpecForge 0.2
(modeling/draft/dflash.py), NVIDIA's modelopt 0.47 (plugins/hf_dflash.py, hf_spec_export.py). For
DSpark: vllm-project/vllm at 0302ff4 (models/qwen3_dspark.py), speculators (models/dspark). For
DFlash 2: z-lab's dflash 0.1.0 (model.py), speculators 0.9 (models/dflash2), vllm-project/vllm at
030da62 (models/qwen3_dflash2.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specbench.errors import ModelError
from specbench.files.config import SLIDING, Fields, layer_fields, layer_shapes, layer_windows
from specbench.files.head_files import (
    SPECULATORS,
    AnyFiles,
    Fit,
    HeadFiles,
    HeadTarget,
    Shaped,
    misfits,
    require_tensors,
    table_shapes,
    token_ids,
)

DFLASH_ARCHITECTURE = "DFlashDraftModel"
DFLASH2_ARCHITECTURE = "DFlash2DraftModel"
DSPARK_ARCHITECTURE = "Qwen3DSparkModel"
_ARCHITECTURES = {  # by method; a class is of the first one that is part of its name
    "dflash2": (DFLASH2_ARCHITECTURE,),
    "dspark": (DSPARK_ARCHITECTURE, "DSparkDraftModel", "DSparkSpeculator"),
    "dflash": (DFLASH_ARCHITECTURE, "DFlashSpeculator"),
}
MARKOV = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")
SELECTOR = (
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
    "candidate_selector.hidden_projection.weight",
)
EMBEDDING = "embed_tokens.weight"
_DFLASH, _SPECULATORS = "dflash_config", "transformer_layer_config"
_NEEDS = ("target_layer_ids", "mask_token_id", "num_hidden_layers")
_SPECULATORS_NEEDS = ("aux_hidden_state_layer_ids", "mask_token_id")
_METHOD_NEEDS = {
    "dspark": ("markov_rank",),
    "dflash2": ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashStyle:
    """Properties that differ between heads, from their configs."""

    layer_ids: tuple[int, ...]  # target layers whose outputs are read; -1: the embedding
    reads_bare_output: bool  # reads the target's last layer before the final norm
    mask_id: int
    block_size: int  # the current token and its draft tokens
    drafts_from_current: bool  # the current token's position also gives a draft token
    num_tokens: int | None  # tokens that the head can draft; None: all of the target's
    windows: tuple[int | None, ...]  # per layer
    is_causal: tuple[bool, ...]  # per layer: a token sees only earlier tokens of the block
    windows_from_current: bool  # windows count back from the current token, not from each token
    embedding_scale: float
    logit_scale: float
    softcap: float  # of logits; 0: none
    method: str  # dflash, dflash2 or dspark
    markov_rank: int  # of DSpark's product that adds to logits by the token before; 0: none
    num_taps: int  # of DFlash 2's convolutions: a token and those before it; 0: none
    group_size: int  # channels that share a kernel of the convolutions
    selector_rank: int  # of the product that adds to DFlash 2's candidates by the token before
    num_candidates: int  # per draft token

    @classmethod
    def of(cls, files: HeadFiles[Shaped]) -> "DFlashStyle":
        """Read a config; ModelError for missing or wrong fields, and for unsupported variants."""
        given, is_speculators = _fields(files), files.fields.has(SPECULATORS)
        names = (files.fields.text(SPECULATORS) or "", *files.fields.texts("architectures"))
        method = method_of(names) or "dflash"
        _refuse_relatives(files, given, method)
        is_dspark, is_dflash2 = method == "dspark", method == "dflash2"
        needs = _SPECULATORS_NEEDS if is_speculators else _NEEDS
        given.require(*needs, *_METHOD_NEEDS.get(method, ()))
        layer_ids = given.ids(needs[0])
        if not layer_ids:
            given.fail(needs[0], "the numbers of one layer or more")
        windows = _windows(given)
        scales = given.number("input_embedding_scale"), given.number("output_multiplier")
        softcap = given.number("final_logit_softcapping") or 0.0
        if is_dspark and (softcap or scales != (None, None)):
            name = "final_logit_softcapping" if softcap else "a scale"
            raise ModelError(
                f"{files.source}: it has {name}, and no source says whether that comes before the "
                "bias of its Markov head; measure it with a serving engine"
            )
        from_anchor = given.flag("sample_from_anchor")
        if from_anchor is None:
            from_anchor = is_dspark and not is_speculators
        if is_dflash2:
            _check_dflash2(given)
        return cls(
            layer_ids=tuple(i - 1 for i in layer_ids) if is_speculators else layer_ids,
            reads_bare_output=is_speculators,
            mask_id=given.must("mask_token_id"),
            block_size=given.whole("block_size", least=2) or (8 if is_speculators else 16),
            drafts_from_current=from_anchor,
            num_tokens=given.whole("draft_vocab_size", least=1) if is_speculators else None,
            windows=windows,
            is_causal=_causal_layers(given, windows, method, is_speculators=is_speculators),
            windows_from_current=is_speculators,
            embedding_scale=1.0 if scales[0] is None else scales[0],
            logit_scale=1.0 if scales[1] is None else scales[1],
            softcap=softcap,
            method=method,
            markov_rank=given.whole("markov_rank") or 0 if is_dspark else 0,
            num_taps=given.must("conv_kernel_size", 1) if is_dflash2 else 0,
            group_size=given.must("conv_group_size", 1) if is_dflash2 else 0,
            selector_rank=given.must("selector_rank", 1) if is_dflash2 else 0,
            num_candidates=given.must("selector_top_k", 1) if is_dflash2 else 0,
        )

    @property
    def depth(self) -> int:
        """Draft tokens per block."""
        return self.block_size - (not self.drafts_from_current)


def dflash_fit(files: HeadFiles[Shaped], target: HeadTarget, method: str) -> Fit:
    """The sizes of a head of that method that must equal the target's. ModelError, also if the head
    names layers or tokens that the target lacks, or if its tensors and id tables do not fit."""
    given, style = _fields(files), DFlashStyle.of(files)
    if style.method != method:
        raise ModelError(f"{files.source}: it is a head of {style.method}, not of {method}")
    num_layers = given.whole("num_target_layers", least=1) or target.num_layers
    fit: Fit = {
        "hidden_size": (given.whole("hidden_size", least=1), target.hidden_size),
        "vocab_size": (given.whole("vocab_size", least=1), target.vocab_size),
        "num_target_layers": (num_layers, target.num_layers),
    }
    ids, mask_id = list(style.layer_ids), style.mask_id
    if misfits(fit):
        return fit
    if max(ids) >= target.num_layers or mask_id >= target.vocab_size:
        raise ModelError(
            f"{files.source}: target_layer_ids {ids} must be below {target.num_layers}, and "
            f"mask_token_id {mask_id} below {target.vocab_size}; choose a head of this target"
        )
    if files.tensors:
        size, V = target.hidden_size, target.vocab_size
        D = style.num_tokens or V
        shapes = {
            "fc.weight": (size, len(ids) * size),
            "hidden_norm.weight": (size,),
            "norm.weight": (size,),
            **layer_shapes(layer_fields(with_layer_fields(files).fields), files.tensors.keys()),
        }
        optional = {"lm_head.weight": (D, size), **table_shapes(D, V)}
        if method == "dflash2":
            shapes |= dflash2_shapes(style, size, V)
        elif method == "dspark":
            optional |= {EMBEDDING: (V, size)}
            rank = style.markov_rank
            shapes |= dict(zip(MARKOV, ((V, rank), (D, rank)), strict=True)) if rank else {}
            if given.flag("enable_confidence_head"):
                inputs = size + (rank if given.flag("confidence_head_with_markov") else 0)
                optional |= dict(zip(CONFIDENCE, ((1, inputs), (1,)), strict=True))
        require_tensors(files, shapes, optional)
        token_ids(files, D, V)
    return fit


def with_layer_fields(files: AnyFiles) -> AnyFiles:
    """The files with a config of the layers: that of Qwen 3 layers with the head's windows."""
    windows = DFlashStyle.of(files).windows
    fields = {
        **_fields(files).values,
        "model_type": "qwen3",
        "layer_types": [SLIDING if window else "full_attention" for window in windows],
        "sliding_window": next(filter(None, windows), None),
    }
    fields.pop(_SPECULATORS, None)
    return replace(files, config=fields)


def method_of(names: Iterable[str]) -> str | None:
    """The method of a head with one of these classes or types; None: none of this module."""
    lower = [name.lower() for name in names]
    return next((m for m in _ARCHITECTURES if any(m in name for name in lower)), None)


def _check_dflash2(given: Fields) -> None:
    """Raise ModelError for sizes that do not fit each other, and for what no engine runs."""
    if given.must("hidden_size", 1) % given.must("conv_group_size", 1):
        given.fail("conv_group_size", "a divisor of hidden_size")
    vocab_size = given.whole("vocab_size", least=1)
    given.whole("selector_top_k", least=1, most=vocab_size)
    if given.whole("draft_vocab_size") not in (None, vocab_size):
        given.fail("draft_vocab_size", "vocab_size, as its candidates are the target's tokens")
    if given.flag("sample_from_anchor"):
        given.fail("sample_from_anchor", "false for a DFlash 2 head")


def dflash2_shapes(style: DFlashStyle, size: int, V: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that DFlash 2 adds; its kernels are for before and after a module."""
    taps, rank = style.num_taps, style.selector_rank
    num_kernels = 2 * taps * (size // style.group_size)
    shapes: dict[str, tuple[int, ...]] = dict(
        zip(SELECTOR, ((V, rank), (V, rank), (rank, size)), strict=True)
    )
    for i in range(len(style.windows)):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{i}.{name}.base_kernel"] = (2, taps, size)
            shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (num_kernels, size)
    return shapes


def _fields(files: HeadFiles[Shaped]) -> Fields:
    """The config, with the entries of its DFlash and speculators sections merged in."""
    values = dict(files.config)
    for name in (_DFLASH, _SPECULATORS):
        section = files.fields.section(name)
        values |= section.values if section else {}
    return Fields(source=files.source, values=values)


def _refuse_relatives(files: HeadFiles[Shaped], given: Fields, method: str) -> None:
    known = _ARCHITECTURES[method]
    if (kind := files.fields.text(SPECULATORS)) not in (None, *_ARCHITECTURES):
        supported = ", ".join(_ARCHITECTURES)
        raise ModelError(f"{files.source}: {SPECULATORS} is {kind}; {supported} are supported")
    # Not `given`: the section for the layers names the target's class.
    if unknown := [n for n in files.fields.texts("architectures") if n not in known]:
        names = " or ".join(known)
        raise ModelError(f"{files.source}: architecture {unknown[0]}; {names} is supported")
    if method == "dspark" and (head := given.text("markov_head_type")) not in (None, "vanilla"):
        raise ModelError(
            f"{files.source}: markov_head_type is {head}; only vanilla heads are supported, which "
            "is also all that vLLM and SGLang serve"
        )
    if (projector := given.text("projector_type")) not in (None, "dflash"):
        raise ModelError(
            f"{files.source}: projector_type is {projector}, a head on top of DFlash, which is "
            "not supported; choose a plain DFlash head"
        )
    if given.flag("attention_sink_bias") or given.flag("add_swa_attention_sink_bias"):
        raise ModelError(
            f"{files.source}: attention_sink_bias is true, which heads cannot run; choose a head "
            "without attention sinks"
        )


def _windows(given: Fields) -> tuple[int | None, ...]:
    """The window of each layer. modelopt enables windows for all layers, whatever their types."""
    layers = Fields(source=given.source, values={**given.values, "model_type": "qwen3"})
    if not given.flag("use_swa") or SLIDING in given.texts("layer_types"):
        return layer_windows(layers)
    window = given.whole("swa_window_size", least=1) or given.whole("sliding_window", least=1)
    if window is None:
        given.fail("swa_window_size", "a number of tokens, because use_swa is true")
    return (window,) * (given.whole("num_hidden_layers") or 1)


def _causal_layers(
    given: Fields, windows: tuple[int | None, ...], method: str, *, is_speculators: bool
) -> tuple[bool, ...]:
    """Whether each layer is causal: those with windows, unless one of several fields sets all."""
    if is_speculators:
        is_free = given.flag("sliding_window_non_causal")
        if method == "dflash2" if is_free is None else is_free:
            return (False,) * len(windows)
    flags = (given.flag(name) for name in ("is_causal", "causal"))
    of_all = next((is_so for is_so in flags if is_so is not None), None)
    return tuple(bool(window) if of_all is None else of_all for window in windows)
