"""A small example of every record of a run, with all fields."""

from specbench.records import (
    AnswerCheck,
    BlockRecord,
    CellPlan,
    ClientLoad,
    DeviceSample,
    EngineCost,
    EngineRecord,
    Environment,
    ExtensionRecord,
    FailureRecord,
    FirstDifference,
    ForecastPoint,
    ForecastRecord,
    ForwardCost,
    ImportedRecord,
    Interval,
    Kind,
    LimitRecord,
    MemoryRecord,
    ModelIdentity,
    PassRecord,
    ReferenceRecord,
    RoundCost,
    RoundLog,
    RoundTimeline,
    RunRecord,
    SamplesRecord,
    ServerRecord,
    StatedAnswer,
    TraceRecord,
)
from specbench.runs import SCHEMA_VERSION
from specbench.runs.codec import RunEnd, StoredRecord
from tests.cell_keys import cell_key
from tests.made_records import made_block, made_request
from tests.settings.flat_settings import settings_of

KEY = cell_key(workload="chat")

ENVIRONMENT = Environment(
    created_at="2026-11-21T01:02:03+00:00",
    command=("specbench", "sweep-k", "demo/draft", "--workload", "my chats.jsonl"),
    specbench_version="0.1.0",
    git_commit=None,
    python="3.11.7",
    packages={"torch": "2.13.0+cpu"},
    platform="Linux",
    cpu="a CPU",
    num_cpu_cores=2,
    threads=1,
    device="cuda:0",
    gpu="a GPU",
    gpu_memory_bytes=2**40,
    power_limit_w=700.5,
    probe="NVML",
)

REQUEST = made_request(
    KEY.id,
    "chat-1",
    RoundLog(num_drafted=(4, 0), num_accepted=(1, 0), num_emitted=(2, 1), round_s=(0.5, 1 / 3)),
    repeat=2,
    seed=2**63 - 1,
    output_ids=(5, 7, 11, 0),
    finish_reason="eos",
    ttft_s=0.1 + 0.2,  # 0.30000000000000004: every digit must come back
    decode_s=1e-9,
    total_s=2,
    energy_j=3.25,
    device=DeviceSample(
        num_samples=3, power_w=12.5, throttle_reasons=("sw_power_cap", "hw_slowdown")
    ),
    answer_check=AnswerCheck(num_drafted=9, num_accepted=2, num_emitted=3, seconds=0.25),
)
FAILED_REQUEST = made_request(
    KEY.id,
    "chat-1",
    None,
    turn=1,
    repeat=2,
    prefill_s=None,
    finish_reason="failed",
    error='out of memory: "café"\n{"type":"done"}',
)


def block(block_id: str, *, num_rounds: int = 1) -> BlockRecord:
    column = (1,) * num_rounds
    rounds = RoundLog(
        num_drafted=column,
        num_accepted=column,
        num_emitted=column,
        round_s=(0.0123456789,) * num_rounds,
        draft_s=(0.0023456789,) * num_rounds,
        verify_s=(0.01,) * num_rounds,
    )
    request = made_request(KEY.id, "chat-1", rounds)
    return made_block("chat-1", request, block_id=block_id, workload="chat")


MEMORY = MemoryRecord(
    target="demo",
    drafter="draft",
    weights_bytes=2**41,
    kv_bytes_per_token=8192,
    peak_allocated_bytes=None,
    device_peak_bytes=7,
)
FORWARD = ForwardCost(
    cell_id=KEY.id,
    role="target",
    num_tokens=5,
    num_per_round=1,
    seconds=0.01,
    num_samples=9,
    round_s=0.012,
)
FAILURE = FailureRecord(pairing="demo/poor", workload="", stage="load", reason="no such folder")
MODEL = ModelIdentity(
    name="demo",
    source="demo/target",
    revision=None,
    content_sha256="ab" * 32,
    tokenizer_sha256="cd" * 32,
    dtype="float32",
    num_parameters=3_000_000,
)
SAMPLES = SamplesRecord(
    prompt_id="chat-1",
    turn=0,
    repeat=2,
    served=PassRecord(
        cell_id=KEY.id,
        seconds=1.5,
        rounds=RoundTimeline(
            at_s=(0.5,),
            seconds=(1.0,),
            num_speculative_tokens=(4,),
            num_live=(2,),
            num_rows=(2,),
            num_emitted=(7,),
        ),
        kv_bytes=2**40,
    ),
    log_probs=(-1.25, -0.75),
    picked=1,
    scoring_s=0.25,
)
BLOCK = made_block(
    "chat-1",
    *(REQUEST, FAILED_REQUEST),
    purpose="confirm",
    repeat=2,
    workload="chat",
    order=(KEY.id, "other"),
    samples=(SAMPLES,),
)
REFERENCE = ReferenceRecord(
    target="demo",
    workload="chat",
    prompt_id="chat-1",
    turn=0,
    num_prompt_tokens=12,
    output_ids=(5, 7),
    pieces=("A", " cat\n"),
)
TRACE = TraceRecord(
    target="demo",
    drafter="draft",
    method="draft_model",
    workload="chat",
    prompt_id="chat-1",
    turn=0,
    repeat=2,
    temperature=1.0,
    num_speculative_tokens=4,
    is_chain=True,
    is_exact=True,
    num_prompt_tokens=12,
    output_ids=(5, 7, 11),
    num_drafted=(1, 0),
    chances=((0.123456,), ()),
    drafting="greedy",
    context=4096,
    seconds=0.5,
)
EVERY_RECORD = (
    BLOCK,
    REFERENCE,
    MEMORY,
    FORWARD,
    FAILURE,
    MODEL,
    TRACE,
    ENVIRONMENT,
    RunEnd(finished_at="2026-11-21T02:00:00+00:00"),
)

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
    cell_id=KEY.id,
    device="cuda:0",
    copy_bytes_per_s=1.5e12,
    bytes_per_round=2**40 + 1,
    launches_per_round=1.25,
    syncs_per_round=0.5,
)
DIFFERENCE = FirstDifference(
    cell_id=KEY.id, prompt_id="p0", turn=1, repeat=2, position=17, gap=0.125, spacing=0.0625
)
IMPORTED = ImportedRecord(
    cell_id=KEY.id,
    tool="vllm bench serve",
    tool_version="0.32.0",
    file="result.json",
    file_sha256="0f" * 32,
    measured_at="2026-11-21T01:02:03",
    num_requests=100,
    num_failed=1,
    figures={"acceptance_rate": 0.7, "acceptance_rate_per_position": (0.8, 0.6)},
    warnings=(Kind.CONDITIONS(facts=("batch 8",)), Kind.CHUNKS()),
    stated=StatedAnswer(
        speedup=Interval(estimate=1.5, low=1.25, high=1.75),
        end_to_end=Interval(estimate=1.5, low=None, high=None),
        num_prompts=8,
        invalid_reasons=(Kind.STATED_INVALID(because="too few"),),
    ),
)
COST = RoundCost(
    cell_ids=(KEY.id,),
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
    key=KEY,
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
    kind="drop", drafters=("draft", "none"), question=KEY.id, num_prompts=1, cell_ids=(KEY.id,)
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
        ClientLoad(cell_id=KEY.id, seconds=60.25, cpu_s=1.5, num_events=1200, mean_lag_s=0.0001),
    ),
    sees_others=True,
    problems=("the server restarted: its counters began anew",),
    warnings=(Kind.ACCEPTED_COUNTS_DIFFER(requests=9, server=10.0),),
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


def run(run_id: str = "20261121-010203-a1b2") -> RunRecord:
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        environment=ENVIRONMENT,
        settings=settings_of(
            command="sweep-k",
            pairings=("demo/draft",),
            workloads=("chat", "my chats.jsonl"),
            num_speculative_tokens=(0, 4),
            temperatures=(0.0, 1.0),
            precision=0.02,
            seed=2**53 + 1,
        ),
        workload_sha256={"chat": "ef" * 32},
        cells=(CellPlan(key=KEY, num_prompts=8, num_repeats=3),),
        warnings=(Kind.NOTE(text="few prompts"),),
    )
