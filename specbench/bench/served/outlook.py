"""Estimates the time of a plan's sessions, and the speedup that they could detect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.bench.blocks import Block
from specbench.bench.budget import mean_session_s
from specbench.bench.plan import TargetPlan
from specbench.bench.served.questions import requests_of
from specbench.bench.served.sessions import Session, cycle_of, served_cells
from specbench.engines.served_engine import find_served
from specbench.records import ServerRecord
from specbench.stats.crossed import expected_noise

TOKENS_PER_S = 50.0  # an estimate until this engine has served this target


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionsEstimate:
    """The estimate for one target on one engine."""

    target: str
    engine: str
    sessions: tuple[Session, ...]  # of one cycle
    are_starts: bool  # of servers; else they run already
    cycles: int
    is_open_ended: bool  # whether more cycles follow if the first ones are noisy
    session_s: float
    is_measured: bool  # whether `session_s` is from earlier sessions
    detectable: float | None  # relative effect that 80% of such sweeps would detect

    @property
    def has_second_pass(self) -> bool:
        """Whether a winner is confirmed, since it was chosen from several K."""
        return len({s.draft for s in self.sessions if s.draft.k}) > 1

    @property
    def seconds(self) -> float:
        """Seconds of the exploration; the confirmation of winners has as many cycles."""
        return self.cycles * len(self.sessions) * self.session_s


def estimate_sessions(
    plan: TargetPlan, earlier: Sequence[ServerRecord]
) -> Iterator[SessionsEstimate]:
    """The estimate of each serving engine, with the seconds of `earlier` sessions if any."""
    are_starts = plan.running_ks is None
    for engine in plan.served:
        sessions = tuple(cycle_of(served_cells(plan, engine), 0))
        like = (engine, plan.target.name, are_starts)
        took_s = mean_session_s(
            [s for s in earlier if (s.engine, s.target, bool(s.command)) == like]
        )
        are_together = all(cell.key.condition.is_stream for cell in sessions[0].cells)
        num_prompts = min(len(plan.measured(workload)) for workload in plan.workloads)
        noise = expected_noise(None if are_together else num_prompts)
        yield SessionsEstimate(
            target=plan.target.name,
            engine=engine,
            sessions=sessions,
            are_starts=are_starts,
            cycles=plan.cycles,
            is_open_ended=plan.settings.servers.cycles is None,
            session_s=took_s or _guessed_s(plan, engine, sessions[0]),
            is_measured=took_s is not None,
            detectable=noise.detectable_effect(plan.cycles) if noise else None,
        )


def _guessed_s(plan: TargetPlan, engine: str, session: Session) -> float:
    requests_s = sum(_requests_s(plan, block) for block in session.blocks(plan))
    return find_served(engine).START_S * (plan.running_ks is None) + requests_s


def _requests_s(plan: TargetPlan, block: Block) -> float:
    """Seconds of the requests of a block, by its concurrency or its request rate."""
    at, num = block.condition, len(requests_of(plan, block))
    each_s = plan.max_new_tokens(at.workload) / TOKENS_PER_S
    if at.request_rate is not None:
        return num / at.request_rate + each_s
    return num * each_s / at.concurrency
