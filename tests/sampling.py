"""The cases of a large parametrization that run every time; the rest run in `make test-long`.

    @pytest.mark.sampled(one_in=4, every=["method", "variant.is_tree"])

keeps a quarter of a test's cases, drawn with the test's name as seed, and at least one case for
every value of each parameter that `every` names. A case that is named on the command line runs,
because it is then the only one.
"""

import random
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import pytest


def kept_cases(
    cases: Sequence[Mapping[str, object]], *, one_in: int, every: Sequence[str] = (), seed: str
) -> set[int]:
    """Indices of the cases that run every time; `every`: parameters, or attributes of them."""
    shuffled = list(range(len(cases)))
    random.Random(seed).shuffle(shuffled)
    kept: set[int] = set()
    seen: set[tuple[str, str]] = set()
    for i in shuffled:
        values = {(path, repr(_value(cases[i], path))) for path in every}
        if values - seen:
            kept.add(i)
            seen |= values
    quota = -(-len(cases) // one_in)
    for i in shuffled:
        if len(kept) >= quota:
            break
        kept.add(i)
    return kept


def _value(case: Mapping[str, object], path: str) -> object:
    name, _, attributes = path.partition(".")
    return attrgetter(attributes)(case[name]) if attributes else case[name]


def generate_runnable_cases(metafunc: pytest.Metafunc) -> None:
    """Mark the cases of a sampled test that are not kept `long`, and do not make them in vain.

    One case of a test always stays, because without cases pytest makes the test without values.
    """
    test, cases, config = metafunc.definition, metafunc._calls, metafunc.config
    if any("[" in argument for argument in config.args):
        return
    if marker := test.get_closest_marker("sampled"):
        _leave_the_rest_to_long(test.nodeid, cases, marker)
    if "not long" in config.option.markexpr:
        is_long = test.get_closest_marker("long")
        kept = [case for case in cases if not (is_long or _is_long(case))]
        metafunc._calls = kept or cases[:1]


def _leave_the_rest_to_long(test: str, cases: Sequence[Any], marker: pytest.Mark) -> None:
    short_cases = [case for case in cases if not _is_long(case)]
    kept = kept_cases([case.params for case in short_cases], seed=test, **marker.kwargs)
    for i, case in enumerate(short_cases):
        if i not in kept:
            case.marks.append(pytest.mark.long.mark)


def _is_long(case: Any) -> bool:
    return any(mark.name == "long" for mark in case.marks)
