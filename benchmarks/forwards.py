"""The fused forward beside transformers' own modelling code, over equal weights."""

import time
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from benchmarks.turns import Sample, median_ratio, take_turns
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import RoundForward
from specbench.engines.model_pool import ModelPool
from specbench.inputs.pairing import Target
from specbench.records import NO_DRAFTER, Interval
from specbench.settings import DecoderSettings

WARM_UPS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardRatio:
    """Stock seconds / fused seconds of a forward over `num_tokens` tokens of one row."""

    num_tokens: int
    context: int
    num_samples: int
    stock_s: float  # medians
    fused_s: float
    wall: Interval
    cpu: Interval


def compare_forwards(
    target: Target, dtype: str, *, sizes: tuple[int, ...], context: int, num_samples: int
) -> tuple[ForwardRatio, ...]:
    """One ratio a size, on the CPU; both forwards keep the cache and the shapes of a round."""
    device = torch.device("cpu")
    engines = {
        "stock": BuiltinEngine(target, ModelPool(device, dtype), DecoderSettings(forward="stock")),
        "fused": BuiltinEngine(target, ModelPool(device, dtype), DecoderSettings(forward="fused")),
    }
    return tuple(_compare(engines, size, context, num_samples) for size in sizes)


def _compare(
    engines: dict[str, BuiltinEngine], size: int, context: int, num_samples: int
) -> ForwardRatio:
    measure = {name: partial(_sample, engine, size, context) for name, engine in engines.items()}
    take_turns(measure, WARM_UPS)
    samples = take_turns(measure, num_samples)
    stock, fused = samples["stock"], samples["fused"]
    return ForwardRatio(
        num_tokens=size,
        context=context,
        num_samples=num_samples,
        stock_s=median(one.wall_s for one in stock),
        fused_s=median(one.wall_s for one in fused),
        wall=median_ratio([s.wall_s for s in stock], [s.wall_s for s in fused]),
        cpu=median_ratio([s.cpu_s for s in stock], [s.cpu_s for s in fused]),
    )


def _sample(engine: BuiltinEngine, size: int, context: int) -> Sample:
    forward = RoundForward(role="target", num_tokens=size, times=1)
    cpu_s = time.process_time()
    wall_s = engine.forward_seconds(NO_DRAFTER, forward, context)
    return Sample(wall_s, time.process_time() - cpu_s)
