"""Whether a drafter fits a target, judging by their files. No weights are loaded, and no model code
runs. The rules are those of loading: a pair that is refused here would not load.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal

from specbench.errors import ModelError
from specbench.files.config import (
    NO_TREES,
    RECURRENT,
    is_hybrid,
    rope_type,
    ropes,
    unsupported_attention,
)
from specbench.files.head_files import MISFIT, HeadFiles, layout_of, misfits
from specbench.files.headers import MERGE, TensorHeader
from specbench.files.model import (
    TRUST_CODE,
    UNKNOWN_TYPE,
    ModelFiles,
    open_model,
    refusal,
    require_config,
    require_weights,
    unloadable_reason,
)
from specbench.files.tokenizer import (
    NO_TOKENIZER,
    NOTHING_IN_COMMON,
    OTHER_VOCABULARIES,
    TOKENIZER_FILES,
    Vocabulary,
    VocabularyDifference,
    common_tokens,
    compare_vocabularies,
    mismatch_words,
)
from specbench.fit.loaded_tensors import UnknownError, loaded_difference, require_head_tensors
from specbench.inputs.model_spec import without_owner
from specbench.inputs.pairing import DrafterSpec
from specbench.library_facts import knows_model_type
from specbench.methods import ONLY_SERVED, Method, all_methods, find_method, kind_of
from specbench.records import Kind

Level = Literal["refused", "warning", "ok"]
NO_WEIGHTS = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class FitFinding:
    """The result of one check; `target` and `draft` are the two values as text, or None."""

    field: str
    level: Level
    target: str | None = None
    draft: str | None = None
    reason: str = ""

    @property
    def lacks_weights(self) -> bool:
        """Whether there is only a config, which is enough for planning."""
        return self.field == "weights" and NO_WEIGHTS in (self.target, self.draft)

    @property
    def keeps_from_loading(self) -> bool:
        return self.level == "refused" or self.lacks_weights

    @property
    def text(self) -> str:
        """The reason with both values."""
        values = [f"target {self.target}"] if self.target is not None else []
        values += [f"draft {self.draft}"] if self.draft is not None else []
        suffix = f" ({', '.join(values)})" if values else ""
        return f"{self.field}: {self.reason}{suffix}"


def finding(
    field: str, level: Level, target: object = None, draft: object = None, reason: str = ""
) -> FitFinding:
    """A finding whose values are converted to text."""
    of_target, of_draft = (None if value is None else str(value) for value in (target, draft))
    return FitFinding(field=field, level=level, target=of_target, draft=of_draft, reason=reason)


# These must fit only if a head lacks some tensors; the tensors of a pickle are unknown.
_NOT_COMPARED = "not compared with what would be loaded ({}); its config.json and headers decide"
_BY_TENSORS = ("hidden_size", "draft_vocab_size")


def head_findings(target: ModelFiles, head: ModelFiles, method: Method) -> Iterator[FitFinding]:
    """Findings on a head's kind, sizes, layers and layout. ModelError if a file cannot be read."""
    facts, files = method.head, _files(head)
    assert facts is not None
    if isinstance(files, FitFinding) and files.level == "refused":
        yield files
        return
    is_pickle = isinstance(files, FitFinding)
    if method.model == "required":
        kind = kind_of(head)
        if kind.is_model and is_pickle:
            reason = f"{kind.reason}: could be any model; loading checks its tensors"
            yield finding("kind", "warning", method.name, kind.method, reason)
        elif kind.method != method.parts[0]:
            reason = f"it is a {kind.method} head by {kind.reason}; choose its own method for it"
            heads = [head_method.name for head_method in all_methods() if head_method.is_head]
            if kind.method not in heads:
                reason = (
                    f"it is not a head of {method.name} ({kind.reason}); heads of "
                    f"{', '.join(heads)} are read"
                )
            yield finding("kind", "refused", method.name, kind.method or "unknown", reason)
            return
        else:
            yield finding("kind", "ok", method.name, kind.method, f"by {kind.reason}")
    if isinstance(files, FitFinding):
        yield files
        files = HeadFiles(source=head.spec.source, config=head.config, tensors={})
        if facts.kept_shapes is not None:
            return  # its sizes come from its tensors
    try:
        renamed = facts.renamed(files)
        fit = facts.fit(renamed, target)
    except ModelError as error:
        yield finding("head", "refused", reason=str(error))
        return
    if files.tensors and not misfits(fit) and facts.needs_modules(renamed):
        try:
            require_head_tensors(head, method.parts[0])
        except ModelError as error:
            yield finding("head", "refused", reason=str(error))
            return
        except UnknownError as error:
            yield finding("tensors", "warning", reason=_NOT_COMPARED.format(error))
    for name, (value, wanted) in fit.items():
        if not files.tensors and name in _BY_TENSORS:
            continue
        reason = "as the target's"
        if value != wanted:
            reason = MISFIT
        yield finding(name, "ok" if value == wanted else "refused", wanted, value, reason)
    if "d2t" in renamed.tensors and not misfits(fit):
        offsets = renamed.whole_numbers("d2t")
        if len(offsets) < target.vocab_size and not any(offsets):
            reason = "d2t is all 0, as if never filled in: only the first ids are drafted"
            yield finding("d2t", "warning", target.vocab_size, len(offsets), reason)
    if (layout := layout_of(files, facts.layouts)) is not None:
        yield finding("layout", "ok", None, layout.author, layout.note)
    if (layers := facts.report_layers(files, target.num_layers)) is not None:
        wanted = f"{target.num_layers} layers"
        yield finding(layers.field, "ok", wanted, layers.layers, layers.reason)
    yield from _verifier(head, target)
    if head.folder != target.folder and (adapter := head.adapter):
        reason = (
            "a LoRA adapter next to a head, which is not applied: the head was trained on a target "
            "with it, so its drafts may be wrong more often; merge it into the target"
        )
        yield finding("adapter", "warning", None, adapter, reason)


def _files(head: ModelFiles) -> HeadFiles[TensorHeader] | FitFinding:
    """A head's files with tensor headers; a finding for unreadable files and unopened pickles."""
    try:
        return head.head
    except ModelError as error:
        if (pickle := head.head_pickle) is None:
            return finding("weights", "refused", reason=str(error))
        reason = "a pickle is not opened here; loading reads it if it contains only tensors"
        return finding("weights", "warning", None, pickle, reason)


def _verifier(head: ModelFiles, target: ModelFiles) -> Iterator[FitFinding]:
    """Whether the target is the one that the head's config names, if it names one."""
    config = head.config
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    named = named or config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        return
    source = target.spec.source
    is_same = without_owner(named).lower() == without_owner(source).lower()
    reason = (
        "made for it" if is_same else "its authors name another target; its acceptance may be low"
    )
    yield finding("made_for", "ok" if is_same else "warning", source, named, reason)


def vocabulary_findings(
    target: ModelFiles, draft: ModelFiles, *, retokenizes: bool = False
) -> Iterator[FitFinding]:
    """Every id must stand for the same token; special tokens may have different names. For a
    method that `retokenizes`, some tokens must have the same text."""
    of_draft, of_target = draft.vocabulary, target.vocabulary
    if of_draft is None or of_target is None:
        yield _by_files(target, draft)
        return
    difference = compare_vocabularies(of_target, of_draft)
    sizes = f"{len(of_target.ids_by_token):,} tokens", f"{len(of_draft.ids_by_token):,} tokens"
    level: Level = "ok"
    reason = "every id means the same token"
    if retokenizes:
        common = common_tokens(of_target, of_draft)
        level = "warning" if common.draft_ids else "refused"
        if not common.draft_ids:
            reason = NOTHING_IN_COMMON
        elif difference.wrong:
            reason = (
                f"{common.in_words}; every round waits for the host, which encodes the draft "
                "model's input (in draft_s)"
            )
        else:
            reason += ": draft_model drafts the same without the host"
    elif difference.wrong:
        level, reason = "refused", mismatch_words(of_target, of_draft, difference)
    elif difference.unknown:
        level, reason = "warning", difference.unknown_words
    yield finding("tokenizer", level, *sizes, reason)
    if not (retokenizes or difference.wrong):
        yield _special(of_target, of_draft, difference)


def tokenizer_findings(target: ModelFiles) -> Iterator[FitFinding]:
    """Refuses a target that has weights but no tokenizer; without weights it is only planned."""
    if target.vocabulary is None and target.tensors is not None and not target.has_tokenizer:
        yield finding("tokenizer", "refused", reason=NO_TOKENIZER)


def _special(target: Vocabulary, draft: Vocabulary, difference: VocabularyDifference) -> FitFinding:
    if difference.renamed:
        first, of_target, of_draft = difference.renamed[0]
        reason = f"{len(difference.renamed)} have other names, the first is id {first}"
        return finding("special_tokens", "warning", of_target, of_draft, reason)
    counts = len(target.special_ids), len(draft.special_ids)
    if counts[0] != counts[1]:
        reason = "some tokens are special in only one of the two"
        return finding("special_tokens", "warning", *counts, reason)
    return finding("special_tokens", "ok", *counts, "the same names")


def _by_files(target: ModelFiles, draft: ModelFiles) -> FitFinding:
    """If a tokenizer.json is missing, compare other files: equal ones mean equal vocabularies."""
    for name in OTHER_VOCABULARIES:
        files = [model.tokenizer_file(name) for model in (target, draft)]
        if all(files):
            target_hash, draft_hash = (
                hashlib.sha256(f.read_bytes()).hexdigest()[:12] for f in files if f
            )
            if target_hash == draft_hash:
                return finding("tokenizer", "ok", target_hash, draft_hash, f"the same {name}")
            reason = f"{name} differs; loading compares the tokens"
            return finding("tokenizer", "warning", target_hash, draft_hash, reason)
    if not draft.has_tokenizer:
        return finding("tokenizer", "refused", reason=NO_TOKENIZER)
    reason = "tokenizer.json is missing for one or both; loading compares the tokens"
    return finding("tokenizer", "warning", reason=reason)


def template_findings(target: ModelFiles) -> Iterator[FitFinding]:
    """A target needs a chat template so that its prompts are those of a chat."""
    if target.lacks_template:
        reason = Kind.NO_TEMPLATE.sentence.format(target=target.spec.source)
        yield finding("chat_template", "warning", draft="none", reason=reason)


# Fields of generation_config.json that change which token is the best, with their neutral values.
_PENALTIES = {
    **{"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
    **{"no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1},
}


def generation_findings(target: ModelFiles) -> Iterator[FitFinding]:
    """Penalties on repeated tokens, which are never measured, change how many drafts are right."""
    given = target.generation
    penalties = [
        f"{n} {given[n]}" for n, none in _PENALTIES.items() if given.get(n) not in (None, none)
    ]
    if penalties:
        reason = (
            f"its generation_config.json asks for {', '.join(penalties)}, and is measured without; "
            "a server that applies this accepts another share of drafts"
        )
        yield finding("generation", "warning", draft=", ".join(penalties), reason=reason)


def chat_template_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[FitFinding]:
    """Prompts use the target's template; a draft model trained with another is right less often."""
    target_template, draft_template = target.chat_template, draft.chat_template
    hashes = _short_hash(target_template), _short_hash(draft_template)
    if target_template == draft_template:
        yield finding("chat_template", "ok", *hashes, "the same")
        return
    reason = "prompts use the target's chat template; the draft model was trained with another"
    yield finding("chat_template", "warning", *hashes, reason)


def _short_hash(text: str | None) -> str:
    return "none" if text is None else hashlib.sha256(text.encode()).hexdigest()[:12]


def eos_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[FitFinding]:
    """Only the target's ids end a text; the draft model's other ids are ordinary draft tokens."""
    of_target, of_draft = set(target.eos_ids), set(draft.eos_ids)
    ids = (_listed(of_target), _listed(of_draft))
    if of_target == of_draft:
        yield finding("eos", "ok", *ids, "the same end-of-text ids")
    elif not of_draft or not of_target:
        yield finding("eos", "warning", *ids, "one of the two has no end-of-text id")
    else:
        reason = "the target's ids end the text; those of only the draft model are ordinary tokens"
        yield finding("eos", "warning", *ids, reason)


def padding_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[FitFinding]:
    """Rows of an embedding beyond the tokenizer's ids are padding, and are cut or masked."""
    rows, draft_rows = target.vocab_size, draft.vocab_size
    vocabulary = target.vocabulary
    num_ids = vocabulary.num_ids if vocabulary else min(rows, draft_rows)
    known = draft.vocabulary.num_ids if draft.vocabulary else num_ids
    if draft_rows < min(num_ids, known):
        reason = (
            f"the draft model has {draft_rows:,} embeddings for the target's {num_ids:,} ids "
            f"({draft_rows / num_ids:.0%}): it never drafts the other ids, and reads each of them "
            "as its last one"
        )
        yield finding("vocab_size", "warning", rows, draft_rows, reason)
    elif draft_rows < num_ids:
        yield finding("vocab_size", "ok", rows, draft_rows, "an embedding for each of its tokens")
    elif rows != draft_rows:
        reason = f"different padding of {num_ids:,} ids, which is cut or masked"
        yield finding("vocab_size", "ok", rows, draft_rows, reason)
    else:
        yield finding("vocab_size", "ok", rows, draft_rows, "the same")


def context_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[FitFinding]:
    """Beyond its context, a draft model is only right less often; the text does not change."""
    limit, draft_limit = target.longest_context, draft.longest_context
    if draft_limit is not None and (limit is None or draft_limit < limit):
        # A head has the layers of Llama or Qwen 3, whose positions are rotary.
        end = draft.num_positions if kind_of(draft).is_model else None
        reason = f"its positions end after {draft_limit:,} tokens: all later tokens share the last"
        if end is None:
            reason = (
                f"its config says that it was trained on at most {draft_limit:,} tokens; its "
                "rotary positions go on beyond them, where it may be right less often"
            )
        yield finding("context", "warning", limit, draft_limit, reason)
    else:
        yield finding("context", "ok", limit, draft_limit, "the draft model reads as much")


def _listed(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


# Model types with only recurrent layers; transformers marks their classes.
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
_RETOKENIZED_CHECKS = (
    partial(vocabulary_findings, retokenizes=True),
    chat_template_findings,
    context_findings,
)
UNREADABLE = (ModelError, OSError, TypeError, ValueError, LookupError, AttributeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compatibility:
    """A drafter with all findings on its fit."""

    drafter: DrafterSpec
    findings: tuple[FitFinding, ...]

    @property
    def level(self) -> Level:
        """The level of the worst finding."""
        levels = {finding.level for finding in self.findings}
        return "refused" if "refused" in levels else "warning" if "warning" in levels else "ok"

    def of_level(self, level: Level) -> tuple[FitFinding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


def is_proven(model: ModelFiles) -> bool:
    """Whether the config proves that the decoder runs the model: it is of a dense family that is
    tested token by token, and no field changes what a layer computes. ModelError."""
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


def check_target(target: ModelFiles, ignored: Collection[str] = ()) -> tuple[FitFinding, ...]:
    """Findings on the target with any drafter, except those on fields in `ignored`."""
    checks = (model_findings, tokenizer_findings, template_findings, generation_findings)
    findings = _all_findings([partial(check, target) for check in checks], target, ignored)
    return tuple(
        replace(item, target=item.draft, draft=None)
        for item in findings
        if item.field not in ignored
    )


def check_drafter(
    target: ModelFiles, drafter: DrafterSpec, ignored: Collection[str] = ()
) -> Compatibility:
    """Check the drafter against every rule, except those on fields in `ignored`. Invalid files are
    a finding that refuses the drafter."""
    all_findings = _drafter_findings(target, drafter, ignored)
    findings = (item for item in all_findings if item.field not in ignored)
    return Compatibility(drafter=drafter, findings=tuple(dict.fromkeys(findings)))


def _drafter_findings(
    target: ModelFiles, drafter: DrafterSpec, ignored: Collection[str]
) -> Iterator[FitFinding]:
    method = find_method(drafter.method)
    if not method.is_builtin:
        yield finding("loading", "refused", None, method.name, ONLY_SERVED)
    yield from _guarded(partial(_tree_findings, target, drafter))
    if drafter.model is None and method.model == "required":
        yield finding("model", "refused", reason=f"the method {drafter.method} needs a model")
        return
    if drafter.model is None and not method.is_head:
        yield from _guarded(partial(_parameter_findings, target, drafter))
        return
    try:
        draft = target if drafter.model is None else open_model(drafter.model)
    except ModelError as error:
        yield finding("files", "refused", reason=str(error))
        return
    if method.is_head:
        yield from _guarded(partial(head_findings, target, draft, method))
        if draft is not target:
            yield from _guarded(partial(context_findings, target, draft))
        if draft is not target and any(map(draft.tokenizer_file, TOKENIZER_FILES)):
            yield from _guarded(partial(vocabulary_findings, target, draft))
        return
    of_pair = _RETOKENIZED_CHECKS if method.retokenizes else _PAIR_CHECKS
    checks = [partial(model_findings, draft), partial(_tree_findings, draft, drafter)]
    checks += [partial(check, target, draft) for check in of_pair]
    yield from _all_findings(checks, draft, ignored)


def _all_findings(
    checks: Sequence[Callable[[], Iterator[FitFinding]]],
    model: ModelFiles,
    ignored: Collection[str],
) -> list[FitFinding]:
    """The findings of checks that need no torch, and of a model's tensors if none refuses it."""
    findings = [item for check in checks for item in _guarded(check)]
    if not any(item.level == "refused" and item.field not in ignored for item in findings):
        findings += _guarded(partial(tensor_findings, model))
    return findings


def _guarded(check: Callable[[], Iterator[FitFinding]]) -> Iterator[FitFinding]:
    """A check's findings; if a file cannot be read, the last one is a refusal."""
    try:
        yield from check()
    except UNREADABLE as error:
        yield finding("files", "refused", reason=why_unreadable(error))


def why_unreadable(error: Exception) -> str:
    """The message of an error in `UNREADABLE`; only those of a ModelError name the file."""
    return str(error) if isinstance(error, ModelError) else repr(error)


def require_loadable(model: ModelFiles) -> None:
    """Raise ModelError, with the finding's reason, if this installation cannot load a whole model.

    Attention that the decoder cannot run and weights still to be downloaded do not count.
    """
    source, is_remote = model.spec.source, model.spec.folder is None
    for problem in chain(model_findings(model), tensor_findings(model)):
        is_other = problem.field == "attention" or (problem.field == "weights" and is_remote)
        if problem.keeps_from_loading and not is_other:
            reason = problem.reason
            raise ModelError(reason if reason.startswith(source) else f"{source}: {reason}")


def model_findings(model: ModelFiles) -> Iterator[FitFinding]:
    """Whether a whole model can be loaded, and whether the decoder can run it. ModelError."""
    require_config(model)
    spec, model_type = model.spec, model.config.get("model_type")
    kind = kind_of(model)
    if not kind.is_model:
        remedy = "choose a decoder-only model"
        if kind.method:
            remedy = f"it is a head: draft with it by `method: {kind.method}`"
        reason = f"does not write text by itself: {kind.reason}; {remedy}"
        yield finding("kind", "refused", draft=kind.method, reason=reason)
        return
    yield from _code_findings(model)
    if str(model_type) in _RECURRENT_TYPES:
        yield finding("attention", "refused", reason=f"{spec.source} {RECURRENT}")
    elif unsupported := unsupported_attention(model.field):
        yield finding("attention", "refused", reason=f"{spec.source} {unsupported}")
    require_weights(model)
    if unloadable := unloadable_reason(model):
        yield finding("loading", "refused", reason=f"{spec.source}: {unloadable}")
    if spec.is_shape:
        yield finding("weights", "warning", None, spec.source, "random, so its text is meaningless")
    elif (lacking := model.lacking_weights) and model.pickles:
        yield finding("weights", "refused", None, model.pickles[0], lacking)
    elif lacking:
        yield finding("weights", "warning", None, NO_WEIGHTS, lacking)
    else:
        yield finding("weights", "ok", None, f"{len(model.tensors or ())} tensors", "readable")
    if model.tensors and (adapter := model.adapter):
        reason = (
            f"{adapter} is a LoRA adapter next to a model, which is applied only if peft is "
            f"installed; {MERGE}, or move it elsewhere to measure the model without it"
        )
        yield finding("adapter", "refused", reason=reason)


def tensor_findings(model: ModelFiles) -> Iterator[FitFinding]:
    """Whether the modules of a whole model read all tensors of its files, and no others; nothing
    without safetensors. ModelError."""
    if model.spec.is_shape or not model.tensors:
        return
    try:
        difference = loaded_difference(model)
    except UnknownError as error:
        yield finding("tensors", "warning", reason=_NOT_COMPARED.format(error))
        return
    count = f"{len(model.tensors)} tensors"
    if difference.reason is not None:
        yield finding("tensors", "refused", reason=f"{model.spec.source}: {refusal(difference)}")
    elif difference.left_out:
        first, number = difference.left_out[0], len(difference.left_out)
        reason = f"{number} are read by no module that runs, the first is {first}"
        yield finding("tensors", "warning", None, count, reason)
    else:
        level: Level = "warning" if model.stored_format else "ok"
        unpacked = "; only loading unpacks them" if model.stored_format else ""
        yield finding("tensors", level, None, count, f"the same as what would be loaded{unpacked}")


def _tree_findings(model: ModelFiles, drafter: DrafterSpec) -> Iterator[FitFinding]:
    """Whether the model can verify draft tokens in the shape that the method drafts."""
    method = find_method(drafter.method)
    is_chain = all(method.shape(drafter.parameters, k).num_drafts == k for k in (2, 4))
    if is_hybrid(model.field) and not is_chain:
        yield finding("attention", "refused", reason=f"{model.spec.source} {NO_TREES}")


def _code_findings(model: ModelFiles) -> Iterator[FitFinding]:
    """Findings on foreign code. It never runs here; loading runs it if pairings.yaml trusts it."""
    model_type = model.config.get("model_type")
    is_supported = knows_model_type(str(model_type))
    if model.needs_code and not is_supported and not model.spec.trust_remote_code:
        reason = f"model type {model_type} would run the authors' Python (auto_map); {TRUST_CODE}"
        yield finding("code", "refused", None, "auto_map", reason)
    elif model.needs_code:
        reason = "the files include their own Python (auto_map), which was not run"
        yield finding("code", "warning", None, "auto_map", reason)
    elif is_supported is False:
        yield finding("loading", "refused", None, str(model_type), UNKNOWN_TYPE)


def _parameter_findings(target: ModelFiles, drafter: DrafterSpec) -> Iterator[FitFinding]:
    """Findings on methods without weights."""
    method = find_method(drafter.method)
    if method.num_target_layers is None:
        yield finding("kind", "ok", None, method.name, "needs only the target")
        return
    used = method.num_target_layers(method.settings(drafter.parameters), target.num_layers)
    level: Level = "refused" if used > target.num_layers else "ok"
    yield finding("num_layers", level, target.num_layers, used, "of the target's layers draft")
