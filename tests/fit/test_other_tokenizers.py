"""A draft with another tokenizer, by only its files: common tokens, and methods that fit."""

import re

import pytest

from specbench.errors import UsageError
from specbench.files.model import ModelFiles
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import drafter_of
from specbench.fit.compatibility import Compatibility, check_drafter
from specbench.inputs.pairing import DrafterSpec
from tests.fit.test_compatibility import change_tokenizer, check, single
from tests.fit.test_compatibility import draft as draft
from tests.fit.test_compatibility import target as target


def renamed(model: ModelFiles, number: int) -> ModelFiles:
    """The draft with this many tokens that the target lacks."""

    def change(content):
        vocab = content["model"]["vocab"]
        for token in sorted(vocab, key=vocab.get)[3 : 3 + number]:
            vocab[token * 2] = vocab.pop(token)

    return change_tokenizer(model, change)


def with_method(target: ModelFiles, draft: ModelFiles, method: str) -> Compatibility:
    spec = ModelSpec(source=str(draft.folder), folder=draft.folder)
    return check_drafter(target, DrafterSpec(name="draft", method=method, model=spec))


def test_a_refused_tokenizer_gives_the_usable_methods_and_common_share(target, draft):
    finding = single(check(target, renamed(draft, 102)), "refused")
    assert re.search(r"157 tokens .*60\.6% .*60\.6% ", finding.reason)
    assert re.search("method token_intersection .*string_match ", finding.reason)


@pytest.mark.parametrize("method", ["token_intersection", "string_match"])
def test_another_tokenizer_fits_with_a_warning_on_common_tokens(target, draft, method):
    finding = single(with_method(target, renamed(draft, 102), method), "warning")
    assert (finding.field, finding.target, finding.draft) == (
        "tokenizer",
        "259 tokens",
        "259 tokens",
    )
    assert re.match(r"157 tokens .*60\.6% ", finding.reason)
    assert "the host" in finding.reason


def test_methods_for_other_tokenizers_warn_if_tokenizers_are_equal(target, draft):
    finding = single(with_method(target, draft, "token_intersection"), "warning")
    assert re.search("draft_model .*without the host", finding.reason)


def test_a_tokenizer_without_the_texts_of_its_tokens_is_refused(target, draft):
    changed = change_tokenizer(draft, lambda content: content.update(decoder=None))
    finding = single(with_method(target, changed, "token_intersection"), "refused")
    assert "does not give" in finding.reason


@pytest.mark.parametrize("method", ["token_intersection", "string_match"])
def test_a_draft_with_another_tokenizer_is_named_with_its_method(method, draft):
    drafter = drafter_of(f"{method}={draft.folder}")
    assert (drafter.method, drafter.model.folder) == (method, draft.folder)
    assert drafter.name == f"draft-{method}"
    with pytest.raises(UsageError, match=f"write {method}=MODEL"):
        drafter_of(method)
