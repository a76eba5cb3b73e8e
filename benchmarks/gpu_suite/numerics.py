"""Whether our forwards compute what transformers' own code does, in short texts and long ones.

Shape suffixes: T tokens of one row, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.decoders import make_runner
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, in_a_line
from benchmarks.gpu_suite.models import FAMILIES, make_model, medium, shape
from specbench.decode.graphs import Launchers
from specbench.engines.kernel_choices import FORWARDS
from specbench.engines.transformers_engine import make_peer
from specbench.errors import ModelError
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner
from specbench.forward.self_test import TOLERANCE, distance

SIZES = (1, 5, 9)  # tokens of a forward: a plain step, and checking 4 and 8 drafts
CONTEXT, SPAN = 40, 64
LONG, LONG_SPAN = 2100, 4096
# Our error over that of transformers' own bf16, both against float32.
WORSE = 1.5
REPLAYED = 0.01  # of a logit's spread: a capture may choose another kernel for a product


def fused_is_stock(machine: Machine) -> Json:
    """Distance of logits from the stock forward's, by family, dtype and forward."""
    found: Json = {}
    worst = 0.0
    for dtype in (torch.bfloat16, torch.float32):
        for family in FAMILIES:
            model = make_model(
                medium(machine.pick(4, 2), machine, family=family), dtype, machine.device
            )
            _bend_vectors(model)
            name = f"{family}, {str(dtype).removeprefix('torch.')}"
            expected = _texts_logits(make_runner(machine, model, "stock"))
            found[name] = {}
            for forward in FORWARDS:
                if forward == "stock":
                    continue
                try:
                    got = _texts_logits(make_runner(machine, model, forward))
                except ModelError as error:
                    found[name][forward] = {"refused": in_a_line(error)}
                    continue
                distances = {
                    f"T={size}": float(distance(a, b))
                    for size, a, b in zip(SIZES, got, expected, strict=True)
                }
                found[name][forward] = distances
                worst = max(worst, *(one / TOLERANCE[dtype] for one in distances.values()))
    return {
        "context": CONTEXT,
        "distance": found,
        "claims": [claim("worst distance, of what rounding may do in its dtype", worst, at_most=1)],
    }


def long_logits(machine: Machine) -> Json:
    """An 8B shape's logits in bf16 at 2,100 tokens in a bucket of 4,096, eager and replayed,
    against transformers' own; the same weights in float32 say how far off either is."""
    config = shape("llama-8b", machine)
    config.num_hidden_layers = machine.pick(8, 2)
    length, span = machine.pick(LONG, CONTEXT), machine.pick(LONG_SPAN, SPAN)
    model = make_model(config, torch.bfloat16, machine.device)
    exact = make_model(config, torch.float32, machine.device)
    exact.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(3)
    tokens_1T = torch.randint(1, config.vocab_size, (1, length + 5), generator=generator)
    tokens_1T = tokens_1T.to(machine.device)
    own = _transformers_logits(model, tokens_1T)
    right = _transformers_logits(exact, tokens_1T)
    del exact
    found: Json = {}
    for forward in FORWARDS:
        try:
            runner = make_runner(machine, model, forward)
        except ModelError as error:
            found[forward] = {"refused": in_a_line(error)}
            continue
        for size in (1, 5):
            eager, replayed = _after(machine, runner, tokens_1T[:, : length + size], length, span)
            expected, truth = own[:size], right[:size]
            one: Json = {"from_transformers": float(distance(eager, expected))}
            one["from_float32"] = float(distance(eager, truth))
            one["transformers_from_float32"] = float(distance(expected, truth))
            one["replayed_from_eager"] = None
            if replayed is not None:
                one["replayed_from_eager"] = float(distance(replayed, eager))
            found[f"{forward}, T={size}"] = one
    ran = [one for one in found.values() if "refused" not in one]
    relative = [one["from_float32"] / one["transformers_from_float32"] for one in ran]
    replays = [one["replayed_from_eager"] for one in ran if machine.is_cuda]
    return {
        "length": length,
        "span": span,
        "layers": config.num_hidden_layers,
        "logits": found,
        "claims": [
            claim(
                "worst distance from transformers' logits, of their spread",
                max(one["from_transformers"] for one in ran),
                at_most=TOLERANCE[torch.bfloat16],
            ),
            claim("worst error over that of transformers' bf16", max(relative), at_most=WORSE),
            claim(
                "worst distance of replayed logits from eager ones",
                max(replays, default=None),
                at_most=REPLAYED,
                reason=None if machine.is_cuda else NO_GPU,
            ),
        ],
    }


@torch.inference_mode()
def _after(
    machine: Machine, runner: Runner, tokens_1T: Tensor, length: int, span: int
) -> tuple[Tensor, Tensor | None]:
    """Logits [T, V] of the tokens after the first `length`; replayed ones where there are any."""
    places_1T = torch.arange(tokens_1T.shape[1], device=runner.device)[None]
    last = torch.tensor([length - 1], device=runner.device)
    runner.allocate(1, span)

    def run() -> Tensor:
        return runner.forward(tokens_1T[:, length:], places_1T[:, length:], span).logits[0]

    with pinned_attention(runner.device):
        runner.forward(tokens_1T[:, :length], places_1T[:, :length], span, last_B=last, start=0)
        eager = run().clone()
        replayed = _replayed(machine, run)
    runner.release()
    return eager, replayed


def _replayed(machine: Machine, run: Callable[[], Tensor]) -> Tensor | None:
    graphs = Launchers("round", machine.device).graphs
    if graphs is None:
        return None
    captured = graphs.capture(run)
    captured.output.fill_(torch.nan)
    captured.replay()
    return captured.output.clone()


@torch.inference_mode()
def _transformers_logits(model: object, tokens_1T: Tensor) -> Tensor:
    """Logits [5, V] of the last tokens, by a plain forward without a cache."""
    out = make_peer(model)(input_ids=tokens_1T, use_cache=False, logits_to_keep=5)
    logits_TV: Tensor = out.logits[0]
    return logits_TV


def _bend_vectors(model: torch.nn.Module) -> None:
    """Norms that are all ones and biases that are all zeros would hide what is left out."""
    for seed, parameter in enumerate(model.parameters()):
        if parameter.ndim == 1:
            generator = torch.Generator(parameter.device).manual_seed(seed)
            noise = torch.rand(len(parameter), generator=generator, device=parameter.device)
            parameter.data += (noise - 0.5).to(parameter.dtype)


def _texts_logits(runner: Runner) -> list[Tensor]:
    return [_logits(runner, size) for size in SIZES]


@torch.inference_mode()
def _logits(runner: Runner, size: int) -> Tensor:
    """Logits [T, V] of a made-up text's last tokens, its first ones fed before."""
    generator = torch.Generator().manual_seed(0)
    vocab, num_tokens = min(runner.vocab_size, 1000), CONTEXT + size
    tokens_1T = torch.randint(1, vocab, (1, num_tokens), generator=generator).to(runner.device)
    places_1T = torch.arange(num_tokens, device=runner.device)[None]
    runner.allocate(1, SPAN)
    with pinned_attention(runner.device):
        runner.forward(tokens_1T[:, :CONTEXT], places_1T[:, :CONTEXT], SPAN)
        return runner.forward(tokens_1T[:, CONTEXT:], places_1T[:, CONTEXT:], SPAN).logits[0]
