"""Drafters are listed without torch, checked by name, and have the parameters of their rows."""

import json
import subprocess
import sys
from inspect import Parameter as Arg
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from specbench import drafters
from specbench.drafters.registry import Parts, build_drafter, drafter_class
from specbench.errors import UsageError
from specbench.methods import METHODS, Method, all_methods, find_method, listed_methods
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import must_not_load

FOLDER = Path(drafters.__file__).parent
LIST_METHODS = """
import json, sys
from specbench.methods import all_methods

print(json.dumps({
    "methods": [
        [method.name, method.summary, method.model, [p.name for p in method.parameters]]
        for method in all_methods()
    ],
    "heavy": [name for name in ("torch", "transformers", "numpy") if name in sys.modules],
}))
"""


def listed_in_a_fresh_process() -> Any:
    output = subprocess.run(
        [sys.executable, "-c", LIST_METHODS],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(output)


def test_the_drafters_are_listed_without_torch() -> None:
    listed = listed_in_a_fresh_process()

    assert listed["heavy"] == []
    assert [name for name, *_ in listed["methods"]] == [m.name for m in all_methods()]


def test_the_drafters_folder_has_one_file_per_method() -> None:
    listed = {path.stem for path in FOLDER.iterdir() if path.suffix == ".py" or path.is_dir()}

    methods = {method.name for method in all_methods()}
    assert listed - {"__pycache__"} == {*methods, "__init__", "registry", "shared"}


@pytest.mark.parametrize("method", all_methods(), ids=lambda method: method.name)
def test_a_methods_parameters_are_the_keyword_only_arguments_of_its_class(method: Method) -> None:
    arguments = signature(drafter_class(method.name)).parameters.values()
    by_keyword = [a for a in arguments if a.kind is Arg.KEYWORD_ONLY]

    assert [a.name for a in by_keyword] == [p.name for p in method.parameters]
    assert all(a.default is Arg.empty for a in by_keyword)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_row_has_a_summary_and_allows_its_own_defaults(method: Method) -> None:
    assert method.summary
    assert all(p.description and p.complaint(p.default) is None for p in method.parameters)
    assert len({p.name for p in method.parameters}) == len(method.parameters)


def test_a_set_drafts_with_the_model_of_one_method_and_has_the_parameters_of_both() -> None:
    made, first = find_method("mtp+ngram_mod"), find_method("mtp")
    assert (made.parts, made.model, made.head) == (("mtp", "ngram_mod"), first.model, first.head)
    given = made.settings({"min_drafts": 5})
    assert given == {"match_length": 24, "min_drafts": 5, "model_drafts": 3}
    assert made.shape({}, 3) == first.shape({}, 3)
    assert made not in (*all_methods(), *listed_methods())


@pytest.mark.parametrize("first", ["dflash", "eagle3"])
def test_the_k_of_a_set_is_not_limited_by_the_head_of_its_model(first: str) -> None:
    alone, made = find_method(first), find_method(f"{first}+ngram_mod")
    assert alone.deepest(alone.settings({}), lambda: None, lambda: None) < max(made.usual_ks)
    assert made.deepest(made.settings({}), lambda: None, lambda: None) is None


@pytest.mark.parametrize("method", ["ngram_mod", "draft_model+ngram"])
def test_methods_of_serving_engines_are_not_built(method: str) -> None:
    parts = Parts(target=CountingRunner(), draft_runner=must_not_load, checkpoint=must_not_load)
    with pytest.raises(UsageError, match="--engine"):
        build_drafter(method, parts, {})


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'eagle9', did you mean 'eagle'.*draft_model.*ngram"):
        find_method("eagle9")


@pytest.mark.parametrize(
    ("method", "parameters", "complaint"),
    [
        (
            "ngram",
            {"max_ngrams": 3},
            "unknown parameter 'max_ngrams'; allowed: max_ngram, min_ngram",
        ),
        ("ngram", {"max_ngram": "3"}, "max_ngram is '3'; expected a whole number from 1 to 32"),
        ("ngram", {"max_ngram": 3.0}, "max_ngram is 3.0; expected a whole number from 1 to 32"),
        ("ngram", {"max_ngram": True}, "max_ngram is True; expected a whole number from 1 to 32"),
        ("ngram", {"max_ngram": 1, "min_ngram": 2}, "expected 1 <= min <= max"),
        ("draft_model", {"depth": 2}, r"'depth'.*tree"),
        *(
            ("draft_model", {"tree": tree}, r"draft_model: tree is .*; expected")
            for tree in ((0,), (2, -1), ("a",), (2.5,), (True,), (64, 64, 64), (1,) * 257)
        ),
    ],
)
def test_an_invalid_parameter_is_refused_with_the_allowed_values(
    method: str, parameters: dict[str, Any], complaint: str
) -> None:
    parts = Parts(target=CountingRunner(), draft_runner=must_not_load, checkpoint=must_not_load)

    with pytest.raises(UsageError, match=complaint):
        build_drafter(method, parts, parameters)


def test_a_drafter_without_the_model_it_needs_is_refused() -> None:
    with pytest.raises(UsageError, match="model"):
        build_drafter("draft_model", Parts(target=CountingRunner()), {})


def test_a_draft_model_is_loaded_only_when_its_drafter_is_built() -> None:
    loaded = []

    def load() -> CountingRunner:
        loaded.append(True)
        return CountingRunner()

    parts = Parts(target=CountingRunner(), draft_runner=load, checkpoint=must_not_load)
    build_drafter("ngram", parts, {})
    assert loaded == []
    build_drafter("draft_model", parts, {})
    assert loaded == [True]


@pytest.mark.parametrize(
    ("name", "given", "k", "num_drafts", "num_forwards"),
    [
        ("draft_model", {}, 4, 4, 4),
        ("draft_model", {"tree": (2, 2)}, 2, 6, 2),
        ("self_speculation", {}, 4, 4, 4),
        ("eagle", {"tree": "chain"}, 4, 4, 4),
        ("eagle3", {"tree": "chain"}, 1, 1, 1),
        ("peagle", {}, 1, 1, 1),  # the forward over the known tokens gives the first draft
        ("peagle", {}, 4, 4, 2),  # and one over masks all others
        ("medusa", {"tree": "chain"}, 4, 4, 1),
        ("dflash", {}, 4, 4, 2),
        ("dflash2", {}, 4, 4, 2),
        ("dspark", {}, 4, 4, 2),
        ("mtp", {}, 4, 4, 4),
        ("gemma4_mtp", {}, 4, 4, 4),
        ("ngram", {}, 4, 4, 0),
        ("lookahead", {"window": 5, "ngram": 5, "guesses": 5}, 4, 39, 0),
        ("token_recycling", {"max_drafts": 80}, 4, 80, 0),
    ],
)
def test_a_round_has_the_drafts_and_forwards_of_its_method(
    name: str, given: dict[str, Any], k: int, num_drafts: int, num_forwards: int
) -> None:
    method = find_method(name)
    shape = method.round_shape(method.settings(given), k)
    assert (shape.num_drafts, shape.num_forwards) == (num_drafts, num_forwards)


def test_lookahead_drafts_all_of_an_n_gram_but_its_first_token() -> None:
    method = find_method("lookahead")
    assert method.deepest(method.settings({"ngram": 5}), lambda: None, lambda: None) == 4
