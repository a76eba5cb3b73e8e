"""Whether the decoder is right on a GPU: what a machine without one can only trace.

python -m benchmarks.gpu_suite.correct [--device cpu --small] [--only SECTION ...]
"""

from collections.abc import Sequence

from benchmarks.gpu_suite.captures import captures, host_calls, memory
from benchmarks.gpu_suite.machine import Json, Section, run_part
from benchmarks.gpu_suite.numerics import attention, fused_is_stock
from benchmarks.gpu_suite.texts import (
    catch_up,
    identity,
    sampling_distribution,
    self_consistency,
    together_and_alone,
)

SECTIONS: dict[str, Section] = {
    "captures": captures,
    "identity": identity,
    "host_calls": host_calls,
    "sampling_law": sampling_distribution,
    "together_and_alone": together_and_alone,
    "catch_up": catch_up,
    "memory": memory,
    "fused_is_stock": fused_is_stock,
    "attention": attention,
    "self_consistency": self_consistency,
}


def main(arguments: Sequence[str] | None = None) -> Json:
    return run_part("correct", SECTIONS, arguments)


if __name__ == "__main__":
    main()
