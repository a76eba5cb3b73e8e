"""The counters of a serving engine's Prometheus page (/metrics)."""

from collections import defaultdict
from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

# vLLM and llama.cpp count drafts, rounds in which something was drafted; SGLang counts all
# rounds, and tells K by a gauge. Sources: vllm/v1/spec_decode/metrics.py, llama.cpp's server,
# sglang/srt/metrics/collector.py.
_ENGINES = ("vllm", "llamacpp", "sglang")
_EMITTED = {"generation_tokens", "tokens_predicted"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a server has counted since it started, summed over labels; None: it does not say."""

    engine: str | None
    num_rounds: float | None = None  # SGLang's; of the others with drafts only
    num_draft_tokens: float | None = None
    num_accepted: float | None = None
    num_tokens: float | None = None  # emitted, for whatever client
    num_positions: int | None = None  # K, where each position is counted or a gauge tells it

    def since(self, before: "Counters") -> "Counters":
        """What was counted in between; a counter that began to exist in between began at 0."""
        counted: dict[str, float | None] = {}
        for name in (f.name for f in fields(self) if f.name not in ("engine", "num_positions")):
            now = getattr(self, name)
            counted[name] = None if now is None else now - (getattr(before, name) or 0.0)
        return Counters(engine=self.engine, num_positions=self.num_positions, **counted)

    @property
    def is_of_a_restart(self) -> bool:
        """Whether what was counted in between is less than nothing."""
        counted = (self.num_rounds, self.num_draft_tokens, self.num_accepted, self.num_tokens)
        return any(value is not None and value < 0 for value in counted)


def read_counters(text: str) -> Counters:
    """ValueError where it is no such page."""
    sums: dict[str, float] = defaultdict(float)
    gauge = 0.0  # of every rank the same K
    positions: set[int] = set()
    engine: str | None = None
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            prefix, _, name = sample.name.removesuffix("_total").partition(":")
            if prefix not in _ENGINES or sample.value != sample.value:
                continue
            engine = prefix
            if name == "spec_decode_num_accepted_tokens_per_pos":
                positions.add(int(sample.labels["position"]))
            elif name == "spec_num_steps":
                gauge = max(gauge, sample.value)
            else:
                sums["num_tokens" if name in _EMITTED else name] += sample.value
    is_sglang = engine == "sglang"
    rounds = "spec_verify_calls" if is_sglang else "spec_decode_num_drafts"
    k = max(positions) + 1 if positions else None
    return Counters(
        engine=engine,
        num_rounds=sums.get(rounds),
        num_draft_tokens=sums.get("spec_decode_num_draft_tokens"),
        num_accepted=sums.get("spec_decode_num_accepted_tokens"),
        num_tokens=sums.get("num_tokens"),
        # The gauge is set now and then, and 0 before: that says nothing.
        num_positions=(round(gauge) or None) if is_sglang else k,
    )
