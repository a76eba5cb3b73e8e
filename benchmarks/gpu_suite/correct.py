"""Whether the decoder is right on a GPU: what a machine without one can only trace.

python -m benchmarks.gpu_suite.correct [--device cpu --small] [--only SECTION ...]
"""

from collections.abc import Sequence

from benchmarks.gpu_suite.autotuning import autotuning, other_cases
from benchmarks.gpu_suite.captures import captures, host_calls, memory
from benchmarks.gpu_suite.drafting import one_graph
from benchmarks.gpu_suite.failures import failed_captures
from benchmarks.gpu_suite.gpu_tests import gpu_tests
from benchmarks.gpu_suite.machine import Json, Section, run_part
from benchmarks.gpu_suite.numerics import fused_is_stock, long_logits
from benchmarks.gpu_suite.own_kernels import own_kernels
from benchmarks.gpu_suite.texts import (
    catch_up,
    identity,
    sampling_distribution,
    self_consistency,
    together_and_alone,
)

# The most valuable first, so that a limit of time costs the least.
SECTIONS: dict[str, Section] = {
    "contests": autotuning,
    "identity": identity,
    "sampling_law": sampling_distribution,
    "host_calls": host_calls,
    "failed_captures": failed_captures,
    "long_logits": long_logits,
    "one_graph": one_graph,
    "own_kernels": own_kernels,
    "other_cases": other_cases,
    "together_and_alone": together_and_alone,
    "catch_up": catch_up,
    "memory": memory,
    "captures": captures,
    "fused_is_stock": fused_is_stock,
    "self_consistency": self_consistency,
    "gpu_tests": gpu_tests,
}


def main(arguments: Sequence[str] | None = None) -> Json:
    return run_part("correct", SECTIONS, arguments)


if __name__ == "__main__":
    main()
