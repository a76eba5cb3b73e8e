"""The speculation counters of a serving engine's Prometheus page (/metrics)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# vLLM and llama.cpp count drafts, rounds in which something was drafted; SGLang counts all
# rounds, and tells K by a gauge. Sources: vllm/v1/spec_decode/metrics.py, llama.cpp's server,
# sglang/srt/metrics/collector.py.
_ENGINES = ("vllm", "llamacpp", "sglang")
_LINE = re.compile(r"([a-zA-Z]+):(\w+?)(?:_total)?(?:\{([^}]*)\})?\s+([-+.\deE]+|NaN)\s*(?:\d+)?$")
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a server has counted since it started; None: it does not say."""

    engine: str | None
    num_rounds: float | None = None  # SGLang's; of the others with drafts only
    num_draft_tokens: float | None = None
    num_accepted: float | None = None
    num_positions: int | None = None  # K, where each position is counted or a gauge tells it

    def since(self, before: "Counters") -> "Counters":
        """What was counted in between."""
        return Counters(
            engine=self.engine,
            num_rounds=_difference(self.num_rounds, before.num_rounds),
            num_draft_tokens=_difference(self.num_draft_tokens, before.num_draft_tokens),
            num_accepted=_difference(self.num_accepted, before.num_accepted),
            num_positions=self.num_positions,
        )


def read_counters(text: str) -> Counters:
    """The page's counters, summed over engines and labels."""
    sums: dict[str, float] = {}
    gauge = 0.0  # of every rank the same K
    positions: set[int] = set()
    engine: str | None = None
    for prefix, name, labels, value in _lines(text):
        engine = prefix
        if name == "spec_decode_num_accepted_tokens_per_pos":
            positions |= {int(found) for found in _POSITION.findall(labels)}
        elif name == "spec_num_steps":
            gauge = max(gauge, value)
        else:
            sums[name] = sums.get(name, 0.0) + value
    if engine == "sglang":
        # The gauge is set now and then, and 0 before: that says nothing.
        return Counters(
            engine=engine,
            num_rounds=sums.get("spec_verify_calls"),
            num_positions=round(gauge) or None,
        )
    return Counters(
        engine=engine,
        num_rounds=sums.get("spec_decode_num_drafts"),
        num_draft_tokens=sums.get("spec_decode_num_draft_tokens"),
        num_accepted=sums.get("spec_decode_num_accepted_tokens"),
        num_positions=max(positions) + 1 if positions else None,
    )


def _lines(text: str) -> Iterator[tuple[str, str, str, float]]:
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match and match[1] in _ENGINES and match[4] != "NaN":
            yield match[1], match[2], match[3] or "", float(match[4])


def _difference(after: float | None, before: float | None) -> float | None:
    """A counter that began to exist in between began at 0."""
    return None if after is None else after - (before or 0.0)
