"""Which cases of a large parametrisation run every time; the rest are left to `make test-long`.

    @pytest.mark.sampled(one_in=4, every=["method", "variant.is_tree"])

keeps a quarter of a test's cases, drawn once and for all by a seed that is the test's name, and at
least one case for every value of each parameter that `every` names. A case that is named on the
command line runs, for it is the only one then.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter

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


def leave_the_rest_to_long(items: Sequence[pytest.Item]) -> None:
    """Mark `long` the cases of sampled tests that are not kept."""
    by_test: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            by_test[item.nodeid.partition("[")[0]].append(item)
    for name, own in by_test.items():
        marker = own[0].get_closest_marker("sampled")
        assert marker is not None
        cases = [one.callspec.params for one in own]  # type: ignore[attr-defined]
        kept = kept_cases(cases, seed=name, **marker.kwargs)
        for i, one in enumerate(own):
            if i not in kept:
                one.add_marker("long")
