from specbench.probes.device import allocator_peaks, cuda_uuid, reset_allocator_peaks


def test_a_cpu_has_no_allocator_peaks_and_no_uuid():
    reset_allocator_peaks("cpu")

    assert allocator_peaks("cpu") == (None, None)
    assert cuda_uuid("cpu") is None
