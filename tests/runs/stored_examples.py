"""A small example of every record of a run, with all fields."""

from specbench.records import (
    AnswerCheck,
    BlockRecord,
    CellPlan,
    DeviceSample,
    Environment,
    FailureRecord,
    ForwardCost,
    MemoryRecord,
    ModelIdentity,
    PassRecord,
    ReferenceRecord,
    RequestRecord,
    RoundLog,
    RoundTimeline,
    RunRecord,
    SamplesRecord,
    TraceRecord,
)
from specbench.runs import SCHEMA_VERSION
from specbench.runs.codec import Done
from tests.cell_keys import cell_key
from tests.settings.flat_settings import settings_of

KEY = cell_key(
    pairing="demo/draft",
    target="demo",
    drafter="draft",
    workload="chat",
    engine="builtin",
    method="draft_model",
    num_speculative_tokens=4,
    concurrency=1,
    temperature=0.0,
    dtype="float32",
)

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

REQUEST = RequestRecord(
    cell_id=KEY.id,
    prompt_id="chat-1",
    turn=0,
    repeat=2,
    seed=2**63 - 1,
    num_prompt_tokens=12,
    output_ids=(5, 7, 11, 0),
    finish_reason="eos",
    prefill_s=0.1,
    ttft_s=0.1 + 0.2,  # 0.30000000000000004: every digit must come back
    decode_s=1e-9,
    total_s=2,
    cpu_s=None,
    rounds=RoundLog(
        num_drafted=(4, 0), num_accepted=(1, 0), num_emitted=(2, 1), round_s=(0.5, 1 / 3)
    ),
    energy_j=3.25,
    device=DeviceSample(
        num_samples=3, power_w=12.5, throttle_reasons=("sw_power_cap", "hw_slowdown")
    ),
    answer_check=AnswerCheck(num_drafted=9, num_accepted=2, num_emitted=3, seconds=0.25),
)

FAILED_REQUEST = RequestRecord(
    cell_id=KEY.id,
    prompt_id="chat-1",
    turn=1,
    repeat=2,
    seed=0,
    num_prompt_tokens=12,
    output_ids=(),
    finish_reason="failed",
    prefill_s=None,
    ttft_s=None,
    decode_s=None,
    total_s=None,
    cpu_s=None,
    rounds=None,
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
    request = RequestRecord(
        cell_id=KEY.id,
        prompt_id="chat-1",
        turn=0,
        repeat=0,
        seed=0,
        num_prompt_tokens=12,
        output_ids=(1, *column),
        finish_reason="length",
        prefill_s=0.1,
        ttft_s=0.1,
        decode_s=1.0,
        total_s=1.1,
        cpu_s=1.0,
        rounds=rounds,
    )
    return BlockRecord(
        block_id=block_id,
        workload="chat",
        prompt_id="chat-1",
        repeat=0,
        purpose="explore",
        order=(KEY.id,),
        started_at="2026-11-21T01:02:04+00:00",
        requests=(request,),
    )


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
BLOCK = BlockRecord(
    block_id="chat/chat-1/2",
    workload="chat",
    prompt_id="chat-1",
    repeat=2,
    purpose="confirm",
    order=(KEY.id, "other"),
    started_at="2026-11-21T01:02:04+00:00",
    requests=(REQUEST, FAILED_REQUEST),
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
    Done(finished_at="2026-11-21T02:00:00+00:00"),
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
        warnings=("few prompts",),
    )
