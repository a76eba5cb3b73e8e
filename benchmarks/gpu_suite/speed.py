"""How fast the decoder is on a GPU: against the memory's bandwidth, and beside transformers.

    python -m benchmarks.gpu_suite.speed [--device cpu --small] [--only SECTION ...]

Weights are made up, so nothing is downloaded. Beside transformers acceptance is real: the draft
is the target's first layers. Only the last section, which is ours alone, draws it.
"""

from collections.abc import Sequence

import torch

from benchmarks.gpu_suite.decoders import GRAPHS, Pair
from benchmarks.gpu_suite.machine import Json, Machine, Section, absent, run_part
from benchmarks.gpu_suite.models import (
    agree,
    made_up_pair,
    make_draft,
    make_model,
    random_prompt,
    read_bytes,
    shape,
)
from benchmarks.gpu_suite.side_by_side import Candidate, compare_engines
from benchmarks.gpu_suite.star import ACCEPTANCE, open_star
from benchmarks.gpu_suite.timing import Point, measure_points
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import EngineRequest, Work
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers import TransformersEngine
from specbench.inputs.config import Drafter, Target, load_pairings
from specbench.inputs.workloads import load_workload
from specbench.models.dummy import make_skeleton
from specbench.probes.bandwidth import measure_copy_bandwidth
from specbench.records import NO_DRAFTER, Message, Sampling
from specbench.shipped import shipped

K = 4
AGREEMENT = 0.75  # of the made-up pair's greedy tokens
DRAFT_LAYERS = 4
SPARE_BYTES = 3 * 2**30  # for keys, values and graphs beside the weights


def plain_steps(machine: Machine) -> Json:
    """K = 0 of an 8B target in bf16: graph modes and forwards, against copy bandwidth."""
    target = make_model(shape("llama-8b", machine), torch.bfloat16, machine.device)
    pair = Pair(machine=machine, target=target)
    copy_bytes_per_s = measure_copy_bandwidth(machine.device)
    points = {
        f"{forward}, {graph}": Point(
            decoder=pair.decoder(forward=forward, graph=graph),
            k=0,
            context=machine.pick(128, 16),
            new_tokens=machine.pick(100, 8),
            bytes_per_round=read_bytes(target),
        )
        for forward in ("fused", "stock")
        for graph in GRAPHS
    }
    found = measure_points(points, machine, copy_bytes_per_s, repeats=machine.pick(5, 1))
    return {"copy_bytes_per_s": copy_bytes_per_s, "read_bytes": read_bytes(target), "points": found}


def beside_transformers(machine: Machine) -> Json:
    """An 8B-shaped pair of real acceptance, the same tensors under both engines, bf16."""
    target = make_model(shape("llama-8b", machine), torch.bfloat16, machine.device)
    draft = make_draft(target, machine.pick(DRAFT_LAYERS, 1))
    scale, agreed = agree(target, draft, AGREEMENT, num_tokens=machine.pick(512, 64))
    own, drafter, pool = made_up_pair(target, draft)
    vocab = target.config.vocab_size
    requests = [_request(random_prompt(64, vocab, seed), machine.pick(128, 8)) for seed in range(6)]
    found = compare_engines(_candidates(own, drafter, pool), requests, machine)
    return {
        "draft_layers": draft.config.num_hidden_layers,
        "scale": scale,
        "agreed": agreed,
    } | found


def embedded_pair(machine: Machine) -> Json:
    """The embedded pair on its own code prompts, float32, so that texts can be compared."""
    (pairing,) = load_pairings(shipped("pairings.yaml")).select(["demo/draft"])
    pool = ModelPool(machine.device, "float32")
    workload = load_workload("code", folder=pairing.target.workloads)
    tokenizer = pool.tokenizer(pairing.target.model)
    requests = []
    for prompt in workload.take(machine.pick(8, 2), seed=0):
        history: list[Message] = list(prompt.turns[0])
        ids = tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
        requests.append(_request(ids, machine.pick(96, 8)))
    return compare_engines(_candidates(pairing.target, pairing.drafter, pool), requests, machine)


def large_pair(machine: Machine) -> Json:
    """A 70B target with a 1B draft in bf16, acceptance drawn: our own curve over K."""
    configs = [shape(name, machine) for name in ("llama-70b", "llama-1b")]
    skeletons = [make_skeleton(config, torch.bfloat16) for config in configs]
    weights = sum(p.nbytes for skeleton in skeletons for p in skeleton.parameters())
    if machine.is_cuda:
        free, _ = torch.cuda.mem_get_info(machine.device)
        if free < weights + SPARE_BYTES:
            return absent(f"{weights + SPARE_BYTES} bytes are needed, {free} are free")
    star = open_star(machine, *configs)
    decoder = star.decoder()
    ks = (0, 2, 4, 6, 8) if not machine.small else (0, 2)
    found = star.measured({f"K={k}": star.point(decoder, k) for k in ks})
    return {"synthetic_acceptance": ACCEPTANCE, "weights_bytes": weights, **found}


def _candidates(target: Target, drafter: Drafter, pool: ModelPool) -> list[Candidate]:
    """Ours and theirs over one set of weights, without drafts and with the same draft."""
    ours, theirs = BuiltinEngine(target, pool), TransformersEngine(target, pool)
    for engine in (ours, theirs):
        engine.add_drafter(drafter)
    candidates = [
        Candidate("builtin K=0", ours, ours.baseline),
        Candidate(f"builtin K={K}", ours, Work(drafter=drafter.name, method="draft_model", k=K)),
        Candidate("generate", theirs, theirs.baseline),
    ]
    for method, k in (("assisted", K), ("assisted_default", 20)):
        name = f"{method} K={k}"
        candidates.append(Candidate(name, theirs, Work(drafter=drafter.name, method=method, k=k)))
    # Last: on a GPU transformers compiles it, which takes longest.
    static = Work(drafter=NO_DRAFTER, method="generate_static", k=0)
    return [*candidates, Candidate("generate_static", theirs, static)]


def _request(prompt_ids: tuple[int, ...], new_tokens: int) -> EngineRequest:
    return EngineRequest(
        prompt_ids=prompt_ids,
        max_new_tokens=new_tokens,
        sampling=Sampling(),
        seed=0,
        stop_at_eos=False,
    )


SECTIONS: dict[str, Section] = {
    "plain_steps": plain_steps,
    "beside_transformers": beside_transformers,
    "embedded_pair": embedded_pair,
    "large_pair": large_pair,
}


def main(arguments: Sequence[str] | None = None) -> Json:
    return run_part("speed", SECTIONS, arguments)


if __name__ == "__main__":
    main()
