"""Fixtures and hooks of all tests."""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.probes import environment
from specbench.probes import host as load
from tests.sampling import generate_runnable_cases

# Before Triton is imported: on a machine without a GPU its kernels run in its interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


host_load = load.host_load  # as it is outside tests


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports make no garbage that is worth collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs after the cases of every parameter are known."""
    generate_runnable_cases(metafunc)


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection: a million that are not garbage.

    Every run of a target ends with some collections, which otherwise take a third of its time.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)  # else Triton reports all objects as its leftovers
    gc.set_threshold(50_000, 20, 100)  # tests make many objects that are not garbage
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        patch_language_per_kernel(interpreter)
        remember_numpy_types(interpreter)


def patch_language_per_kernel(interpreter: Any) -> None:
    """Triton's interpreter also patches the language for each function that a kernel calls.

    That takes most of its time.
    """
    language, patch = interpreter.tl, interpreter._patch_lang
    everywhere = SimpleNamespace(__globals__={"tl": language, "core": language.core})

    def patch_once(_: object) -> Any:
        is_patched = not language.core.is_builtin(language.load)
        return interpreter._LangPatchScope() if is_patched else patch(everywhere)

    interpreter._patch_lang = patch_once


def remember_numpy_types(interpreter: Any) -> None:
    """Triton's interpreter builds the table of all types for each operation."""
    find, known = interpreter._get_np_dtype, {}

    def numpy_type(of: Any) -> Any:
        name = of.scalar.name
        if name not in known:
            known[name] = find(of)
        return known[name]

    interpreter._get_np_dtype = numpy_type


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The choice of the fastest kernels is not left behind in the user's folder."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def attention_of_short_texts() -> Iterator[None]:
    """Attention kernels are compared over 200 tokens, but not over 2,000."""
    with pytest.MonkeyPatch.context() as patch:
        if choices := sys.modules.get("specbench.engines.kernel_choices"):
            candidates = sys.modules[choices.autotune_attention.__module__]
            short = partial(candidates.autotune_attention, shapes=candidates.SHAPES[:4])
            patch.setattr(choices, "autotune_attention", short)
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_host() -> Iterator[None]:
    """No run waits to observe the load of the machine, or warns about concurrent tests.

    The host has one core, so that no run tries several numbers of threads.
    """
    quiet = load.HostLoad(num_cores=1, others_cores=0.0, steal_share=0.0, load_average=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "host_load", lambda: quiet)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Runs store thousands of records (tests/runs has power cuts), and look up versions once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        for name in ("git_commit", "package_versions"):
            patch.setattr(environment, name, cache(getattr(environment, name)))
        yield


@pytest.fixture
def interpreted_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of our attention's programs in Triton's interpreter, which compiles nothing."""
    slot_attention = import_module("specbench.forward.kernels.slot_attention")
    monkeypatch.setattr(slot_attention, "program_sizes", lambda *_, **__: (64, 64, 264))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run may set torch's threads for the process; tests that share cores must not fight."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
