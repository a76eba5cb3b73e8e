"""Estimates how long a plan takes on engines of this process and in sessions of servers, from files
and earlier runs. No torch.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from specbench.bench.blocks import Block
from specbench.bench.budget import EXPLORE_SHARE, decoded
from specbench.bench.plan import TargetPlan
from specbench.bench.served.sessions import Session, cycle_of, requests_of, served_cells
from specbench.engines.served_engine import find_served
from specbench.errors import ModelError, StoreError
from specbench.files.gguf import gguf_of
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.records import SESSIONS_PER_K, Condition, DraftConfig, RequestRecord, ServerRecord
from specbench.runs import StoredRun, load_run, runs_of
from specbench.settings import SERVED
from specbench.stats.crossed import expected_noise
from specbench.stats.machine_noise import MachineKind
from specbench.stats.spread import MIN_UNITS

# Estimates; the rate of tokens is that of an earlier run if there is one.
BEGIN_S = 15.0  # imports, self-tests, kernels
LOAD_BYTES_PER_S = 1e9
HOST_BYTES_PER_S = 1e10
GPU_BYTES_PER_S = 5e11  # of a card whose bandwidth is unknown
_LAYER_S = {"cpu": 2e-4, "cuda": 2e-5}  # per token, in addition to reading weights
_OVERHEAD = 1.3  # references, warm-up, memory passes, confirmation of winners


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedTime:
    """Seconds that a target takes; None without its files and without an earlier run."""

    seconds: float | None = None
    seconds_are_measured: bool = False  # in an earlier run on such a device
    tolerance: int = 3  # the factor by which they may be off if they are not
    is_ended_by_budget: bool = False
    # The shortest --time-budget with an interval in every setting, if the given one is shorter.
    least_budget_s: float | None = None
    open_settings: tuple[str, ...] = ()  # those that the given one leaves without an interval


def expected_time(
    plan: TargetPlan, setup: DeploymentSpec, earlier: StoredRun | None
) -> ExpectedTime:
    """The time of a target, from an earlier run if there is one, or else from its files."""
    tokens, guess = _planned(plan), _guessed_step_s(plan, setup)
    loading_s = BEGIN_S + (guess[1] if guess is not None else 0.0)
    token_s = {} if earlier is None else _measured_token_s(plan, setup, earlier)
    is_measured = token_s.keys() >= tokens.keys()
    if not is_measured:
        if guess is None:
            return ExpectedTime()
        token_s = {batch_size: guess[0] / batch_size for batch_size in tokens}
    seconds = sum(token_s[batch_size] * num for batch_size, num in tokens.items())
    whole_s, budget_s, late = plan.settings.effort.budget_s, plan.budget_s, {}
    if whole_s is not None:
        decided = _budgets_to_decide(plan, token_s)
        late = {at: least_s for at, least_s in decided.items() if least_s > whole_s}
    is_most = budget_s is not None and budget_s < seconds * _OVERHEAD
    decoding_s = budget_s if is_most and budget_s is not None else seconds * _OVERHEAD
    return ExpectedTime(
        seconds=loading_s + decoding_s,
        seconds_are_measured=is_measured,
        tolerance=3 if setup.bytes_per_s or setup.device == "cpu" else 10,
        is_ended_by_budget=is_most,
        least_budget_s=max(late.values(), default=None),
        open_settings=tuple(", ".join(at.distinct_parts(plan.conditions)) for at in late),
    )


def _budgets_to_decide(plan: TargetPlan, token_s: Mapping[int, float]) -> dict[Condition, float]:
    """The --time-budget that each setting needs for an interval at K = 0 and one K of each pairing.

    Blocks come in the order of the plan. `token_s`: seconds of a token, by batch size.
    """
    seconds, units, budgets = 0.0, dict[Condition, set[str | int]](), dict[Condition, float]()
    for block in plan.explore_blocks():
        at = block.condition
        turns = sum(len(prompt.turns) for prompt in block.prompts)
        cells = 1 + _num_measured(plan)
        tokens = turns * at.num_samples * plan.max_new_tokens(at.workload) * cells
        seconds += tokens * token_s.get(at.batch_size, 0.0)
        seen = units.setdefault(at, set())
        seen.add(block.repeat if at.is_stream else block.prompt_id)
        if len(seen) == MIN_UNITS and at not in budgets:
            budgets[at] = seconds / (EXPLORE_SHARE * plan.budget_share)
    return budgets


def _num_measured(plan: TargetPlan) -> int:
    """The number of drafters that are measured, of those that are forecast."""
    num, most = len(plan.pairings), plan.settings.forecasting.most_drafters
    return num if most is None else min(num, most)


def _planned(plan: TargetPlan) -> Counter[int]:
    """Tokens to decode, by batch size."""
    tokens, share = Counter[int](), _num_measured(plan) / max(len(plan.pairings), 1)
    for cell in plan.cell_plans():
        at = cell.key.condition
        if at.engine in SERVED:
            continue
        prompts = plan.workload(at.workload).prompts
        turns = sum(len(prompt.turns) for prompt in prompts) / len(prompts)
        num = len(plan.pass_prompts(plan.workload(at.workload), at)) if at.is_stream else 0
        answers = (num or cell.num_prompts) * cell.num_repeats * turns * at.num_samples
        cell_tokens = answers * plan.max_new_tokens(at.workload)
        tokens[at.batch_size] += round(cell_tokens * (share if cell.key.draft.k else 1))
    return tokens


def _measured_token_s(
    plan: TargetPlan, setup: DeploymentSpec, earlier: StoredRun
) -> dict[int, float]:
    """Seconds of a token in an earlier run of this target and dtype, by batch size."""
    dtype: str | None = None
    with suppress(ModelError):
        dtype = setup.dtype_of(open_model(plan.target.model))
    ids = defaultdict[int, set[str]](set)
    for key in earlier.run.keys:
        at = key.condition
        if at.target == plan.target.name and dtype in (None, at.dtype):
            ids[at.batch_size].add(key.id)
    known = {batch_size: decoded(earlier, cells) for batch_size, cells in ids.items()}
    return {size: seconds / num for size, (seconds, num) in known.items() if seconds and num}


def _guessed_step_s(plan: TargetPlan, setup: DeploymentSpec) -> tuple[float, float] | None:
    """Estimated seconds of a step without speculation, and of loading."""
    try:
        files = open_model(plan.target.model)
        planned, layers = plan_target(files, setup), files.num_layers
    except ModelError:
        return None
    if planned is None:
        return None
    usual = HOST_BYTES_PER_S if setup.device == "cpu" else GPU_BYTES_PER_S
    read_s = planned.target.read_bytes / (setup.bytes_per_s or usual)
    return read_s + layers * _LAYER_S[setup.device], planned.target.nbytes / LOAD_BYTES_PER_S


def earlier_run(plan: TargetPlan, setup: DeploymentSpec, root: Path) -> StoredRun | None:
    """The newest run under `root` that measured this target on such a device, in its dtype and at
    its batch sizes."""
    names = {pairing.name for pairing in plan.pairings}
    batch_sizes = _planned(plan).keys()
    for run_id in runs_of(names, root):
        with suppress(StoreError):  # a damaged run is no reason not to plan
            stored = load_run(run_id, root)
            at = stored.run.environment
            is_same = (at.device.partition(":")[0], at.gpu) == (setup.device, setup.gpu)
            if is_same and _measured_token_s(plan, setup, stored).keys() >= batch_sizes:
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
    is_measured: bool  # whether `session_s` follows from earlier sessions
    detectable: float | None  # relative effect that 80% of such sweeps would detect

    @property
    def num_confirming(self) -> int:
        """The sessions of a cycle that confirms one winner of each drafter, with its K = 0."""
        chosen = defaultdict[tuple[str, float, str | None], set[DraftConfig]](set)
        for session in self.sessions:
            if session.draft.k:
                at = session.draft.drafter, session.temperature, session.variant
                chosen[at].add(session.draft)
        won = [
            at
            for at, drafts in chosen.items()
            if len(drafts) > 1 or any(draft.is_adaptive for draft in drafts)
        ]
        return SESSIONS_PER_K * (len(won) + len({at[1:] for at in won}))

    @property
    def seconds(self) -> float:
        """Seconds of the exploration, and of the confirmation of winners, which has as many cycles.
        A budget ends both."""
        seconds = self.cycles * (len(self.sessions) + self.num_confirming) * self.session_s
        return seconds if self.budget_s is None else min(seconds, self.budget_s)


class EarlierSession(NamedTuple):
    """A session of an earlier run, with the seconds and tokens of its requests."""

    server: ServerRecord
    request_s: float
    num_tokens: int


def earlier_sessions(stored: StoredRun) -> Iterator[EarlierSession]:
    """The completed sessions of a run."""
    requests = defaultdict[str | None, list[RequestRecord]](list)
    for block in stored.blocks:
        requests[block.session] += [r for r in block.requests if r.total_s and r.error is None]
    for server in stored.servers:
        if server.seconds and (answered := requests[server.session]):
            num_tokens = sum(request.num_output_tokens for request in answered)
            yield EarlierSession(server, sum(r.total_s or 0.0 for r in answered), num_tokens)


def estimate_sessions(
    plan: TargetPlan, earlier: Sequence[EarlierSession]
) -> Iterator[SessionsEstimate]:
    """The estimate of each serving engine, with the speed of `earlier` sessions if any."""
    are_starts = plan.running_ks is None
    for engine in plan.served:
        sessions = tuple(cycle_of(served_cells(plan, engine), 0))
        key = (engine, plan.target.name, are_starts)
        before = [
            session
            for session in earlier
            if (session.server.engine, session.server.target, bool(session.server.command)) == key
        ]
        num_tokens = sum(session.num_tokens for session in before)
        start_s = find_served(engine).PROPERTIES.start_s if are_starts else 0.0
        if not num_tokens:
            token_s = _served_token_s(plan.target.model)
        else:
            start_s = fmean(session.server.start_s or 0.0 for session in before)
            token_s = sum(session.request_s for session in before) / num_tokens
        blocks = sessions[0].blocks(plan)
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
            session_s=start_s + sum(_requests_s(plan, block, token_s) for block in blocks),
            budget_s=plan.budget_s,
            is_measured=num_tokens > 0,
            detectable=noise.detectable_effect(plan.cycles) if noise else None,
        )


def _served_token_s(model: ModelSpec) -> float:
    """Seconds of a token: fewer for a GGUF file so small that a CPU reads it faster."""
    if not model.is_gguf:
        return 1 / TOKENS_PER_S
    file = gguf_of(model)  # llama.cpp runs no Python between layers, as a CUDA graph does not
    token_s = file.read_bytes / HOST_BYTES_PER_S + file.num_layers * _LAYER_S["cuda"]
    return min(token_s, 1 / TOKENS_PER_S)


def _requests_s(plan: TargetPlan, block: Block, token_s: float) -> float:
    """Seconds of the requests of a block, by its concurrency or its request rate."""
    at, num = block.condition, len(requests_of(plan, block))
    each_s = plan.max_new_tokens(at.workload) * token_s
    if at.request_rate is not None:
        return num / at.request_rate + each_s
    return num * each_s / at.concurrency
