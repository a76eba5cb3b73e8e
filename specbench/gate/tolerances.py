"""How much worse a metric may become: read by the gate, and by the help of `specbench check`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How much worse a metric may become: 0.02 is 2 %."""

    metric: str  # with [i] entry i of a metric that is a list
    share: float

    @property
    def base_name(self) -> str:
        return self.metric.partition("[")[0]


_SECONDS_OF_DEFAULT = {  # decode_speedup, decode_tokens_per_s
    "cpu": (0.40, 0.40),  # what two single runs can decide there
    "cuda": (0.05, 0.10),
}


def default_tolerances(device: str) -> tuple[Tolerance, ...]:
    """What is judged where nothing else is asked for: counts tightly, seconds as noise allows."""
    speedup, speed = _SECONDS_OF_DEFAULT.get(device, _SECONDS_OF_DEFAULT["cpu"])
    return (
        Tolerance(metric="mean_acceptance_length", share=0.02),
        Tolerance(metric="peak_allocated_bytes", share=0.03),
        Tolerance(metric="decode_speedup", share=speedup),
        Tolerance(metric="decode_tokens_per_s", share=speed),
    )


def defaults_in_words() -> str:
    """Those of a GPU, and what is another share on a CPU."""
    gpu = default_tolerances("cuda")
    on_cpu = [one for one in default_tolerances("cpu") if one not in gpu]
    return f"{_in_words(gpu)}; on a CPU {_in_words(on_cpu)}"


def _in_words(tolerances: Sequence[Tolerance]) -> str:
    return ", ".join(f"{one.metric}:{100 * one.share:.3g}%" for one in tolerances)
