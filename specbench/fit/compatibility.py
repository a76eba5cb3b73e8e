"""Whether a drafter fits a target, from their files alone: nothing is loaded, no code runs.

The rules are those that loading holds a pair to: what is refused here would be refused there.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from specbench.errors import ModelError
from specbench.files.attention import (
    NO_TREES,
    RECURRENT,
    is_hybrid,
    rope_type,
    ropes,
    unsupported_attention,
)
from specbench.files.model import ModelFiles, open_model
from specbench.files.sizes import require_sizes, require_weights
from specbench.files.stored_format import loading_refusal
from specbench.files.tokenizer_files import TOKENIZER_FILES
from specbench.fit.finding import NO_WEIGHTS, Finding, Level, finding
from specbench.fit.head_findings import head_findings
from specbench.fit.vocabulary_findings import (
    chat_template_findings,
    context_findings,
    eos_findings,
    padding_findings,
    retokenized_findings,
    template_findings,
    tokenizer_findings,
    vocabulary_findings,
)
from specbench.inputs.pairing import Drafter
from specbench.methods import find_method, kind_of

# Model types with nothing but state; transformers marks their classes.
_RECURRENT_TYPES = frozenset(
    {"mamba", "mamba2", "falcon_mamba", "mamba_hybrid", "rwkv", "xlstm", "recurrent_gemma"}
)
_PLAIN_DTYPES = (None, "float32", "bfloat16", "float16")
_PROVEN_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
_PAIR_CHECKS = (
    vocabulary_findings,
    chat_template_findings,
    eos_findings,
    padding_findings,
    context_findings,
)
_RETOKENIZED_CHECKS = (retokenized_findings, chat_template_findings, context_findings)
UNREADABLE = (ModelError, OSError, TypeError, ValueError, LookupError, AttributeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compatibility:
    """A drafter with everything that its files say about its fit."""

    drafter: Drafter
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The worst of the findings."""
        levels = {finding.level for finding in self.findings}
        return "refused" if "refused" in levels else "warning" if "warning" in levels else "ok"

    def of_level(self, level: Level) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


def is_proven(model: ModelFiles) -> bool:
    """Whether the config alone says that the decoder runs the model: a dense family that is tested
    token by token, without a field that changes what a layer computes. ModelError."""
    is_quantized = model.field("quantization_config") is not None
    if model.dense_kind is None or is_quantized:
        return False
    _ = model.eos_ids
    kinds = {str(rope_type(rope) or "default") for rope in ropes(model.field)}
    return (
        kinds <= _PROVEN_ROPES
        and not model.field("sliding_window")
        and model.field("hidden_act") in (None, "silu")
        and model.field("dtype") in _PLAIN_DTYPES
        and isinstance(model.field("rms_norm_eps"), float | int | None)
        and model.hidden_size % model.must("num_attention_heads") == 0
    )


def check_target(target: ModelFiles, ignored: Collection[str] = ()) -> tuple[Finding, ...]:
    """What speaks against the target itself, whatever drafts for it, but for `ignored` fields."""
    checks = (_model_findings, tokenizer_findings, template_findings)
    found = (one for check in checks for one in _read(partial(check, target)))
    return tuple(
        replace(one, target=one.draft, draft=None) for one in found if one.field not in ignored
    )


def check_drafter(
    target: ModelFiles, drafter: Drafter, ignored: Collection[str] = ()
) -> Compatibility:
    """Every rule about this drafter, but for `ignored` fields; files that are not what they should
    be are a refusal."""
    found = (one for one in _drafter_findings(target, drafter) if one.field not in ignored)
    return Compatibility(drafter=drafter, findings=tuple(dict.fromkeys(found)))


def _drafter_findings(target: ModelFiles, drafter: Drafter) -> Iterator[Finding]:
    method = find_method(drafter.method)
    yield from _read(partial(_tree_findings, target, drafter))
    if drafter.model is None and method.model == "required":
        yield finding("model", "refused", reason=f"the method {drafter.method} needs a model")
        return
    if drafter.model is None and not method.is_head:
        yield from _read(partial(_parameter_findings, target, drafter))
        return
    try:
        draft = target if drafter.model is None else open_model(drafter.model)
    except ModelError as error:
        yield finding("files", "refused", reason=str(error))
        return
    if method.is_head:
        yield from _read(partial(head_findings, target, draft, method))
        if draft is not target:
            yield from _read(partial(context_findings, target, draft))
        if draft is not target and any(map(draft.tokenizer_file, TOKENIZER_FILES)):
            yield from _read(partial(vocabulary_findings, target, draft))
        return
    yield from _read(partial(_model_findings, draft))
    yield from _read(partial(_tree_findings, draft, drafter))
    for check in _RETOKENIZED_CHECKS if method.retokenizes else _PAIR_CHECKS:
        yield from _read(partial(check, target, draft))


def _read(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check's findings up to where a file cannot be read, which is a refusal."""
    try:
        yield from check()
    except UNREADABLE as error:
        is_told = isinstance(error, ModelError)
        yield finding("files", "refused", reason=str(error) if is_told else repr(error))


def _model_findings(model: ModelFiles) -> Iterator[Finding]:
    """Whether the decoder would load and run a whole model."""
    require_sizes(model)
    spec, model_type = model.spec, model.config.get("model_type")
    kind = kind_of(model)
    if not kind.is_model:
        told = kind.reason if kind.method is None else f"{kind.reason} says it is a head"
        reason = f"does not write text by itself: {told}; choose a decoder-only model"
        yield finding("kind", "refused", draft=kind.method, reason=reason)
        return
    yield from _code_findings(model)
    if str(model_type) in _RECURRENT_TYPES:
        yield finding("attention", "refused", reason=f"{spec.source} {RECURRENT}")
    elif unsupported := unsupported_attention(model.field):
        yield finding("attention", "refused", reason=f"{spec.source} {unsupported}")
    require_weights(model)
    if unloadable := loading_refusal(model):
        yield finding("loading", "refused", reason=f"{spec.source}: {unloadable}")
    if spec.is_shape:
        yield finding(
            "weights", "warning", None, spec.source, "made up, and its text means nothing"
        )
    elif (lacking := model.lacking_weights) and model.pickles:
        yield finding("weights", "refused", None, model.pickles[0], lacking)
    elif lacking:
        yield finding("weights", "warning", None, NO_WEIGHTS, lacking)
    else:
        yield finding("weights", "ok", None, f"{len(model.tensors or ())} tensors", "readable")


def _tree_findings(model: ModelFiles, drafter: Drafter) -> Iterator[Finding]:
    """Whether the model takes the drafts in the shape that they come in."""
    method = find_method(drafter.method)
    is_chain = all(method.shape(drafter.parameters, k).num_drafts == k for k in (2, 4))
    if is_hybrid(model.field) and not is_chain:
        yield finding("attention", "refused", reason=f"{model.spec.source} {NO_TREES}")


def _code_findings(model: ModelFiles) -> Iterator[Finding]:
    """Foreign code is never run here; the loader runs it only where pairings.yaml trusts it."""
    model_type = model.config.get("model_type")
    known = _is_known(model_type)
    if model.needs_code and not known and not model.spec.trust_remote_code:
        reason = f"model type {model_type} would run the authors' Python (auto_map); "
        advice = "set trust_remote_code: true only if you trust it"
        yield finding("code", "refused", None, "auto_map", reason + advice)
    elif model.needs_code:
        reason = "the files include their own Python (auto_map), which was not run"
        yield finding("code", "warning", None, "auto_map", reason)
    elif known is False:
        reason = f"the installed transformers has no model type {model_type}; a newer one may"
        yield finding("code", "warning", None, str(model_type), reason)


def _parameter_findings(target: ModelFiles, drafter: Drafter) -> Iterator[Finding]:
    """Findings on methods without weights of their own."""
    method = find_method(drafter.method)
    if method.num_target_layers is None:
        yield finding("kind", "ok", None, method.name, "needs nothing but the target")
        return
    used = method.num_target_layers(method.settings(drafter.parameters), target.num_layers)
    level: Level = "refused" if used > target.num_layers else "ok"
    yield finding("num_layers", level, target.num_layers, used, "of the target's layers draft")


def _is_known(model_type: object) -> bool | None:
    """Whether transformers has code for this type of model; None where it is not installed."""
    models = _transformers_models()
    if models is None:
        return None
    name = str(model_type).replace("-", "_")
    return any((models / part).is_dir() for part in (name, name.removesuffix("_text")) if part)


@cache
def _transformers_models() -> Path | None:
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None
