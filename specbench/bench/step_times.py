"""What --costs says about another engine, read before anything is measured."""

from collections.abc import Sequence

from specbench.bench.plan import TargetPlan
from specbench.forecast.cost_curve import told
from specbench.forecast.engine_costs import read_engine_costs
from specbench.records import EngineCost, Prompt
from specbench.settings import RunSettings


def engine_costs(settings: RunSettings, plans: Sequence[TargetPlan]) -> list[EngineCost]:
    """What --costs says, a server asked with the run's own prompts; nothing without --costs.

    UsageError where it cannot be read, or says nothing of a concurrency that is planned.
    """
    concurrencies = settings.load.concurrency
    if not settings.forecasting.costs:
        return []
    workload = plans[0].workloads[0]
    prompts = [_question_text(prompt) for prompt in plans[0].prompts(workload)]
    costs = read_engine_costs(
        settings.forecasting.costs,
        prompts,
        concurrencies=concurrencies,
        temperature=settings.sampling.temperatures[0],
    )
    for concurrency in concurrencies:
        told(costs, concurrency=concurrency, ks=())
    return costs


def _question_text(prompt: Prompt) -> str:
    """What a prompt's first turn says."""
    return "\n\n".join(message.content for message in prompt.turns[0])
