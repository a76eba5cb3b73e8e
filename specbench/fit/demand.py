"""The memory that a target and the drafters of a run need, and the settings that need less.

No model is loaded. All commands use this check: `run`, `sweep-k`, `pair` and `doctor`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from specbench.errors import ModelError
from specbench.files.gguf import gguf_of
from specbench.files.model import ModelFiles, is_here, open_model, require_config
from specbench.files.model_spec import ModelSpec
from specbench.fit.gguf import plan_gguf
from specbench.fit.gpus import GIB
from specbench.fit.memory_plan import DeploymentSpec, MemoryPlan, plan_pair
from specbench.fit.weights import half_dtype, model_weights
from specbench.inputs.pairing import TARGET_ONLY, DrafterSpec, Pairing, Target
from specbench.methods import find_method

FEWEST_TOKENS = 256  # of context; less is not worth measuring
_UNCOUNTABLE = (ModelError, TypeError, ValueError, LookupError, ArithmeticError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Peak bytes. On a CPU all drafters stay loaded; on a GPU, those that fit together."""

    dtype: str
    weights: int
    rest: int  # KV cache, state and workspace, with the drafter that needs the most
    is_least: bool  # a lower bound: no file on this machine states the rest
    is_most: bool = False  # an upper bound, which refuses nothing

    @property
    def total(self) -> int:
        return self.weights + self.rest


class Remedy(NamedTuple):
    """The option or setting that makes the run smaller, and the bytes that it then needs."""

    words: str
    total: int


class _PlannedRun(NamedTuple):
    target: Target
    drafters: tuple[DrafterSpec, ...]
    setup: DeploymentSpec

    @property
    def demand(self) -> Demand:
        return demand(*self)


def demand(target: Target, drafters: Sequence[DrafterSpec], setup: DeploymentSpec) -> Demand:
    """The demand of a run; ModelError for a config with absurd sizes or a broken GGUF file."""
    if target.model.is_gguf:
        return _gguf_demand(target.model, drafters, setup)
    try:
        files = open_model(target.model)
    except ModelError:  # not on this machine, but the pairings file may state the size
        draft_bytes = [loaded_bytes(d.model, setup) if d.model else 0 for d in drafters]
        return Demand(
            dtype=setup.dtype or target.model.dtype,
            weights=loaded_bytes(target.model, setup) + _combined_bytes(draft_bytes, setup),
            rest=0,
            is_least=True,
        )
    require_config(files)
    declared = _declared(target.model)
    plain = _planned(files, TARGET_ONLY, setup)
    weights = _counted(files, plain, setup)
    extra_bytes: dict[object, int] = {}
    rests, is_least = [_rest(plain)], plain is None
    for drafter in drafters:
        plan = _planned(files, drafter, setup)
        rests.append(_rest(plan))
        is_least |= plan is None
        if plan is not None:
            own_bytes = plan.draft.nbytes if plan.draft else 0
        else:
            own_bytes = _bytes_of_drafter(drafter, setup)
        least = _declared(drafter.model) if drafter.model else 0
        extra_bytes[drafter.model or drafter.name] = max(own_bytes, least)
    return Demand(
        dtype=setup.dtype_of(files),
        weights=max(weights, declared) + _combined_bytes(list(extra_bytes.values()), setup),
        rest=max(rests),
        is_least=is_least,
    )


def _gguf_demand(
    target: ModelSpec, drafters: Sequence[DrafterSpec], setup: DeploymentSpec
) -> Demand:
    """The demand of llama-server, which has one drafter, with the one that needs the most."""
    file = gguf_of(target)
    models = ((d, d.model) for d in drafters)
    known = [(d, gguf_of(m) if m is not None and m.is_gguf else None) for d, m in models]
    peaks = [plan_gguf(file, draft, d, setup).peak for d, draft in [(TARGET_ONLY, None), *known]]
    most = max(peaks, key=lambda peak: peak.total)
    return Demand(
        dtype=file.quantization,
        weights=most.weights,
        rest=most.total - most.weights,
        is_least=False,
        is_most=True,
    )


def shortage(target: Target, drafters: Sequence[DrafterSpec], setup: DeploymentSpec) -> str | None:
    """The missing memory and what would fit, in words; None if all fits or free memory is unknown.

    ModelError for absurd sizes.
    """
    free = setup.free_for(target.model, *(drafter.model for drafter in drafters))
    needed = demand(target, drafters, setup)
    if free is None or needed.total <= free:
        return None
    bound = "at least" if needed.is_least else "at most" if needed.is_most else "about"
    sentence = f"needs {bound} {gib(needed.total)}"
    if needed.dtype != "auto":
        sentence += f" in {needed.dtype}"
    if needed.rest:
        rows = "1 request" if setup.concurrency == 1 else f"{setup.concurrency} requests"
        sentence += (
            f" ({gib(needed.weights)} of weights, {gib(needed.rest)} of KV cache and workspace "
            f"for {rows} of {setup.context:,} tokens)"
        )
    place = "this machine" if setup.device == "cpu" else "this GPU"
    return f"{sentence}, and {place} has {gib(free)} free; {_advice(target, drafters, setup)}"


def _advice(target: Target, drafters: Sequence[DrafterSpec], setup: DeploymentSpec) -> str:
    free = setup.memory_bytes or 0
    run = _PlannedRun(target, tuple(drafters), setup)
    tried = [Remedy(words, smaller.demand.total) for words, smaller in _smaller(run)]
    fitting = [remedy for remedy in tried if remedy.total <= free]
    if not fitting:
        smaller = [
            Remedy(f"{first} and {second}", smallest.demand.total)
            for first, smaller in _smaller(run)
            for second, smallest in _smaller(smaller)
        ]
        tried += smaller
        fitting = sorted((r for r in smaller if r.total <= free), key=lambda r: -r.total)[:1]
    if fitting:
        return "what would fit: " + ", or ".join(f"{r.words} ({gib(r.total)})" for r in fitting)
    fewest = min((remedy.total for remedy in tried), default=0)
    helps = 0 < fewest < run.demand.total
    at_best = f"; the smallest that other settings reach is {gib(fewest)}" if helps else ""
    return f"choose a smaller model or a larger machine{at_best}"


def _smaller(run: _PlannedRun) -> Iterator[tuple[str, _PlannedRun]]:
    """The run with one setting made smaller, each time with the option to type."""
    target, drafters, setup = run
    if setup.concurrency > 1:
        rows = _halvings(setup.concurrency, 1)
        fewer = [run._replace(setup=replace(setup, concurrency=n)) for n in rows]
        best = _largest_that_fits(fewer)
        yield f"--concurrency {best.setup.concurrency}", best
    if setup.context > FEWEST_TOKENS:
        lengths = _halvings(setup.context, FEWEST_TOKENS)
        best = _largest_that_fits([run._replace(setup=replace(setup, context=n)) for n in lengths])
        yield f"prompts and answers of {best.setup.context:,} tokens (--max-new-tokens)", best
    dtype = run.demand.dtype
    if dtype in ("float32", "float64"):
        half = half_dtype(setup.compute_capability)
        yield f"--dtype {half}", run._replace(setup=replace(setup, dtype=half))
    if len(drafters) > 1:
        smallest = min(drafters, key=lambda d: demand(target, [d], setup).total)
        yield (
            f"only one drafter, {target.name}/{smallest.name}",
            run._replace(drafters=(smallest,)),
        )
    # Without files, the only known size is the one in the pairings file.
    is_packable = not (target.model.quantization or target.model.is_shape or target.model.is_gguf)
    if is_packable and is_here(target.model):
        models = [replace(target.model, quantization=q, weights_gib=None) for q in ("int8", "int4")]
        best = _largest_that_fits([run._replace(target=replace(target, model=m)) for m in models])
        yield f"quantization: {best.target.model.quantization} in pairings.yaml", best


def _halvings(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(value // 2, least)
        yield value


def _largest_that_fits(runs: Sequence[_PlannedRun]) -> _PlannedRun:
    """The first run that fits, given the largest first; the last run if none fits."""
    return next((r for r in runs if r.demand.total <= (r.setup.memory_bytes or 0)), runs[-1])


def _planned(files: ModelFiles, drafter: DrafterSpec, setup: DeploymentSpec) -> MemoryPlan | None:
    """The memory plan; None if the files lack facts. ModelError for sizes that no model has."""
    if drafter.model is not None and not find_method(drafter.method).is_head:
        try:
            draft_files = open_model(drafter.model)
        except ModelError:
            return None
        require_config(draft_files)
    try:
        return plan_pair(files, drafter, setup)
    except _UNCOUNTABLE:
        return None


def _counted(files: ModelFiles, plan: MemoryPlan | None, setup: DeploymentSpec) -> int:
    """Bytes of a whole model's weights, 0 if they cannot be counted."""
    if plan is not None:
        return plan.target.nbytes
    try:
        weights = model_weights(files, setup.dtype_of(files))
    except _UNCOUNTABLE:
        return 0
    return weights.nbytes if weights else 0


def _bytes_of_drafter(drafter: DrafterSpec, setup: DeploymentSpec) -> int:
    """Bytes of a drafter that could not be planned together with its target."""
    if drafter.model is None or find_method(drafter.method).is_head:
        return 0
    try:
        files = open_model(drafter.model)
    except ModelError:
        return 0
    return _counted(files, None, setup)


def _rest(plan: MemoryPlan | None) -> int:
    return plan.peak.kv_cache + plan.peak.rest if plan else 0


def _combined_bytes(sizes: Sequence[int], setup: DeploymentSpec) -> int:
    # On a GPU, drafters that do not fit are measured later; on a CPU, the process would be killed.
    return sum(sizes) if setup.device == "cpu" else max(sizes, default=0)


def loaded_bytes(spec: ModelSpec, setup: DeploymentSpec) -> int:
    """Bytes from the pairings file, 0 if it states none; on a CPU, the default is float32."""
    is_widened = setup.device == "cpu" and spec.quantization is None
    is_widened = is_widened and (setup.dtype or spec.dtype) in ("auto", "float32")
    return _declared(spec) * (2 if is_widened else 1)


def _declared(spec: ModelSpec) -> int:
    return round((spec.weights_gib or 0) * GIB)


def gib(nbytes: int) -> str:
    """Format bytes like `1.5 GiB`, or in MiB below 1 GiB."""
    if nbytes < GIB:
        return f"{nbytes / 2**20:,.1f} MiB"
    return f"{nbytes / GIB:,.{0 if nbytes >= 1000 * GIB else 1}f} GiB"


def fits(pairing: Pairing, setup: DeploymentSpec) -> bool | None:
    """Whether the weights fit; None if the pairings file does not state their size, or if they may
    be spread over several cards.

    KV cache and activations are extra: `memory_plan.py` counts them if the files are here.
    """
    weights = sum(loaded_bytes(model, setup) for model in pairing.models)
    if weights > (setup.memory_bytes or 0):
        return None if setup.free_for(*pairing.models) is None else False
    return None if pairing.target.model.weights_gib is None else True
