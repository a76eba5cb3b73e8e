"""A plan for a GPU that is not here counts what a process finds there."""

import pytest

from specbench.fit.gpus import RESERVED_BYTES, find_gpu


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        # Totals as nvidia-smi prints them. GDDR with error correction on, which is the default,
        # gives a sixteenth to it.
        ("Tesla T4", 15_360),
        ("NVIDIA A10G", 23_028),
        ("NVIDIA L4", 23_034),
        ("NVIDIA A40", 46_068),
        ("NVIDIA L40S", 46_068),
        ("NVIDIA A100-SXM4-80GB", 81_920),
        ("NVIDIA H100 80GB HBM3", 81_559),
        ("NVIDIA H200", 143_771),
    ],
)
def test_planned_gpu_memory_is_below_the_total(name, mib):
    left = find_gpu(name).memory_bytes - RESERVED_BYTES
    assert 0.94 * mib < left / 2**20 < mib


def test_the_server_edition_is_slower_than_the_workstations():
    assert find_gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition").bytes_per_s == 1.792e12
    assert find_gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition").bytes_per_s == 1.597e12
