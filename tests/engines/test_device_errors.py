"""Errors of CUDA and Triton refuse the work or end the process."""

from subprocess import CalledProcessError
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources, PTXASError

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.kernel_choices import KernelChoices
from specbench.engines.model_pool import ModelPool
from specbench.errors import DeviceError, DeviceLostError, ModelError, ModelMemoryError
from specbench.inputs.pairing import Target
from specbench.models.library_errors import EXPECTED_ERRORS, device_errors_translated

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ..."
REFUSED = "CUDA error: too many resources requested for launch"


def translated(error: Exception) -> None:
    with device_errors_translated():
        raise error


@pytest.fixture
def broken_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA after a sticky error: every call fails."""

    def fail() -> None:
        raise torch.AcceleratorError(ILLEGAL)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)


@pytest.fixture
def sound_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    return calls


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(REFUSED),
        torch.AcceleratorError("unspecified"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        RuntimeError("CUDA NVRTC error: NVRTC_ERROR_COMPILATION"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
    ],
    ids=str,
)
def test_a_cuda_error_is_a_refusal_if_the_device_still_works(
    error: RuntimeError, sound_device: list[str]
) -> None:
    with pytest.raises(DeviceError) as raised:
        translated(error)
    assert isinstance(raised.value, EXPECTED_ERRORS)
    assert str(raised.value) == str(error)
    assert sound_device == ["synchronize"]


def raised_in(module: str, error: Exception) -> None:
    """Raise an error from a function of the named module, with its device errors translated."""
    scope: dict[str, Any] = {"__name__": module, "error": error}
    exec("def fail(): raise error", scope)
    with device_errors_translated():
        scope["fail"]()


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("specbench.forward", OutOfResources(245_760, 232_448, "shared memory")),
        ("specbench.forward", PTXASError("no such option")),
        ("triton.runtime.build", CalledProcessError(1, ["gcc", "driver.c"])),
        ("triton.runtime.cache", OSError(28, "No space left on device")),
        ("triton.compiler.compiler", RuntimeError("PassManager::run failed")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kernel_that_triton_refuses_is_an_expected_error_with_a_way_out(
    module: str, error: Exception, sound_device: list[str]
) -> None:
    with pytest.raises(EXPECTED_ERRORS) as raised:
        raised_in(module, error)
    assert isinstance(raised.value, DeviceError)
    assert type(error).__name__ in str(raised.value)
    assert str(error) in str(raised.value)
    assert "--attention-backend torch" in str(raised.value)
    assert sound_device == ["synchronize"]


@pytest.mark.parametrize("module", ["specbench.decode", "tritonclient.http"])
def test_an_error_of_the_same_class_elsewhere_is_a_bug(module: str) -> None:
    error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space") as raised:
        raised_in(module, error)
    assert raised.value is error


@pytest.mark.usefixtures("broken_device")
@pytest.mark.parametrize(
    "error", [RuntimeError(ILLEGAL), OutOfResources(2, 1, ILLEGAL)], ids=["CUDA", "Triton"]
)
def test_a_lasting_device_error_ends_the_process(error: Exception) -> None:
    with pytest.raises(DeviceLostError) as raised:
        translated(error)
    assert not isinstance(raised.value, EXPECTED_ERRORS)
    assert str(raised.value).startswith("the GPU has failed ")
    assert "CUDA error: an illegal memory access was encountered" in str(raised.value)


@pytest.mark.usefixtures("broken_device")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        ModelError("no such file"),
        torch.OutOfMemoryError("CUDA error: out of memory"),
        ValueError(REFUSED),
    ],
    ids=str,
)
def test_every_other_error_is_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        translated(error)
    assert raised.value is error


def test_a_device_error_without_a_gpu_is_not_probed() -> None:
    with pytest.raises(DeviceError):
        translated(RuntimeError(REFUSED))


def test_missing_memory_on_the_host_is_a_refusal() -> None:
    with pytest.raises(ModelMemoryError, match="can't allocate memory"), device_errors_translated():
        torch.empty(1 << 50, dtype=torch.uint8)


def test_a_device_error_while_an_engine_opens_is_a_refusal_that_frees_the_model(
    target: Target, pool: ModelPool, sound_device: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.AcceleratorError(REFUSED)

    monkeypatch.setattr(KernelChoices, "choose", fail)
    with pytest.raises(DeviceError, match=REFUSED):
        BuiltinEngine(target, pool)
    assert sound_device == ["synchronize"]
    with pytest.raises(KeyError):
        pool.release(target.model)
