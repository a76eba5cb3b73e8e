"""An example of each record other than blocks, with all fields: limits, forecasts, costs."""

from specbench.records import (
    ClientLoad,
    EngineCost,
    EngineRecord,
    ExtensionRecord,
    FirstDifference,
    ForecastPoint,
    ForecastRecord,
    ImportedRecord,
    Interval,
    LimitRecord,
    RoundCost,
    ServerRecord,
)
from specbench.runs.codec import StoredRecord
from tests.runs.stored_examples import BLOCK, EVERY_RECORD, run

_CELL = BLOCK.order[0]
ENGINE = EngineRecord(
    target="demo",
    engine="builtin",
    forward="fused",
    graph="round",
    attention="flash",
    num_captures=3,
    capture_s=2.5,
    quantization="int8",
    notes=("graphs: none at 3 rows",),
    max_k={"head": 4},
)
LIMIT = LimitRecord(
    cell_id=_CELL,
    device="cuda:0",
    copy_bytes_per_s=1.5e12,
    bytes_per_round=2**40 + 1,
    launches_per_round=1.25,
    syncs_per_round=0.5,
)
DIFFERENCE = FirstDifference(
    cell_id=_CELL, prompt_id="p0", turn=1, repeat=2, position=17, gap=0.125, spacing=0.0625
)
IMPORTED = ImportedRecord(
    cell_id=_CELL,
    tool="vllm bench serve",
    tool_version="0.32.0",
    file="result.json",
    file_sha256="0f" * 32,
    measured_at="2026-11-21T01:02:03",
    num_requests=100,
    num_failed=1,
    figures={"acceptance_rate": 0.7, "acceptance_rate_per_position": (0.8, 0.6)},
    warnings=("counts bonus tokens",),
)
COST = RoundCost(
    cell_ids=(_CELL,),
    num_speculative_tokens=4,
    num_rows=2,
    context=9,
    visits_s=((0.25, 0.125),),
)
ENGINE_COST = EngineCost(
    source="costs.csv",
    engine="vllm 0.32.0",
    num_speculative_tokens=4,
    concurrency=8,
    cost=1.75,
    is_relative=True,
    mean_acceptance_length=2.5,
)
FORECAST = ForecastRecord(
    key=run().keys[0],
    points=(
        ForecastPoint(
            num_speculative_tokens=4,
            mean_acceptance_length=2.5,
            acceptance_rate_per_position=(0.75, 0.5, 0.25, 0.125),
            cost=1.5,
            cost_error=0.01,
            round_s=0.003,
            speedup=Interval(estimate=1.6, low=1.5, high=1.7),
            length_there=2.25,
        ),
    ),
    best=4,
    to_measure=(4, 3),
    num_prompts=10,
    context=96,
    is_exact=True,
    costs_of="vllm 0.32.0 (costs.csv)",
    acceptance_rule="greedy_draft",
    trace_s=0.5,
    costs_s=0.25,
    sweep_s=100.0,
    measure_s=20.0,
)
EXTENSION = ExtensionRecord(
    kind="drop", drafters=("draft", "none"), question=_CELL, num_prompts=1, cell_ids=(_CELL,)
)
SERVER = ServerRecord(
    session="demo|vllm|draft|4|t0|explore|c1.0#2",
    place="demo|vllm|draft|4|t0|explore|c1.0",
    target="demo",
    engine="vllm",
    drafter="draft",
    method="draft_model",
    num_speculative_tokens=4,
    cycle=1,
    version="0.32.1",
    model="models/target",
    addresses=("http://localhost:8000",),
    command=("vllm", "serve", "models/target"),
    settings={"dtype": "float32"},
    prefix_cache="off",
    acceptance_rule="greedy",
    num_gpus=2,
    kv_tokens=20_000,
    start_s=21.5,
    seconds=60.25,
    counters={"num_tokens": 1234.0},
    num_preemptions=1,
    queue_s=0.5,
    power_w=612.5,
    memory_bytes=2**35,
    throttle_reasons=("sw_power_cap",),
    client=(
        ClientLoad(cell_id=_CELL, seconds=60.25, cpu_s=1.5, num_events=1200, mean_lag_s=0.0001),
    ),
    sees_others=True,
    problems=("the server restarted: its counters began anew",),
    warnings=("accepted drafts: 9 by the requests' counts, 10 by the server's",),
    log="servers/1.log",
)
EVERY_KIND: tuple[StoredRecord, ...] = (
    *EVERY_RECORD,
    ENGINE,
    LIMIT,
    DIFFERENCE,
    IMPORTED,
    COST,
    ENGINE_COST,
    FORECAST,
    EXTENSION,
    SERVER,
)
