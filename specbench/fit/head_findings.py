"""Whether a head was made for a target: the rules of its method, held against the headers."""

from collections.abc import Iterator

from specbench.errors import ModelError
from specbench.files.head_files import HeadFiles
from specbench.files.head_fit import MISFIT, misfits
from specbench.files.head_layouts import layout_of
from specbench.files.headers import TensorHeader
from specbench.files.model import ModelFiles
from specbench.fit.finding import Finding, finding
from specbench.methods import Method, all_methods, kind_of

Files = HeadFiles[TensorHeader]
# What has to fit depends on which tensors a head has of its own; those of a pickle are not known.
_BY_TENSORS = ("hidden_size", "draft_vocab_size")


def head_findings(target: ModelFiles, head: ModelFiles, method: Method) -> Iterator[Finding]:
    """Sizes, layers and whose head it is. ModelError says what cannot be read."""
    facts, files = method.head, _files(head)
    assert facts is not None
    is_pickle = isinstance(files, Finding) and files.level == "warning"
    if method.model == "required":
        kind = kind_of(head)
        if kind.is_model and is_pickle:
            reason = f"{kind.reason}: could be any model; loading checks its tensors"
            yield finding("kind", "warning", method.name, kind.method, reason)
        elif kind.method != method.name:
            reason = f"it is a {kind.method} head by {kind.reason}; choose its own method for it"
            heads = [one.name for one in all_methods() if one.is_head]
            if kind.method not in heads:
                reason = (
                    f"it is not a head of {method.name} ({kind.reason}); heads of "
                    f"{', '.join(heads)} are read"
                )
            yield finding("kind", "refused", method.name, kind.method or "unknown", reason)
            return
        else:
            yield finding("kind", "ok", method.name, kind.method, f"by {kind.reason}")
    if isinstance(files, Finding):
        yield files
        if files.level == "refused":
            return
        files = HeadFiles(source=head.spec.source, config=head.config, tensors={})
        if facts.kept_shapes is not None:
            return  # its sizes are those of its tensors
    try:
        renamed = facts.renamed(files)
        fit = facts.fit(renamed, target)
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
    if (layout := layout_of(files, facts.layouts)) is not None:
        yield finding("layout", "ok", None, layout.author, layout.note)
    if (layers := facts.report_layers(files, target.num_layers)) is not None:
        wanted = f"{target.num_layers} layers"
        yield finding(layers.field, "ok", wanted, layers.layers, layers.reason)
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
