"""Failed captures leave nothing behind, and memory of graphs is counted completely."""

import gc

import pytest
import torch

from specbench.decode.clock import Clock
from specbench.decode.drafter import NoDrafter
from specbench.decode.graphs import LOW_MEMORY_BYTES, CudaGraphs, Launchers
from specbench.decode.launcher import Launcher
from specbench.decode.verifier import verify
from specbench.errors import UsageError
from specbench.forward.runner import StockRunner
from specbench.records import Request
from tests.decoding.fake_driver import GRAPH_BYTES, OWN_BYTES, FakeDriver
from tests.decoding.lossless import GREEDY_SAMPLER, filled_rows
from tests.decoding.models import tiny_llama


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


REQUEST = Request(prompt_ids=(1, 2), max_new_tokens=1)


def nothing() -> None: ...


def test_a_failed_capture_is_ended_and_released_and_the_next_takes_a_new_pool(
    driver: FakeDriver,
) -> None:
    graphs = CudaGraphs()
    driver.fails = "operation failed due to a previous error during capture"

    with pytest.raises(RuntimeError, match="previous error during capture"):
        graphs.capture(nothing)
    torch.cuda.empty_cache()
    graphs.capture(nothing).replay()

    assert driver.log == [
        *("begin pool1", "capture_end", "end pool1 on 0", "release pool1 on 0"),
        "empty_cache",
        *("begin pool2", "capture_end", "replay"),
    ]
    assert driver.underway == []
    assert driver.uses == {"pool1": 0, "pool2": 1}


def test_a_failure_in_a_shared_pool_leaves_the_graphs_that_share_it(driver: FakeDriver) -> None:
    graphs = CudaGraphs()
    first = graphs.capture(nothing)
    driver.fails = "operation not permitted"

    with pytest.raises(RuntimeError):
        graphs.capture(nothing)
    second = graphs.capture(nothing)

    assert driver.uses == {"pool1": 1, "pool2": 1}
    assert graphs.reserved_bytes == 2 * (GRAPH_BYTES + OWN_BYTES)
    for captured in (first, second):
        captured.replay()


def test_the_error_of_the_captured_function_is_raised(
    driver: FakeDriver,
) -> None:
    driver.fails = "operation failed due to a previous error during capture"

    def out_of_memory() -> None:
        if driver.underway:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        CudaGraphs().capture(out_of_memory)

    assert driver.underway == []


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")],
    ids=lambda error: type(error).__name__,
)
def test_a_capture_without_memory_is_repeated_with_what_the_allocator_keeps(
    driver: FakeDriver, error: Exception
) -> None:
    graphs = CudaGraphs()

    def needs_more() -> None:
        if driver.underway and "empty_cache" not in driver.log:
            raise error

    graphs.capture(needs_more).replay()

    assert driver.log[-4:] == ["empty_cache", "begin pool2", "capture_end", "replay"]
    assert (graphs.num_captures, driver.uses) == (1, {"pool1": 0, "pool2": 1})


def test_an_ended_capture_releases_its_pool_once(driver: FakeDriver) -> None:
    """An error in the function that the stream never saw: torch ends the capture itself."""

    def broken() -> None:
        if driver.underway:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        CudaGraphs().capture(broken)

    assert driver.log == ["begin pool1", "capture_end", "reset"]
    assert driver.uses == {"pool1": 0}


@pytest.mark.parametrize("renamed", ["_cuda_endAllocateToPool", "_cuda_releasePool"])
def test_a_torch_that_cannot_clean_up_runs_rounds_eagerly_unless_graphs_are_requested(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, renamed: str
) -> None:
    assert driver.log == []
    device = torch.device("cuda")
    assert Launchers("auto", device).graphs is not None
    monkeypatch.delattr(torch._C, renamed)

    launchers = Launchers("auto", device)
    rows = filled_rows(StockRunner(tiny_llama()), NoDrafter(), [REQUEST])
    launcher = launchers(rows, GREEDY_SAMPLER, verify, Clock())

    assert launchers.graphs is None
    assert (type(launcher), launcher.graph) == (Launcher, "off")
    assert renamed in (launcher.reason or "")
    assert Launchers("off", device).graphs is None
    for graph in ("step", "round"):
        with pytest.raises(UsageError, match=renamed):
            Launchers(graph, device)


def test_memory_outside_the_allocator_counts_and_ends_with_its_graph(driver: FakeDriver) -> None:
    graphs = CudaGraphs()
    first, second = graphs.capture(nothing), graphs.capture(nothing)
    assert graphs.reserved_bytes == 2 * (GRAPH_BYTES + OWN_BYTES)

    del second
    gc.collect()
    assert graphs.reserved_bytes == 2 * GRAPH_BYTES + OWN_BYTES  # the pool is still in use
    first.replay()
    del first
    gc.collect()

    assert graphs.reserved_bytes == 0
    assert driver.reserved == 1000 + 2 * GRAPH_BYTES


def test_the_cuda_cache_is_emptied_only_if_memory_is_low(driver: FakeDriver) -> None:
    graphs = CudaGraphs()
    graphs.capture(nothing)
    assert "empty_cache" not in driver.log

    driver.free = LOW_MEMORY_BYTES - 1
    graphs.capture(nothing)

    assert driver.log[-3:] == ["empty_cache", "begin pool2", "capture_end"]


@pytest.mark.parametrize("num_warm_ups", [1, 3])
def test_a_function_runs_the_requested_warm_ups_before_capture(
    driver: FakeDriver, num_warm_ups: int
) -> None:
    calls: list[bool] = []
    graphs = CudaGraphs()

    graphs.capture(lambda: calls.append(bool(driver.underway)), num_warm_ups=num_warm_ups)

    assert calls == [False] * num_warm_ups + [True]
    assert graphs.num_captures == 1
    assert graphs.capture_s > 0
