"""Estimates the time that the engines of this process take for a plan, from files; no torch."""

from dataclasses import dataclass
from pathlib import Path

from specbench.bench.budget import spent_s
from specbench.bench.plan import TargetPlan
from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.runs import StoredRun, list_runs, load_run
from specbench.settings import SERVED

# Estimates, used if no earlier run measured the target.
BEGIN_S = 15.0  # imports, self-tests, kernels
LOAD_BYTES_PER_S = 1e9
HOST_BYTES_PER_S = 1e10
_LAYER_S = {"cpu": 2e-4, "cuda": 2e-5}  # per token, in addition to reading weights
_OVERHEAD = 1.3  # references, warm-up, memory passes, confirmation of winners


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTime:
    """Seconds that a target takes; None without its files and without an earlier run."""

    seconds: float | None = None
    seconds_are_measured: bool = False  # in an earlier run on such a device
    is_ended_by_budget: bool = False


def expected_time(
    plan: TargetPlan, setup: DeploymentSpec, earlier: StoredRun | None
) -> ExpectedTime:
    """The time of a target by an earlier run, else an estimate from the files."""
    num_tokens, num_steps = _planned(plan)
    loading_s, token_s, is_measured = BEGIN_S, None, False
    guess = _guessed_step_s(plan, setup)
    if guess is not None:
        loading_s += guess[1]
    if earlier is not None:
        known = sum(
            request.num_output_tokens
            for block in earlier.blocks
            for request in block.requests
            if request.error is None
        )
        spent = spent_s(earlier, plan.target.name)
        token_s, is_measured = (spent / known, True) if known and spent else (None, False)
    if token_s is not None:
        seconds = token_s * num_tokens
    elif guess is not None:
        seconds = guess[0] * num_steps
    else:
        return ExpectedTime()
    budget_s = plan.settings.effort.budget_s
    is_most = budget_s is not None and budget_s < seconds * _OVERHEAD
    decoding_s = budget_s if is_most and budget_s is not None else seconds * _OVERHEAD
    return ExpectedTime(
        seconds=loading_s + decoding_s, seconds_are_measured=is_measured, is_ended_by_budget=is_most
    )


def _planned(plan: TargetPlan) -> tuple[float, float]:
    """Tokens to decode, and batched steps that they take without speculation."""
    tokens = steps = 0.0
    for cell in plan.cell_plans():
        at = cell.key.condition
        if at.engine in SERVED:
            continue
        prompts = plan.workload(at.workload).prompts
        turns = sum(len(prompt.turns) for prompt in prompts) / len(prompts)
        num = len(plan.pass_prompts(plan.workload(at.workload), at)) if at.is_stream else 0
        answers = (num or cell.num_prompts) * cell.num_repeats * turns * at.num_samples
        cell_tokens = answers * plan.max_new_tokens(at.workload)
        tokens += cell_tokens
        steps += cell_tokens / at.batch_size
    return tokens, steps


def _guessed_step_s(plan: TargetPlan, setup: DeploymentSpec) -> tuple[float, float] | None:
    """Estimated seconds of a step without speculation, and of loading."""
    try:
        files = open_model(plan.target.model)
        planned, layers = plan_target(files, setup), files.num_layers
    except ModelError:
        return None
    if planned is None:
        return None
    read_s = planned.target.read_bytes / (setup.bytes_per_s or HOST_BYTES_PER_S)
    return read_s + layers * _LAYER_S[setup.device], planned.target.nbytes / LOAD_BYTES_PER_S


def earlier_run(plan: TargetPlan, setup: DeploymentSpec, root: Path) -> StoredRun | None:
    """The newest run under `root` that measured this target on a device of this kind."""
    names = {f"{plan.target.name}/{pairing.drafter.name}" for pairing in plan.pairings}
    for listing in reversed(list_runs(root)):
        if listing.problem or not listing.has_measured or not names & set(listing.pairings):
            continue
        stored = load_run(listing.run_id, root)
        if stored.run.environment.device.partition(":")[0] == setup.device:
            return stored
    return None
