"""Measurements of a synthetic run: rounds, requests, memory and model forwards, cell by cell."""

import random
from collections.abc import Iterator, Sequence

from specbench.records import (
    NO_DRAFTER,
    CellKey,
    DeviceSample,
    Environment,
    ForwardCost,
    MemoryRecord,
    ModelIdentity,
    RequestRecord,
    RoundLog,
)
from tests.made_records import made_request

STEP_S = 0.010  # a baseline step
ACCEPTANCE = {  # chance that a drafted token is kept, per drafter and workload
    "draft": {"chat": 0.72, "code": 0.85, "creative": 0.40},
    "poor": {"chat": 0.15, "code": 0.20, "creative": 0.10},
}
DRAFT_STEPS = {"draft": 0.15, "poor": 0.15}  # seconds of one drafted token / STEP_S
NUM_TOKENS = 49
MIB = 2**20


def environment(*, is_gpu: bool) -> Environment:
    return Environment(
        created_at="2026-11-21T01:02:03+00:00",
        command=("specbench", "sweep-k", "demo", "--workload", "chat,code,creative"),
        specbench_version="0.1.0",
        git_commit="0123456789abcdef0123456789abcdef01234567",
        python="3.11.7",
        packages={"torch": "2.13.0", "transformers": "5.23.0"},
        platform="Linux 6.1",
        cpu="Made-up CPU",
        num_cpu_cores=2,
        threads=1,
        device="cuda:0" if is_gpu else "cpu",
        gpu="Made-up GPU" if is_gpu else None,
        gpu_memory_bytes=80 * 1024 * MIB if is_gpu else None,
        driver="600.1" if is_gpu else None,
        probe="NVML" if is_gpu else "no NVML: the device is a CPU",
    )


def model(name: str) -> ModelIdentity:
    return ModelIdentity(
        name=name,
        source=f"demo:{name}",
        revision=None,
        content_sha256="ab" * 32,
        tokenizer_sha256="cd" * 32,
        dtype="float32",
        num_parameters=3_000_000,
    )


def request(
    key: CellKey, prompt: str, repeat: int, *, is_gpu: bool, is_throttled: bool
) -> RequestRecord:
    rounds = _rounds(key, f"{prompt} {repeat}", has_parts=not is_gpu)
    decode_s = sum(rounds.round_s)
    prefill_s = 0.02 if key.draft.k == 0 else 0.024
    return made_request(
        key.id,
        prompt,
        rounds,
        repeat=repeat,
        seed=repeat,
        num_prompt_tokens=40,
        prefill_s=prefill_s,
        cpu_s=prefill_s + decode_s,
        energy_j=300.0 * (prefill_s + decode_s) if is_gpu else None,
        device=DeviceSample(
            num_samples=9,
            power_w=300.0,
            sm_clock_mhz=1700,
            sm_clock_default_mhz=1755,
            throttle_reasons=("hw_thermal_slowdown",) if is_throttled else (),
            num_other_processes=0,
        )
        if is_gpu
        else None,
    )


def _rounds(key: CellKey, request: str, *, has_parts: bool) -> RoundLog:
    k = key.draft.k
    # The drafter's guesses do not depend on K, as with a real greedy draft model.
    guesses = random.Random(f"{key.draft.drafter} {key.condition.temperature} {request}")
    keep = ACCEPTANCE[key.draft.drafter][key.condition.workload] if k else 0.0
    keep += guesses.gauss(-0.05 * key.condition.temperature, 0.02)
    is_guessed = [guesses.random() < keep for _ in range(NUM_TOKENS + k)]
    noise = random.Random(f"{key.id} {request}").gauss(1, 0.01)
    accepted, emitted, drafts, verifies, rounds = [], [], [], [], []
    done = 1
    while done < NUM_TOKENS:
        kept = next((i for i in range(k) if not is_guessed[done + i]), k)
        accepted.append(min(kept, NUM_TOKENS - done - 1))  # the budget cuts drafts short
        emitted.append(accepted[-1] + 1)
        done += emitted[-1]
        drafts.append(noise * k * STEP_S * DRAFT_STEPS.get(key.draft.drafter, 0.0))
        verifies.append(noise * STEP_S * (1 + 0.04 * k))
        rounds.append(drafts[-1] + verifies[-1] + (0.0006 if k else 0.0))
    return RoundLog(
        num_drafted=(k,) * len(accepted),
        num_accepted=tuple(accepted),
        num_emitted=tuple(emitted),
        round_s=tuple(rounds),
        draft_s=tuple(drafts) if k and has_parts else None,
        verify_s=tuple(verifies) if k and has_parts else None,
    )


def memory(target: str, drafters: Sequence[str], *, is_gpu: bool) -> Iterator[MemoryRecord]:
    for position, drafter in enumerate((NO_DRAFTER, *drafters)):
        draft_bytes = 12 * MIB if position else 0
        peak = 1200 * MIB + draft_bytes + (4 * MIB if position else 0)
        yield MemoryRecord(
            target=target,
            drafter=drafter,
            weights_bytes=900 * MIB + draft_bytes,
            kv_bytes_per_token=2 * MIB + (MIB // 8 if position else 0),
            peak_allocated_bytes=peak if is_gpu else None,
            peak_reserved_bytes=peak + 30 * MIB if is_gpu else None,
            process_peak_bytes=peak + 400 * MIB,
            device_peak_bytes=peak + 900 * MIB if is_gpu else None,
        )


def forwards(key: CellKey) -> Iterator[ForwardCost]:
    k = key.draft.k
    draft_s = k * DRAFT_STEPS[key.draft.drafter] * STEP_S if k else 0.0
    round_s = STEP_S * (1 + 0.04 * k) + draft_s
    yield ForwardCost(
        cell_id=key.id,
        role="target",
        num_tokens=k + 1,
        num_per_round=1,
        seconds=0.9 * STEP_S * (1 + 0.04 * k),
        num_samples=9,
        round_s=round_s,
    )
    if k:
        yield ForwardCost(
            cell_id=key.id,
            role="drafter",
            num_tokens=1,
            num_per_round=k,
            seconds=0.9 * STEP_S * DRAFT_STEPS[key.draft.drafter],
            num_samples=9,
            round_s=round_s,
        )
