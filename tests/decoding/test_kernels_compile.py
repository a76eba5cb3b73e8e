"""Our kernels compile for absent GPUs, with Triton's own compiler."""

import json
import os
import subprocess
import sys

import pytest

from tests.decoding.compiled_kernels import CARDS, Launch

RESERVED_BYTES = 1024  # of shared memory per program (CUDA programming guide)
KERNELS = {
    *("_part", "_together", "_turn_and_keep", "_gated", "_histogram", "_narrow", "_keep"),
    *("_race", "_winner", "_uniform", "_exponential"),
}
SAMPLE = {80: ["wide chain"], 90: ["small tree", "others"]}
EVERYTHING = dict.fromkeys(CARDS, ())


# The interpreter runs code that the compiler refuses, such as two types of a name in a loop.
@pytest.mark.parametrize(
    ("dtype", "works"),
    [
        pytest.param("bfloat16", SAMPLE, id="sample"),
        *(
            pytest.param(dtype, EVERYTHING, id=dtype, marks=pytest.mark.long)
            for dtype in ("bfloat16", "float16", "float32")
        ),
    ],
)
def test_kernels_compile_fit_into_shared_memory_and_run_in_one_wave(dtype, works):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.decoding.compiled_kernels", dtype, json.dumps(works)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    launches = [Launch(*json.loads(line)) for line in done.stdout.splitlines()]
    assert {launch.kernel for launch in launches} == KERNELS
    for launch in launches:
        print(launch)
        card = CARDS[launch.capability]
        assert launch.code > 0
        assert launch.shared <= card.max_shared
        if launch.kernel == "_part":
            assert launch.was_compiled_before
            needed = launch.shared + RESERVED_BYTES
            resident = min(card.shared_memory_per_multiprocessor // needed, 2)
            wave = (
                card.multi_processor_count * resident
            )  # less a part of a row or a block of queries
            assert wave / 2 < launch.num_programs <= wave
