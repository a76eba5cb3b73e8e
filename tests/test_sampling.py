"""A sample of cases is the same every time, and no kind of case is missing from it."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tests.sampling import generate_runnable_cases, kept_cases

CASES = [
    {"method": method, "k": k, "how": SimpleNamespace(is_tree=k > 3)}
    for method, k in itertools.product(["eagle", "mtp", "ngram"], range(1, 6))
]


def test_the_requested_number_of_cases_is_sampled() -> None:
    assert len(kept_cases(CASES, one_in=3, seed="a")) == 5
    assert len(kept_cases(CASES, one_in=4, seed="a")) == 4
    assert len(kept_cases(CASES[:1], one_in=9, seed="a")) == 1
    assert kept_cases([], one_in=3, seed="a") == set()


def test_sampled_cases_depend_only_on_the_test_name() -> None:
    first, again, other = (kept_cases(CASES, one_in=3, seed=seed) for seed in ("a", "a", "b"))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [str(i) for i in range(20)])
def test_a_sample_of_cases_contains_every_listed_value(seed: str) -> None:
    every = ["method", "k", "how.is_tree"]
    kept = [CASES[i] for i in kept_cases(CASES, one_in=15, every=every, seed=seed)]
    assert {case["method"] for case in kept} == {"eagle", "mtp", "ngram"}
    assert {case["k"] for case in kept} == {1, 2, 3, 4, 5}
    assert len(kept) < len(CASES)


SAMPLED = pytest.mark.sampled(one_in=4, every=["b"]).mark
LONG = pytest.mark.long.mark


def sample(
    test: str = "f",
    marks: Sequence[pytest.Mark] = (),
    num_long: int = 0,
    expression: str = "not gpu and not long",
    named: str = "tests",
) -> list[SimpleNamespace]:
    """The marks of 16 cases, of which the first are long anyway."""
    cases = [
        SimpleNamespace(params={"a": i // 2, "b": i % 2}, marks=[LONG] if i < num_long else [])
        for i in range(16)
    ]
    of_test = {mark.name: mark for mark in marks}
    metafunc = SimpleNamespace(
        definition=SimpleNamespace(nodeid=test, get_closest_marker=of_test.get),
        config=SimpleNamespace(args=[named], option=SimpleNamespace(markexpr=expression)),
        _calls=cases,
    )
    generate_runnable_cases(metafunc)  # type: ignore[arg-type]
    return metafunc._calls


def params(cases: Sequence[SimpleNamespace]) -> list[dict[str, int]]:
    return [case.params for case in cases]


def test_unsampled_cases_are_not_generated_and_each_test_samples_apart() -> None:
    first, second = sample("f", [SAMPLED]), sample("g", [SAMPLED])
    for cases in (first, second):
        assert len(cases) == 4
        assert {case.params["b"] for case in cases} == {0, 1}
    assert params(first) != params(second)
    assert len(sample()) == 16


def test_unsampled_cases_are_marked_long() -> None:
    everything = sample(marks=[SAMPLED], expression="long")
    assert len(everything) == 16
    assert params([case for case in everything if not case.marks]) == params(
        sample(marks=[SAMPLED])
    )


def test_a_long_case_is_not_sampled() -> None:
    cases = sample(marks=[SAMPLED], num_long=8)
    assert len(cases) == 2
    assert all(case.params["a"] >= 4 for case in cases)


def test_a_long_test_collects_one_case_that_is_deselected() -> None:
    assert params(sample(marks=[LONG])) == params(sample()[:1])
    assert [case.marks for case in sample(num_long=16)] == [[LONG]]


def test_a_case_named_on_the_command_line_runs() -> None:
    cases = sample(marks=[SAMPLED], named="tests/test_f.py::test_f[1-0]")
    assert len(cases) == 16
    assert not any(case.marks for case in cases)
