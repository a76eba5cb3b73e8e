"""Made-up speedup curves for the fake engine: K, prompts and single requests differ by noise."""

import math
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from specbench.engines.engine import Work
from specbench.records import Request, Result, RoundLog
from tests.bench.fakes import FakeEngine


@dataclass
class CurveEngine(FakeEngine):
    """Decodes at `speedups[k]` of the speed at K = 0, times e^(normal noise) per request.

    `spread` is the standard deviation between prompts, alike for every K; `jitter` that of
    single requests.
    """

    speedups: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    spread: float = 0.1
    jitter: float = 0.05
    _factor: float = 1.0

    def generate(self, request: Request, work: Work) -> Result:
        prompt = f"{self.seed}|{zlib.crc32(bytes(request.prompt_ids))}"
        draw = random.Random(f"{prompt}|{work.k}|{len(self.calls)}").gauss(0, self.jitter)
        if work.k:
            draw += random.Random(prompt).gauss(0, self.spread)
        self._factor = math.exp(draw) / (self.speedups[work.k] if work.k else 1.0)
        return super().generate(request, work)

    def _rounds(self, num_tokens: int, drafter: str, k: int, slowness: float) -> RoundLog:  # noqa: ARG002
        """A token per round, so that every K has rounds enough to be valid."""
        round_s = self._factor * slowness
        return RoundLog(
            num_drafted=(k,) * num_tokens,
            num_accepted=(0,) * num_tokens,
            num_emitted=(1,) * num_tokens,
            round_s=(round_s,) * num_tokens,
            draft_s=(round_s / 4 if k else 0.0,) * num_tokens,
            verify_s=(round_s * 3 / 4 if k else round_s,) * num_tokens,
        )


def curve(seed: int, num: int = 8) -> dict[int, float]:
    """Speedups of K = 1 to `num`: one smooth top of 0.9 to 1.5 somewhere in the range."""
    draw = random.Random(f"curve {seed}")
    top, height, width = draw.uniform(0.5, num + 1), draw.uniform(0.9, 1.5), draw.uniform(2, 6)
    return {k: height * math.exp(-(((k - top) / width) ** 2) / 2) for k in range(1, num + 1)}
