"""A stored run small enough to work its tables out by hand.

K = 3 generates 8 tokens in 3 rounds on prompt `a` and 5 in 2 rounds on `b`; K = 0 takes 0.1 s per
token. The request of `c` failed, and the confirmation run repeats `a`. Exploration phase:
drafted 3 3 0 | 3 2, accepted 3 1 0 | 0 2.
"""

from dataclasses import replace
from pathlib import Path

from specbench.records import (
    BlockPurpose,
    BlockRecord,
    CellKey,
    CellPlan,
    DeviceSample,
    RequestRecord,
    RoundLog,
    RunRecord,
)
from specbench.runs import SCHEMA_VERSION, StoredRun
from tests.cell_keys import BASE_KEY, with_axes
from tests.cell_keys import KEY as CELL_KEY
from tests.made_records import made_block, made_request, steps
from tests.report.synthetic_records import environment
from tests.settings.flat_settings import settings_of

KEY = with_axes(CELL_KEY, num_speculative_tokens=3)
A = RoundLog(
    num_drafted=(3, 3, 0),
    num_accepted=(3, 1, 0),
    num_emitted=(4, 2, 1),
    round_s=(0.16, 0.16, 0.12),
    draft_s=(0.03, 0.03, 0.0),
    verify_s=(0.11, 0.11, 0.11),
)
B = RoundLog(
    num_drafted=(3, 2), num_accepted=(0, 2), num_emitted=(1, 3), round_s=(0.16, 0.15)
)  # an engine that does not report draft_s and verify_s


def request(key: CellKey, prompt: str, rounds: RoundLog | None, repeat: int = 0) -> RequestRecord:
    """A request with a prefill of 0.2 s; without rounds it failed."""
    failed = {} if rounds else {"finish_reason": "failed", "error": "out of memory"}
    return made_request(key.id, prompt, rounds, repeat=repeat, seed=7, prefill_s=0.2, **failed)


def block(purpose: BlockPurpose, prompt: str, *requests: RequestRecord) -> BlockRecord:
    return made_block(prompt, *requests, purpose=purpose, repeat=requests[0].repeat)


def small_run(run_id: str = "small") -> StoredRun:
    """NVML sampled `b` at K = 3, but not `a`."""
    sampled = replace(
        request(KEY, "b", B),
        energy_j=62.0,
        device=DeviceSample(num_samples=4, power_w=200.0, process_used_bytes=2048),
    )
    return StoredRun(
        folder=Path("reports") / run_id,
        run=RunRecord(
            schema_version=SCHEMA_VERSION,
            run_id=run_id,
            environment=environment(is_gpu=False),
            settings=settings_of(command="run", pairings=("demo/draft",), workloads=("code",)),
            workload_sha256={"code": "ef" * 32},
            cells=tuple(CellPlan(key=key, num_prompts=3, num_repeats=1) for key in (BASE_KEY, KEY)),
        ),
        is_complete=True,
        blocks=(
            block("explore", "a", request(KEY, "a", A), request(BASE_KEY, "a", steps(7))),
            block("explore", "b", request(BASE_KEY, "b", steps(4)), sampled),
            block("explore", "c", request(BASE_KEY, "c", steps(4)), request(KEY, "c", None)),
            block("confirm", "a", request(KEY, "a", A, 1), request(BASE_KEY, "a", steps(7), 1)),
        ),
    )
