"""The garbage collector is only paused, never changed."""

import gc

import pytest

from specbench.runs import no_collection


@no_collection()
def is_collecting() -> bool:
    return gc.isenabled()


def test_garbage_collection_is_off_inside_and_on_afterwards():
    for _ in range(2):  # a decorated function is paused at every call
        assert not is_collecting()
        assert gc.isenabled()
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


@pytest.fixture
def nothing_frozen():
    gc.unfreeze()
    yield
    gc.freeze()


def made_inside() -> list[list[object]]:
    """More objects than a collection of the youngest generation waits for."""
    with no_collection():
        return [[] for _ in range(gc.get_threshold()[0] + 1)]


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_made_with_collection_off_skip_the_young_generations():
    made = made_inside()[0]
    assert not any(obj is made for young in (0, 1) for obj in gc.get_objects(generation=young))


def test_objects_frozen_by_the_caller_stay_frozen():
    gc.freeze()
    num_frozen = gc.get_freeze_count()
    made_inside()
    assert gc.get_freeze_count() == num_frozen


def test_a_stopped_garbage_collector_stays_stopped():
    gc.disable()
    try:
        assert not is_collecting()
        assert not gc.isenabled()
    finally:
        gc.enable()
