"""A sample of cases is the same every time, and no kind of case is missing from it."""

import itertools
from types import SimpleNamespace

import pytest

from tests.sampling import kept_cases, leave_the_rest_to_long

CASES = [
    {"method": method, "k": k, "how": SimpleNamespace(is_tree=k > 3)}
    for method, k in itertools.product(["eagle", "mtp", "ngram"], range(1, 6))
]


def test_as_many_are_kept_as_are_asked_for() -> None:
    assert len(kept_cases(CASES, one_in=3, seed="a")) == 5
    assert len(kept_cases(CASES, one_in=4, seed="a")) == 4
    assert len(kept_cases(CASES[:1], one_in=9, seed="a")) == 1
    assert kept_cases([], one_in=3, seed="a") == set()


def test_the_same_are_kept_every_time_and_others_of_another_test() -> None:
    first, again, other = (kept_cases(CASES, one_in=3, seed=seed) for seed in ("a", "a", "b"))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [str(i) for i in range(20)])
def test_every_value_that_matters_is_among_them(seed: str) -> None:
    every = ["method", "k", "how.is_tree"]
    kept = [CASES[i] for i in kept_cases(CASES, one_in=15, every=every, seed=seed)]
    assert {case["method"] for case in kept} == {"eagle", "mtp", "ngram"}
    assert {case["k"] for case in kept} == {1, 2, 3, 4, 5}
    assert len(kept) < len(CASES)


class Case:
    """A collected test, as far as sampling looks at it."""

    def __init__(self, test: str, *marks: pytest.MarkDecorator, **params: object) -> None:
        self.nodeid = f"{test}[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self._marks = {one.name: one.mark for one in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)

    def add_marker(self, name: str) -> None:
        self._marks[name] = getattr(pytest.mark, name).mark

    @property
    def is_long(self) -> bool:
        return "long" in self._marks


def test_what_is_not_kept_is_long_and_tests_are_sampled_apart() -> None:
    marked = pytest.mark.sampled(one_in=4, every=["b"])
    first, second = (
        [Case(test, marked, a=a, b=b) for a in range(8) for b in "xy"] for test in ("f", "g")
    )
    plain = [Case("plain", a=a) for a in range(8)]
    leave_the_rest_to_long([*first, *plain, *second])  # type: ignore[list-item]
    for cases in (first, second):
        assert sum(not case.is_long for case in cases) == 4
        assert {case.callspec.params["b"] for case in cases if not case.is_long} == {"x", "y"}
    assert not any(case.is_long for case in plain)
    assert [case.is_long for case in first] != [case.is_long for case in second]


def test_a_case_that_is_long_anyway_is_no_part_of_the_sample() -> None:
    marked = pytest.mark.sampled(one_in=2)
    cases = [Case("f", marked, *([pytest.mark.long] if a < 4 else []), a=a) for a in range(8)]
    leave_the_rest_to_long(cases)  # type: ignore[arg-type]
    assert all(case.is_long for case in cases[:4])
    assert sum(not case.is_long for case in cases[4:]) == 2


def test_a_case_that_is_named_runs() -> None:
    alone = Case("f", pytest.mark.sampled(one_in=9), a=1)
    leave_the_rest_to_long([alone])  # type: ignore[list-item]
    assert not alone.is_long
