"""Whether a draft's tokens, ends of text, prompts and positions are those of its target."""

import hashlib
from collections.abc import Iterator

from specbench.files.model import ModelFiles
from specbench.files.tokenizer_files import NO_TOKENIZER, OTHER_VOCABULARIES
from specbench.files.vocabulary import (
    NOTHING_IN_COMMON,
    Difference,
    Vocabulary,
    common_tokens,
    compare_vocabularies,
    mismatch_words,
)
from specbench.fit.finding import Finding, finding
from specbench.records import no_template


def vocabulary_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """Every id has to stand for the same token; special ones may go by other names."""
    own, of_target = draft.vocabulary, target.vocabulary
    if own is None or of_target is None:
        yield _by_files(target, draft)
        return
    found = compare_vocabularies(of_target, own)
    sizes = f"{len(of_target.ids_by_token):,} tokens", f"{len(own.ids_by_token):,} tokens"
    if found.wrong:
        yield finding("tokenizer", "refused", *sizes, mismatch_words(of_target, own, found))
        return
    if found.unknown:
        yield finding("tokenizer", "warning", *sizes, found.unknown_words)
    else:
        yield finding("tokenizer", "ok", *sizes, "every id means the same token")
    yield _special(of_target, own, found)


def tokenizer_findings(target: ModelFiles) -> Iterator[Finding]:
    """Whether a target has a tokenizer that can be read; without weights it is only planned."""
    if target.vocabulary is None and target.tensors is not None and not target.has_tokenizer:
        yield finding("tokenizer", "refused", reason=NO_TOKENIZER)


def retokenized_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """What a draft with another tokenizer has in common with its target, and what it costs."""
    own, of_target = draft.vocabulary, target.vocabulary
    if own is None or of_target is None:
        yield _by_files(target, draft)
        return
    found = common_tokens(of_target, own)
    sizes = f"{found.target_size:,} tokens", f"{found.draft_size:,} tokens"
    if not found.draft_ids:
        yield finding("tokenizer", "refused", *sizes, NOTHING_IN_COMMON)
    elif not compare_vocabularies(of_target, own).wrong:
        reason = "every id means the same token: draft_model drafts the same without the host"
        yield finding("tokenizer", "warning", *sizes, reason)
    else:
        cost = "every round waits for the host, which encodes new text for the draft (in draft_s)"
        yield finding("tokenizer", "warning", *sizes, f"{found.in_words}; {cost}")


def _special(target: Vocabulary, draft: Vocabulary, difference: Difference) -> Finding:
    if difference.renamed:
        first, of_target, own = difference.renamed[0]
        reason = f"{len(difference.renamed)} have other names, the first is id {first}"
        return finding("special_tokens", "warning", of_target, own, reason)
    counts = len(target.special_ids), len(draft.special_ids)
    if counts[0] != counts[1]:
        reason = "tokens that one of the two calls special and the other does not"
        return finding("special_tokens", "warning", *counts, reason)
    return finding("special_tokens", "ok", *counts, "the same names")


def _by_files(target: ModelFiles, draft: ModelFiles) -> Finding:
    """Without tokenizer.json on both sides: equal files are equal vocabularies."""
    for name in OTHER_VOCABULARIES:
        files = [model.tokenizer_file(name) for model in (target, draft)]
        if all(files):
            one, other = (hashlib.sha256(f.read_bytes()).hexdigest()[:12] for f in files if f)
            if one == other:
                return finding("tokenizer", "ok", one, other, f"the same {name}")
            reason = f"{name} differs; loading compares the tokens"
            return finding("tokenizer", "warning", one, other, reason)
    if not draft.has_tokenizer:
        return finding("tokenizer", "refused", reason=NO_TOKENIZER)
    reason = "no tokenizer.json on both sides; loading compares the tokens"
    return finding("tokenizer", "warning", reason=reason)


def template_findings(target: ModelFiles) -> Iterator[Finding]:
    """A target needs a template for its prompts to be those of a chat."""
    if target.lacks_template:
        reason = no_template(target.spec.source)
        yield finding("chat_template", "warning", draft="none", reason=reason)


def chat_template_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """Prompts have the target's form; a draft trained on another one is right less often."""
    one, other = target.chat_template, draft.chat_template
    shown = _mark(one), _mark(other)
    if one == other:
        yield finding("chat_template", "ok", *shown, "the same")
        return
    reason = "prompts use the target's chat template; the draft was trained with another"
    yield finding("chat_template", "warning", *shown, reason)


def _mark(text: str | None) -> str:
    return "none" if text is None else hashlib.sha256(text.encode()).hexdigest()[:12]


def eos_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """The target's end the text; an end that only the draft knows is a draft like any other."""
    of_target, own = set(target.eos_ids), set(draft.eos_ids)
    shown = (_ids(of_target), _ids(own))
    if of_target == own:
        yield finding("eos", "ok", *shown, "the same ends of text")
    elif not own or not of_target:
        yield finding("eos", "warning", *shown, "one of the two names no end of text")
    else:
        reason = "the target's end the text; those of the draft alone are tokens like any other"
        yield finding("eos", "warning", *shown, reason)


def padding_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """Rows of an embedding beyond the tokenizer's ids are padding, and are cut or masked."""
    rows, own = target.vocab_size, draft.vocab_size
    vocabulary = target.vocabulary
    num_ids = vocabulary.num_ids if vocabulary else min(rows, own)
    known = draft.vocabulary.num_ids if draft.vocabulary else num_ids
    if own < min(num_ids, known):
        reason = (
            f"the draft has rows for {own:,} of the target's {num_ids:,} ids "
            f"({own / num_ids:.0%}): it never drafts the others, and reads each as its last one"
        )
        yield finding("vocab_size", "warning", rows, own, reason)
    elif own < num_ids:
        yield finding("vocab_size", "ok", rows, own, "a row for every token that the draft knows")
    elif rows != own:
        reason = f"padding of {num_ids:,} ids, and is cut or masked"
        yield finding("vocab_size", "ok", rows, own, reason)
    else:
        yield finding("vocab_size", "ok", rows, own, "the same")


def context_findings(target: ModelFiles, draft: ModelFiles) -> Iterator[Finding]:
    """Past its own context a draft guesses worse, and nothing else."""
    limit, own = target.longest_context, draft.longest_context
    if own is not None and (limit is None or own < limit):
        reason = f"beyond {own:,} tokens the draft is past its trained context and accepted less"
        yield finding("context", "warning", limit, own, reason)
    else:
        yield finding("context", "ok", limit, own, "the draft reaches as far")


def _ids(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
