"""Single forwards are measured between rounds without changing them; the bytes of KV are known."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.decode.graphs import Capture
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, RoundForward, Work
from specbench.engines.model_forwards import ModelForwards
from specbench.engines.model_pool import ModelPool
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import Request, Sampling
from specbench.settings import DecoderSettings
from specbench.shipped import shipped
from tests.decoding.fake_cuda import DEVICE, fake_cuda
from tests.decoding.fake_graphs import EarlyCopies, LateClock
from tests.decoding.fakes import CountingClock, QueuedClock
from tests.tiny_models import write_head, write_model

REQUEST = Request(
    prompt_ids=(40, 41, 42, 43), max_new_tokens=24, sampling=Sampling(), seed=0, stop_at_eos=False
)

PLAIN = Work(drafter="none", method="none", k=0)
DRAFTED = Work(drafter="draft", method="draft_model", k=3)


@pytest.fixture(scope="module")
def builtin(target) -> BuiltinEngine:
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    return engine


@pytest.mark.parametrize("work", [PLAIN, DRAFTED], ids=["plain", "drafted"])
def test_each_round_is_timed_with_its_forwards_and_decodes_the_same_text(builtin, work):
    timed, plain = builtin.time_forwards(REQUEST, work), builtin.generate(REQUEST, work)
    assert timed.result.output_ids == plain.output_ids
    assert len(timed.round_s) == len(plain.rounds)
    assert {forward: len(seconds) for forward, seconds in timed.forward_s.items()} == {
        forward: forward.times * len(timed.round_s)
        for forward in builtin.forwards(work.drafter, work.k)
    }


def test_timed_forwards_keep_the_position_after_a_verified_prediction(target):
    drafter = DrafterSpec(
        name="said", method="previous_turn", parameters={"verify_prediction_first": True}
    )
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    engine.add_drafter(drafter)
    answer = engine.generate(REQUEST, PLAIN).output_ids
    request = replace(REQUEST, prediction_ids=answer[:12])
    work = Work(drafter="said", method="previous_turn", k=3)
    assert engine.generate(request, work).answer_check
    timed = engine.time_forwards(request, work)
    assert timed.result.output_ids == answer
    assert timed.result.answer_check is None


def test_a_repeated_pass_keeps_only_the_samples_of_its_last_run(builtin, monkeypatch):
    """As in a pass whose first run captured graphs."""
    serve = builtin._serve

    def twice(requests, work, load, policy):
        serve(requests, work, load, policy)
        return serve(requests, work, load, policy)

    monkeypatch.setattr(builtin, "_serve", twice)
    timed = builtin.time_forwards(REQUEST, PLAIN)
    (seconds,) = timed.forward_s.values()
    assert len(seconds) == len(timed.round_s) == REQUEST.max_new_tokens - 1


@pytest.mark.parametrize("work", [PLAIN, DRAFTED], ids=["plain", "drafted"])
def test_forwards_between_rounds_that_overlap_leave_the_text_unchanged(target, builtin, work):
    """As on a GPU without graphs: a round starts before the report of the last one is read."""
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    engine._launchers._readback = EarlyCopies(LateClock())

    timed = engine.time_forwards(REQUEST, work)

    assert timed.result.output_ids == builtin.generate(REQUEST, work).output_ids


def test_a_context_longer_than_the_rows_uses_their_last_slots(builtin):
    builtin.generate(REQUEST, PLAIN)
    cache = builtin._runner.cache
    assert builtin.forward_seconds("none", RoundForward(role="target", num_tokens=4, times=1), 999)
    assert builtin._runner.cache is cache  # graphs are bound to it


HEADS = {
    "eagle": [(5, 1, "observe"), (1, 3, "draft")],
    "eagle-tree": [(5, 1, "observe"), (4, 3, "draft")],
    "eagle3": [(5, 1, "observe"), (1, 3, "draft")],
    "medusa": [(1, 1, "4 of 4 heads")],
    "medusa-tree": [(1, 1, "4 of 4 heads")],
}

K = 4


@pytest.fixture(scope="module")
def engine() -> BuiltinEngine:
    """The bundled target with its heads, whose drafts it often accepts."""
    pairings = load_pairings(shipped("pairings.yaml")).select([f"demo/{name}" for name in HEADS])
    engine = BuiltinEngine(pairings[0].target, ModelPool(torch.device("cpu")))
    for pairing in pairings:
        engine.add_drafter(pairing.drafter)
    return engine


def request(engine: BuiltinEngine) -> Request:
    ids = engine.tokenizer.ids("def add(first, second):\n    return first +")
    return Request(
        prompt_ids=tuple(ids), max_new_tokens=40, sampling=Sampling(), seed=0, stop_at_eos=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_part_of_a_round_is_timed_and_has_its_bytes(engine: BuiltinEngine, name: str) -> None:
    engine.generate(request(engine), Work(drafter=name, method=name, k=K))
    target, *passes = engine.forwards(name, K)

    assert [(f.num_tokens, f.times, f.part) for f in passes] == HEADS[name]
    for forward in (target, *passes):
        assert engine.forward_seconds(name, forward, 100) > 0
        assert engine.bytes_read(name, forward, 1, 100) > 0


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_timing_forwards_does_not_change_what_is_decoded_next(
    engine: BuiltinEngine, name: str
) -> None:
    """Neither the text of three rows nor the number of drafts that their rounds keep."""
    work, base_request = Work(drafter=name, method=name, k=K), request(engine)
    all_asked = [replace(base_request, prompt_ids=base_request.prompt_ids[i:]) for i in range(3)]

    def decoded() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        results = engine.serve(all_asked, work, Load(concurrency=3)).results
        return [(r.output_ids, r.rounds.num_accepted) for r in results if r.rounds]

    before = decoded()
    assert len(before) == 3
    assert all(sum(num_accepted) > 0 for _, num_accepted in before)

    for context in (1, len(base_request.prompt_ids) + 10, 300):
        for forward in engine.forwards(name, K):
            engine.forward_seconds(name, forward, context)

    assert decoded() == before


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_rounds_keep_the_same_drafts_with_timed_forwards_between_them(
    engine: BuiltinEngine, name: str
) -> None:
    work, base_request = Work(drafter=name, method=name, k=K), request(engine)
    alone = engine.generate(base_request, work)
    timed = engine.time_forwards(base_request, work)
    assert timed is not None
    assert alone.rounds is not None
    assert timed.result.rounds is not None
    assert timed.result.output_ids == alone.output_ids
    assert timed.result.rounds.num_accepted == alone.rounds.num_accepted


class Cache:
    """Slots; a replaced one is another object."""

    def __init__(self, max_len: int = 0) -> None:
        self.max_len = max_len


@dataclass(eq=False)
class RecordingRunner:
    """Runs nothing, and stores what it was fed."""

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
    whose = RecordingRunner()

    bare = ModelForwards(None, CountingClock())
    seconds = [bare.seconds(whose, 3, context) for context in (100, 110)]

    assert seconds == [1.0, 1.0]
    assert whose.fed == [(3, [100, 101, 102], 128), (3, [110, 111, 112], 128)]
    assert whose.rooms == [(1, 128)]


@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
def test_the_launch_of_a_forward_on_a_gpu_is_not_timed(is_captured: bool) -> None:
    """In a round the GPU is busy when a forward is launched."""
    gpu = QueuedClock()

    class Runner(RecordingRunner):
        device = DEVICE

        def forward(self, *_: object) -> None:
            gpu.launch(5.0)

    class Graphs(Replays):
        def _replay(self) -> None:
            gpu.launch(5.0)

    runner, bare = Runner(), ModelForwards(Graphs() if is_captured else None, gpu)
    with fake_cuda():
        assert [bare.seconds(runner, 3, context) for context in (100, 101)] == [5.0, 5.0]


def test_a_cache_that_is_large_enough_is_not_reallocated():
    whose = RecordingRunner(Cache(max_len=64))
    ModelForwards(None, CountingClock()).seconds(whose, 3, 100)
    assert whose.fed == [(3, [61, 62, 63], 64)]
    assert whose.rooms == []


def test_a_shape_is_captured_once_and_replayed_from_then_on():
    graphs, whose = Replays(), RecordingRunner()
    bare = ModelForwards(graphs, CountingClock())

    for num_tokens, context in ((1, 100), (1, 101), (1, 102), (2, 100)):
        bare.seconds(whose, num_tokens, context)

    assert (graphs.num_captures, graphs.num_replays) == (2, 4)
    assert {span for *_, span in whose.fed} == {256}


def test_a_replay_gets_the_positions_of_its_tokens():
    whose = RecordingRunner(Cache(max_len=256))
    bare = ModelForwards(Replays(), CountingClock())
    bare.seconds(whose, 2, 100)
    bare.seconds(whose, 2, 117)
    assert whose.positions[-1].tolist() == [[117, 118]]


def test_runners_that_share_a_cache_have_separate_graphs():
    """The target and its own first layers, which draft for it."""
    graphs, whole = Replays(), RecordingRunner()
    first = RecordingRunner(cache=whole.cache)
    bare = ModelForwards(graphs, CountingClock())

    for whose in (whole, first, whole, first):
        bare.seconds(whose, 1, 100)

    assert graphs.num_captures == 2
    assert len(whole.fed) == len(first.fed) == 2  # before the capture, and in it


def test_tensors_read_by_a_graph_live_as_long_as_the_graph():
    whose = RecordingRunner()
    bare = ModelForwards(Replays(), CountingClock())

    bare.seconds(whose, 1, 100)
    gc.collect()

    assert whose.tokens[0]() is not None
    del bare
    gc.collect()
    assert whose.tokens[0]() is None


def test_a_replaced_cache_is_captured_again():
    graphs, whose = Replays(), RecordingRunner()
    bare = ModelForwards(graphs, CountingClock())
    bare.seconds(whose, 1, 100)

    whose.cache = Cache(max_len=256)
    bare.seconds(whose, 1, 100)

    assert graphs.num_captures == 2


def test_graphs_of_released_drafters_are_freed():
    bare = ModelForwards(Replays(), CountingClock())
    gone, stays = RecordingRunner(), RecordingRunner()
    bare.seconds(gone, 1, 100)
    tokens, alive = gone.tokens[0], weakref.ref(gone)

    del gone
    gc.collect()
    assert alive() is None
    bare.seconds(stays, 1, 100)

    assert tokens() is None
    assert stays.tokens[0]() is not None


def test_a_forward_that_cannot_be_captured_is_tried_once_then_runs_eagerly():
    graphs, whose = Replays(fails=True), RecordingRunner()
    bare = ModelForwards(graphs, CountingClock())

    for _ in range(3):
        assert bare.seconds(whose, 1, 100) == 1.0

    assert (graphs.num_captures, graphs.num_replays) == (1, 0)
    assert len(whose.fed) == 2 + 3  # the attempt, then every one


ROWS = 3


@pytest.mark.slow
@pytest.mark.parametrize("tree", [pytest.param("chain", marks=pytest.mark.long), "dynamic"])
def test_the_target_and_a_head_with_extra_beam_slots_are_counted(tmp_path: Path, tree: str) -> None:
    files = write_model(tmp_path / "target")
    head = write_head(tmp_path / "head", "eagle", files)
    target = Target(name="tiny", model=files.spec, drafters=())
    fused = DecoderSettings(forward="fused")  # whichever is faster here
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")), fused)
    parameters = {"tree": tree}
    engine.add_drafter(
        DrafterSpec(name="e", method="eagle", model=head.spec, parameters=parameters)
    )
    work = Work(drafter="e", method="eagle", k=2)
    sizes = set()
    for most in (50, 61, 67):  # rising past the end of a bucket: rows are never freed
        requests = [
            Request(prompt_ids=(40, 41, 42), max_new_tokens=most, sampling=Sampling(), seed=i)
            for i in range(ROWS)
        ]
        served = engine.serve(requests, work, Load(concurrency=ROWS))
        of_target = sum(both.nbytes for both in engine.runner.cache.layers)
        layers = engine.drafting("e").head.layers.cache.layers  # type: ignore[attr-defined]
        of_head = sum(both.nbytes for both in layers)
        assert served.kv_bytes == of_target + of_head, f"{most} new tokens"
        sizes.add(served.kv_bytes)
    assert len(sizes) == 2
    spare = engine.drafting("e").resources.spare_slots
    assert (spare > 0) is (tree == "dynamic")
