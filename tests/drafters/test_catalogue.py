"""Drafters are listed from their source alone, checked by name, and one file is enough."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from specbench.drafters.registry import Parts, build_drafter
from specbench.errors import UsageError
from specbench.inputs.methods import FOLDER, Method, Parameter, all_methods, find_method
from tests.decoding.fakes import CountingRunner

LIST_METHODS = """
import json, sys
from pathlib import Path
from specbench.inputs.methods import all_methods

print(json.dumps({
    "methods": [
        [method.name, method.summary, method.model, [p.name for p in method.parameters]]
        for method in all_methods(*[Path(folder) for folder in sys.argv[1:]])
    ],
    "heavy": [name for name in ("torch", "transformers", "numpy") if name in sys.modules],
}))
"""


def listed_in_a_fresh_process(*folders: Path) -> Any:
    output = subprocess.run(
        [sys.executable, "-c", LIST_METHODS, *map(str, folders)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(output)


def test_the_drafters_are_listed_without_torch() -> None:
    listed = listed_in_a_fresh_process()

    assert listed["heavy"] == []
    assert [name for name, *_ in listed["methods"]] == [m.name for m in all_methods()]


def test_a_drafter_is_listed_once_its_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(
        textwrap.dedent(
            '''
            import torch
            from specbench.drafters.registry import drafter

            @drafter("echo", model="required")
            class Echo:
                """Repeats the newest token.

                More about it.
                """

                def __init__(self, parts, *, times: int = 2, loud: bool = False) -> None: ...

            class NotADrafter: ...
            '''
        )
    )

    listed = listed_in_a_fresh_process(tmp_path)

    assert listed["heavy"] == []
    assert listed["methods"] == [
        ["echo", "Repeats the newest token.", "required", ["times", "loud"]]
    ]


def test_the_folder_holds_one_file_a_method_the_registry_and_what_they_share() -> None:
    listed = {path.stem for path in FOLDER.iterdir() if path.suffix == ".py" or path.is_dir()}
    methods = [method.module.rpartition(".")[2] for method in all_methods()]

    assert len(set(methods)) == len(methods)
    assert listed - {"__pycache__"} == {*methods, "__init__", "registry", "heads", "shared"}


@pytest.mark.parametrize("method", all_methods(), ids=lambda method: method.name)
def test_every_drafter_has_a_summary(method: Method) -> None:
    assert method.summary


def test_a_drafters_parameters_are_its_keyword_only_arguments() -> None:
    assert find_method("ngram").parameters == (
        Parameter(name="max_ngram", type="int", default=3, allowed=range(1, 33)),
        Parameter(name="min_ngram", type="int", default=1, allowed=range(1, 33)),
    )
    assert find_method("ngram").model == "refused"
    assert find_method("draft_model").model == "required"


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no method 'eagle9'.*draft_model.*ngram"):
        find_method("eagle9")


def refused() -> Any:
    raise AssertionError("nothing may be loaded")


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"max_ngrams": 3}, "unknown parameter 'max_ngrams'; allowed: max_ngram, min_ngram"),
        ({"max_ngram": "3"}, "max_ngram is '3'; a whole number from 1 to 32 is allowed"),
        ({"max_ngram": 3.0}, "max_ngram is 3.0; a whole number from 1 to 32 is allowed"),
        ({"max_ngram": True}, "max_ngram is True; a whole number from 1 to 32 is allowed"),
        ({"max_ngram": 1, "min_ngram": 2}, "1 <= min <= max is allowed"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(
    parameters: dict[str, Any], complaint: str
) -> None:
    parts = Parts(target=CountingRunner(), draft_runner=refused, checkpoint=refused)

    with pytest.raises(UsageError, match=complaint):
        build_drafter("ngram", parts, parameters)


@pytest.mark.parametrize("tree", [(0,), (2, -1), ("a",), (2.5,), (True,), (64, 64, 64), (1,) * 257])
def test_a_tree_of_impossible_widths_is_refused_by_name(tree: tuple[Any, ...]) -> None:
    parts = Parts(target=CountingRunner(), draft_runner=refused, checkpoint=refused)

    with pytest.raises(UsageError, match=r"draft_model: tree is .* allowed"):
        build_drafter("draft_model", parts, {"tree": tree})


def test_an_unknown_parameter_is_refused_with_those_there_are() -> None:
    parts = Parts(target=CountingRunner(), draft_runner=refused, checkpoint=refused)

    with pytest.raises(UsageError, match=r"'depth'.*tree"):
        build_drafter("draft_model", parts, {"depth": 2})


def test_a_draft_model_is_loaded_only_when_its_drafter_is_built() -> None:
    loaded = []

    def load() -> CountingRunner:
        loaded.append(True)
        return CountingRunner()

    parts = Parts(target=CountingRunner(), draft_runner=load, checkpoint=refused)
    build_drafter("ngram", parts, {})
    assert loaded == []
    build_drafter("draft_model", parts, {})
    assert loaded == [True]
