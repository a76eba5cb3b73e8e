"""The garbage collector is paused, and only paused."""

import gc

import pytest

from specbench.no_collection import no_collection


@no_collection()
def is_collecting() -> bool:
    return gc.isenabled()


def test_nothing_is_collected_inside_and_all_is_as_before_afterwards():
    for _ in range(2):  # a decorated function is paused at every call
        assert not is_collecting()
        assert gc.isenabled()
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_what_was_made_inside_is_spared_the_next_collection_of_the_youngest():
    with no_collection():
        made: list[object] = []
    assert not any(one is made for young in (0, 1) for one in gc.get_objects(generation=young))


def test_a_collector_that_somebody_stopped_stays_stopped():
    gc.disable()
    try:
        assert not is_collecting()
        assert not gc.isenabled()
    finally:
        gc.enable()
