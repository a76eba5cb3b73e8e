"""What is captured of model forwards: for whom, over which cache, and how long it is kept."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decode.cuda_graphs import Capture
from specbench.engines.model_forwards import ModelForwards
from tests.decoding.fakes import CountingClock


class Cache:
    """Slots; a replaced one is another object."""

    def __init__(self, max_len: int = 0) -> None:
        self.max_len = max_len


@dataclass(eq=False)
class Recorder:
    """Runs nothing, and remembers what it was fed."""

    cache: Cache = field(default_factory=Cache)
    fed: list[tuple[int, list[int], int]] = field(default_factory=list)
    tokens: list[weakref.ref[Tensor]] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    rooms: list[tuple[int, int]] = field(default_factory=list)

    device = torch.device("cpu")

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.rooms.append((num_rows, max_len))
        self.cache.max_len = max_len

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, span: int, /) -> None:
        self.fed.append((tokens_BT.shape[1], positions_BT[0].tolist(), span))
        self.tokens.append(weakref.ref(tokens_BT))
        self.positions.append(positions_BT)


class Replays:
    """Keeps no function it captured, as a GPU keeps none: a replay reads memory."""

    reserved_bytes = 0

    def __init__(self, *, fails: bool = False) -> None:
        self.num_captures = self.num_replays = 0
        self._fails = fails

    def capture(self, run: Callable[[], object], *, num_warm_ups: int = 3) -> Capture[object]:
        assert num_warm_ups == 1  # it has run once, and rounds were captured before it
        self.num_captures += 1
        run()
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return Capture(output=None, replay=self._replay)

    def _replay(self) -> None:
        self.num_replays += 1


def test_a_forward_is_fed_tokens_after_its_context_and_timed_sample_by_sample():
    whose = Recorder()

    bare = ModelForwards(None, CountingClock())
    seconds = [bare.seconds(whose, 3, context) for context in (100, 110)]

    assert seconds == [1.0, 1.0]
    assert whose.fed == [(3, [100, 101, 102], 128), (3, [110, 111, 112], 128)]
    assert whose.rooms == [(1, 128)]


def test_a_cache_that_is_large_enough_is_not_reallocated():
    whose = Recorder(Cache(max_len=64))
    ModelForwards(None, CountingClock()).seconds(whose, 3, 100)
    assert whose.fed == [(3, [61, 62, 63], 64)]
    assert whose.rooms == []


def test_a_shape_is_captured_once_and_replayed_from_then_on():
    graphs, whose = Replays(), Recorder()
    bare = ModelForwards(graphs, CountingClock())

    for num_tokens, context in ((1, 100), (1, 101), (1, 102), (2, 100)):
        bare.seconds(whose, num_tokens, context)

    assert (graphs.num_captures, graphs.num_replays) == (2, 4)
    assert {span for *_, span in whose.fed} == {256}


def test_a_replay_gets_the_positions_of_its_tokens():
    whose = Recorder(Cache(max_len=256))
    bare = ModelForwards(Replays(), CountingClock())
    bare.seconds(whose, 2, 100)
    bare.seconds(whose, 2, 117)
    assert whose.positions[-1].tolist() == [[117, 118]]


def test_runners_that_share_a_cache_have_separate_graphs():
    """The target and its own first layers, which draft for it."""
    graphs, whole = Replays(), Recorder()
    first = Recorder(cache=whole.cache)
    bare = ModelForwards(graphs, CountingClock())

    for whose in (whole, first, whole, first):
        bare.seconds(whose, 1, 100)

    assert graphs.num_captures == 2
    assert len(whole.fed) == len(first.fed) == 2  # before the capture, and in it


def test_tensors_read_by_a_graph_live_as_long_as_the_graph():
    whose = Recorder()
    bare = ModelForwards(Replays(), CountingClock())

    bare.seconds(whose, 1, 100)
    gc.collect()

    assert whose.tokens[0]() is not None
    del bare
    gc.collect()
    assert whose.tokens[0]() is None


def test_a_replaced_cache_is_captured_again():
    graphs, whose = Replays(), Recorder()
    bare = ModelForwards(graphs, CountingClock())
    bare.seconds(whose, 1, 100)

    whose.cache = Cache(max_len=256)
    bare.seconds(whose, 1, 100)

    assert graphs.num_captures == 2


def test_graphs_of_released_drafters_are_freed():
    bare = ModelForwards(Replays(), CountingClock())
    gone, stays = Recorder(), Recorder()
    bare.seconds(gone, 1, 100)
    tokens, alive = gone.tokens[0], weakref.ref(gone)

    del gone
    gc.collect()
    assert alive() is None
    bare.seconds(stays, 1, 100)

    assert tokens() is None
    assert stays.tokens[0]() is not None


def test_a_forward_that_cannot_be_captured_is_tried_once_then_runs_eagerly():
    graphs, whose = Replays(fails=True), Recorder()
    bare = ModelForwards(graphs, CountingClock())

    for _ in range(3):
        assert bare.seconds(whose, 1, 100) == 1.0

    assert (graphs.num_captures, graphs.num_replays) == (1, 0)
    assert len(whose.fed) == 2 + 3  # the attempt, then every one
