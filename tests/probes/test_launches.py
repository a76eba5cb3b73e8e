"""The parse of a profile; no GPU is needed to read names."""

import torch

from specbench.probes.launches import HostCalls, calls_of, count_host_calls


def test_kernels_graphs_and_waits_are_told_apart():
    names = [
        "aten::mm",
        "cudaLaunchKernel",
        "cudaLaunchKernelExC_v11060",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
        "cudaGraphLaunch",
        "cudaGraphLaunch_v10000",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
    ]
    assert calls_of(names) == HostCalls(launches=4, graph_launches=2, syncs=3)


def test_what_neither_starts_a_kernel_nor_waits_is_not_counted():
    names = [
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaLaunchHostFunc",
        "cudaEventRecord",
        "cudaEventQuery",
        "cudaStreamWaitEvent",
        "cudaStreamIsCapturing",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "void at::native::vectorized_elementwise_kernel<4>",
        "Memcpy DtoH (Device -> Pinned)",
        "Stream Sync",
        "my function around cudaLaunchKernel",
    ]
    assert calls_of(names) == HostCalls(launches=0, graph_launches=0, syncs=0)


def test_without_a_gpu_nothing_is_told_and_the_work_is_done():
    done = []

    assert count_host_calls(lambda: done.append(torch.ones(3).sum())) is None
    assert len(done) == 1
