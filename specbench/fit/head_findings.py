"""Whether a head was made for a target: the rules of its method, held against the headers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from specbench.errors import ModelError
from specbench.fit.finding import Finding, finding
from specbench.model_files.dflash_style import DFlashStyle, dflash_fit
from specbench.model_files.eagle3_style import TENSOR_NAMES, Style, eagle3_fit
from specbench.model_files.head_files import HeadFiles, Shaped
from specbench.model_files.head_fit import MISFIT, Fit, HeadTarget, eagle_fit, misfits
from specbench.model_files.head_layouts import layout_of
from specbench.model_files.headers import TensorHeader
from specbench.model_files.kinds import kind_of
from specbench.model_files.medusa_layout import medusa_fit
from specbench.model_files.model import ModelFiles
from specbench.model_files.mtp_families import (
    family_of,
    layer_tensors,
    mtp_fit,
    num_mtp_layers,
    require_mtp_tensors,
)

Files = HeadFiles[TensorHeader]
# What has to fit depends on which tensors a head has of its own; those of a pickle are not known.
_BY_TENSORS = ("hidden_size", "draft_vocab_size")


def head_findings(target: ModelFiles, head: ModelFiles, method: str) -> Iterator[Finding]:
    """Sizes, layers and whose head it is. ModelError says what cannot be read."""
    files = _files(head)
    is_pickle = isinstance(files, Finding) and files.level == "warning"
    if method != "mtp":
        kind = kind_of(head)
        if kind.method == "draft_model" and is_pickle:
            reason = f"{kind.reason}: could be any model; loading checks its tensors"
            yield finding("kind", "warning", method, kind.method, reason)
        elif kind.method != method:
            reason = f"it is a {kind.method} head by {kind.reason}; choose its own method for it"
            if kind.method not in _FITS:
                known = ", ".join(_FITS)
                reason = f"it is not a head of {method} ({kind.reason}); heads of {known} are read"
            yield finding("kind", "refused", method, kind.method or "unknown", reason)
            return
        else:
            yield finding("kind", "ok", method, kind.method, f"by {kind.reason}")
    if isinstance(files, Finding):
        yield files
        if files.level == "refused":
            return
        files = HeadFiles(source=head.spec.source, config=head.config, tensors={})
        if method == "medusa":
            return  # its sizes are those of its tensors
    try:
        renamed = files.renamed(TENSOR_NAMES.get(method, {}))
        fit = _FITS[method](renamed, target)
    except ModelError as error:
        yield finding("head", "refused", reason=str(error))
        return
    for name, (own, wanted) in fit.items():
        if not files.tensors and name in _BY_TENSORS:
            continue
        reason = "as the target's"
        if own != wanted:
            reason = MISFIT
        yield finding(name, "ok" if own == wanted else "refused", wanted, own, reason)
    if "d2t" in renamed.tensors and not misfits(fit):
        offsets = renamed.whole_numbers("d2t")
        if len(offsets) < target.vocab_size and not any(offsets):
            reason = "d2t is all 0, as one that was never filled in: only the first ids are drafted"
            yield finding("d2t", "warning", target.vocab_size, len(offsets), reason)
    if (layout := layout_of(files, method)) is not None:
        yield finding("layout", "ok", None, layout.author, layout.note)
    yield from _layers(files, target, method)
    yield from _verifier(head, target)


def _files(head: ModelFiles) -> Files | Finding:
    """With headers of its tensors; a pickle, which is not opened, is only told of."""
    try:
        return head.head
    except ModelError as error:
        if not head.pickles:
            return finding("weights", "refused", reason=str(error))
        reason = "a pickle is not opened here; loading reads it where it holds tensors alone"
        return finding("weights", "warning", None, head.pickles[0], reason)


def _mtp(files: Files, target: HeadTarget) -> Fit:
    family_of(files)
    if files.tensors:
        layer_tensors(files)
    fit = mtp_fit(files, target)
    if files.tensors and not misfits(fit):
        require_mtp_tensors(files, target.hidden_size)
    return fit


_FITS: Mapping[str, Callable[[Files, HeadTarget], Fit]] = {
    "eagle": eagle_fit,
    "eagle3": eagle3_fit,
    "peagle": partial(eagle3_fit, is_parallel=True),
    "medusa": medusa_fit,
    "dflash": dflash_fit,
    "mtp": _mtp,
}


def _layers(files: HeadFiles[Shaped], target: ModelFiles, method: str) -> Iterator[Finding]:
    """The target's layers that a head reads; those it lacks were refused before."""
    layers = f"{target.num_layers} layers"
    if method in ("eagle3", "peagle"):
        style = Style.of(files, target.num_layers, is_parallel=method == "peagle")
        reason = "the inputs of these layers are read; all are there"
        yield finding("layer_ids", "ok", layers, list(style.layer_ids), reason)
    elif method == "dflash":
        ids = list(DFlashStyle.of(files).layer_ids)
        yield finding("layer_ids", "ok", layers, ids, "all are there")
    elif method == "mtp":
        yield finding("mtp_layers", "ok", layers, num_mtp_layers(files), "in the files")


def _verifier(head: ModelFiles, target: ModelFiles) -> Iterator[Finding]:
    """The target that a head names as its own, where it names one."""
    config = head.config
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    named = named or config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        return
    source = target.spec.source
    is_same = named.rstrip("/").split("/")[-1].lower() == source.rstrip("/").split("/")[-1].lower()
    reason = "made for it" if is_same else "its authors name another target; acceptance will tell"
    yield finding("made_for", "ok" if is_same else "warning", source, named, reason)
