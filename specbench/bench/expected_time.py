"""Estimates how long a plan takes on engines of this process and in sessions of servers, from files
and earlier runs. No torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specbench.bench.blocks import Block
from specbench.bench.budget import EXPLORE_SHARE, decoded, mean_session_s
from specbench.bench.plan import TargetPlan
from specbench.bench.served.sessions import Session, cycle_of, requests_of, served_cells
from specbench.engines.served_engine import find_served
from specbench.errors import ModelError, StoreError
from specbench.files.gguf import gguf_of
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.records import Condition, ServerRecord
from specbench.runs import StoredRun, load_run, runs_of
from specbench.settings import SERVED
from specbench.stats.crossed import expected_noise
from specbench.stats.machine_noise import MachineKind
from specbench.stats.spread import MIN_UNITS

# Estimates; the rate of tokens is that of an earlier run if there is one.
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
    # The shortest --time-budget with an interval in every setting, if the given one is shorter.
    least_budget_s: float | None = None
    open_settings: tuple[str, ...] = ()  # those that the given one leaves without an interval


def expected_time(
    plan: TargetPlan, setup: DeploymentSpec, earlier: StoredRun | None
) -> ExpectedTime:
    """The time of a target, from an earlier run if there is one, or else from its files."""
    num_tokens, num_steps = _planned(plan)
    loading_s, token_s, is_measured = BEGIN_S, None, False
    guess = _guessed_step_s(plan, setup)
    if guess is not None:
        loading_s += guess[1]
    if earlier is not None:
        spent, known = decoded(earlier, plan.target.name)
        token_s, is_measured = (spent / known, True) if known and spent else (None, False)
    if token_s is not None:
        seconds = token_s * num_tokens
    elif guess is not None:
        seconds = guess[0] * num_steps
    else:
        return ExpectedTime()
    budget_s, late = plan.settings.effort.budget_s, {}
    if budget_s is not None:
        step_s = guess[0] if guess is not None and token_s is None else None
        decided = _budgets_to_decide(plan, token_s=token_s or 0.0, step_s=step_s)
        late = {at: least_s for at, least_s in decided.items() if least_s > budget_s}
    is_most = budget_s is not None and budget_s < seconds * _OVERHEAD
    decoding_s = budget_s if is_most and budget_s is not None else seconds * _OVERHEAD
    return ExpectedTime(
        seconds=loading_s + decoding_s,
        seconds_are_measured=is_measured,
        is_ended_by_budget=is_most,
        least_budget_s=max(late.values(), default=None),
        open_settings=tuple(", ".join(at.distinct_parts(plan.conditions)) for at in late),
    )


def _budgets_to_decide(
    plan: TargetPlan, *, token_s: float, step_s: float | None
) -> dict[Condition, float]:
    """The --time-budget that each setting needs for an interval at K = 0 and one K of each pairing.

    Blocks come in the order of the plan. They take `step_s` per batched step, or if that is None,
    `token_s` per token.
    """
    seconds, units, budgets = 0.0, dict[Condition, set[str | int]](), dict[Condition, float]()
    for block in plan.explore_blocks():
        at = block.condition
        turns = sum(len(prompt.turns) for prompt in block.prompts)
        cells = 1 + len(plan.pairings)
        tokens = turns * at.num_samples * plan.max_new_tokens(at.workload) * cells
        seconds += tokens * token_s if step_s is None else tokens * step_s / at.batch_size
        seen = units.setdefault(at, set())
        seen.add(block.repeat if at.is_stream else block.prompt_id)
        if len(seen) == MIN_UNITS and at not in budgets:
            budgets[at] = seconds / EXPLORE_SHARE
    return budgets


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
    for run_id in runs_of(names, root):
        with suppress(StoreError):  # a damaged run is no reason not to plan
            stored = load_run(run_id, root)
            if stored.run.environment.device.partition(":")[0] == setup.device:
                return stored
    return None


TOKENS_PER_S = 50.0  # an estimate until this engine has served this target


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionsEstimate:
    """The estimate for one target on one engine."""

    target: str
    engine: str
    sessions: tuple[Session, ...]  # of one cycle
    are_starts: bool  # whether sessions start servers; if not, these run already
    cycles: int
    is_open_ended: bool  # whether more cycles follow if the first ones are noisy
    session_s: float
    budget_s: float | None
    is_measured: bool  # whether `session_s` is from earlier sessions
    detectable: float | None  # relative effect that 80% of such sweeps would detect

    @property
    def has_second_pass(self) -> bool:
        """Whether a winner is confirmed, since it was chosen from several K."""
        return len({s.draft for s in self.sessions if s.draft.k}) > 1

    @property
    def seconds(self) -> float:
        """Seconds of the exploration; the confirmation of winners has as many cycles. A budget ends
        both."""
        explored_s = self.cycles * len(self.sessions) * self.session_s
        return explored_s if self.budget_s is None else min(explored_s, self.budget_s)


def estimate_sessions(
    plan: TargetPlan, earlier: Sequence[ServerRecord]
) -> Iterator[SessionsEstimate]:
    """The estimate of each serving engine, with the seconds of `earlier` sessions if any."""
    are_starts = plan.running_ks is None
    for engine in plan.served:
        sessions = tuple(cycle_of(served_cells(plan, engine), 0))
        key = (engine, plan.target.name, are_starts)
        took_s = mean_session_s(
            [s for s in earlier if (s.engine, s.target, bool(s.command)) == key]
        )
        are_together = all(cell.key.condition.is_stream for cell in sessions[0].cells)
        num_prompts = min(len(plan.measured(workload)) for workload in plan.workloads)
        noise = expected_noise(None if are_together else num_prompts, MachineKind.SERVER)
        yield SessionsEstimate(
            target=plan.target.name,
            engine=engine,
            sessions=sessions,
            are_starts=are_starts,
            cycles=plan.cycles,
            is_open_ended=plan.settings.servers.cycles is None,
            session_s=took_s or _guessed_s(plan, engine, sessions[0]),
            budget_s=plan.settings.effort.budget_s,
            is_measured=took_s is not None,
            detectable=noise.detectable_effect(plan.cycles) if noise else None,
        )


def _guessed_s(plan: TargetPlan, engine: str, session: Session) -> float:
    requests_s = sum(_requests_s(plan, block) for block in session.blocks(plan))
    return find_served(engine).PROPERTIES.start_s * (plan.running_ks is None) + requests_s


def _served_token_s(model: ModelSpec) -> float:
    """Seconds of a token: fewer for a GGUF file so small that a CPU reads it faster."""
    if not model.is_gguf:
        return 1 / TOKENS_PER_S
    file = gguf_of(model)  # llama.cpp runs no Python between layers, as a CUDA graph does not
    token_s = file.read_bytes / HOST_BYTES_PER_S + file.num_layers * _LAYER_S["cuda"]
    return min(token_s, 1 / TOKENS_PER_S)


def _requests_s(plan: TargetPlan, block: Block) -> float:
    """Seconds of the requests of a block, by its concurrency or its request rate."""
    at, num = block.condition, len(requests_of(plan, block))
    each_s = plan.max_new_tokens(at.workload) * _served_token_s(plan.target.model)
    if at.request_rate is not None:
        return num / at.request_rate + each_s
    return num * each_s / at.concurrency
