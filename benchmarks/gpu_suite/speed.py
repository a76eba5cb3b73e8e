"""How fast the decoder is on a GPU: against the memory's bandwidth, and beside transformers.

    python -m benchmarks.gpu_suite.speed [--device cpu --small] [--only SECTION ...]

Weights are made up, so nothing is downloaded. Beside transformers acceptance is real: the draft
is the target's first layers. Only the last section, which is ours alone, draws it.
"""

from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.gpu_suite.beside_vllm import beside_vllm
from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.machine import Json, Machine, Section, absent, run_part
from benchmarks.gpu_suite.models import shape
from benchmarks.gpu_suite.ours import by_choosing, sampled
from benchmarks.gpu_suite.side_by_side import Candidate, compare_engines
from benchmarks.gpu_suite.stage import Stage, request_of
from benchmarks.gpu_suite.star import ACCEPTANCE, open_star
from benchmarks.gpu_suite.steps import plain_steps
from benchmarks.gpu_suite.tables import attention_table, product_table
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers_engine import TransformersEngine
from specbench.fit.demand import gib
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.inputs.workloads import load_workload
from specbench.models.weights import make_skeleton
from specbench.records import NO_DRAFTER, Message
from specbench.settings import DecoderSettings
from specbench.shipped import shipped

K = 4
TIMES = 5  # as fast as transformers' assisted generation at the same K
SPARE_BYTES = 3 * 2**30  # for keys, values and graphs beside the weights


def beside_transformers(stage: Stage, machine: Machine) -> Json:
    """An 8B-shaped pair of real acceptance, the same tensors under both engines, bf16."""
    pair = stage.pair(machine)
    candidates = _candidates(machine, pair.target, pair.drafter, pair.pool)
    found = compare_engines(candidates, pair.requests(6, machine), machine)
    ratios = {(ratio["own"], ratio["peer"]): ratio for ratio in found["ratios"]}
    ratio = ratios.get((f"builtin K={K}", f"assisted K={K}"), {}).get("decode")
    told = claim(
        f"times as fast as assisted generation at K = {K}",
        ratio["estimate"] if ratio else None,
        at_least=TIMES,
        reason=machine.shows_nothing or (None if ratio else "not both were measured"),
    )
    return {
        "draft_layers": pair.draft_layers,
        "scale": pair.scale,
        "agreed": pair.agreed,
        "claims": [told],
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
        requests.append(request_of(ids, machine.pick(96, 8)))
    candidates = _candidates(machine, pairing.target, pairing.drafter, pool)
    return compare_engines(candidates, requests, machine)


def large_pair(machine: Machine) -> Json:
    """A 70B target with a 1B draft in bf16, acceptance drawn: our own curve over K."""
    configs = [shape(name, machine) for name in ("llama-70b", "llama-1b")]
    skeletons = [make_skeleton(config, torch.bfloat16) for config in configs]
    weights = sum(p.nbytes for skeleton in skeletons for p in skeleton.parameters())
    if machine.is_cuda:
        free, _ = torch.cuda.mem_get_info(machine.device)
        if free < weights + SPARE_BYTES:
            return absent(
                f"a 70B target and a 1B draft in bf16 need {gib(weights + SPARE_BYTES)} of GPU "
                f"memory, and {gib(free)} are free"
            )
    star = open_star(machine, *configs)
    decoder = star.decoder()
    ks = (0, 2, 4, 6, 8) if not machine.small else (0, 2)
    found = star.measured({f"K={k}": star.point(decoder, k) for k in ks})
    return {"synthetic_acceptance": ACCEPTANCE, "weights_bytes": weights, **found}


def _candidates(
    machine: Machine, target: Target, drafter: DrafterSpec, pool: ModelPool
) -> list[Candidate]:
    """Ours and theirs over one set of weights, without drafts and with the same draft."""
    ours = BuiltinEngine(target, pool, DecoderSettings(kernels=machine.kernels))
    theirs = TransformersEngine(target, pool)
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
    return candidates


def generate_static(stage: Stage, machine: Machine) -> Json:
    """Transformers' own compiled loop without drafts, beside ours: compiling it takes longest."""
    pair = stage.pair(machine)
    ours, *_, theirs = _candidates(machine, pair.target, pair.drafter, pair.pool)
    static = Work(drafter=NO_DRAFTER, method="generate_static", k=0)
    candidates = [ours, Candidate("generate_static", theirs.engine, static)]
    return compare_engines(candidates, pair.requests(6, machine), machine)


def sections() -> dict[str, Section]:
    """The most valuable first, so that a limit of time costs the least; what shares the 8B pair
    lies together, and is gone when a larger one comes."""
    stage = Stage()

    def alone(section: Section) -> Section:
        def run(machine: Machine) -> Json:
            stage.clear()
            machine.give_back()
            return section(machine)

        return run

    return {
        "product_table": alone(product_table),  # a few seconds, before the pair takes memory
        "plain_steps": partial(plain_steps, stage),
        "beside_transformers": partial(beside_transformers, stage),
        "sampled": partial(sampled, stage),
        "by_choosing": partial(by_choosing, stage),
        "generate_static": partial(generate_static, stage),
        "beside_vllm": partial(beside_vllm, stage),
        "attention_table": alone(attention_table),
        "embedded_pair": alone(embedded_pair),
        "large_pair": alone(large_pair),
    }


def main(arguments: Sequence[str] | None = None) -> Json:
    return run_part("speed", sections(), arguments)


if __name__ == "__main__":
    main()
