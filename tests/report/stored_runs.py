"""A small stored run, made up from a few probabilities and costs: same call, same numbers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specbench.records import (
    NO_DRAFTER,
    BlockPurpose,
    BlockRecord,
    CellKey,
    CellPlan,
    DeviceSample,
    Environment,
    FailureRecord,
    ForwardCost,
    MemoryRecord,
    ModelIdentity,
    RequestRecord,
    RoundLog,
    RunRecord,
    RunSettings,
)
from specbench.store import StoredRun

STEP_S = 0.010  # a baseline step
ACCEPTANCE = {  # chance that a drafted token is kept, per drafter and workload
    "draft": {"chat": 0.72, "code": 0.85, "creative": 0.40},
    "poor": {"chat": 0.15, "code": 0.20, "creative": 0.10},
}
DRAFT_STEPS = {"draft": 0.15, "poor": 0.15}  # seconds of one drafted token / STEP_S
NUM_TOKENS = 49
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the made-up run should contain."""

    drafters: tuple[str, ...] = ("draft", "poor")
    workloads: tuple[str, ...] = ("chat", "code", "creative")
    ks: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    temperatures: tuple[float, ...] = (0.0,)
    num_prompts: int = 8
    target: str = "demo"
    device: Literal["cpu", "gpu"] = "cpu"
    is_complete: bool = True  # False: interrupted before any winner was measured again
    throttled_k: int | None = None  # the cells of this K are invalid (GPU only)


SMALL = Wish(ks=(0, 1, 2, 4), workloads=("code", "creative"), num_prompts=6)
BROKEN = FailureRecord(
    pairing="demo/broken", workload="", stage="load", reason="no such folder: models/broken"
)


def stored_run(wish: Wish) -> StoredRun:
    """A run as `load_run` gives it; every K of `draft` was measured again on fresh repeats."""
    blocks = list(_blocks(wish, "explore", wish.ks, first_repeat=0))
    if wish.is_complete and "draft" in wish.drafters:
        good = replace(wish, drafters=("draft",))
        blocks += _blocks(good, "confirm", wish.ks, first_repeat=9)
    return StoredRun(
        folder=Path("reports/20261121-010203-a1b2"),
        run=RunRecord(
            schema_version=1,
            run_id="20261121-010203-a1b2",
            environment=environment(wish.device),
            settings=RunSettings(
                command="sweep-k",
                pairings=tuple(f"{wish.target}/{name}" for name in wish.drafters),
                workloads=wish.workloads,
                num_speculative_tokens=wish.ks,
                temperatures=wish.temperatures,
                seed=7,
            ),
            workload_sha256={name: "ef" * 32 for name in wish.workloads},
            cells=tuple(
                CellPlan(key=key, num_prompts=wish.num_prompts, num_repeats=1)
                for workload in wish.workloads
                for temperature in wish.temperatures
                for key in keys(wish, workload, temperature)
            ),
        ),
        is_complete=wish.is_complete,
        blocks=tuple(blocks),
        memory=tuple(_memory(wish)),
        forwards=tuple(_forwards(wish)),
        models=(model(wish.target), *(model(name) for name in wish.drafters)),
    )


def with_failure(stored: StoredRun, failure: FailureRecord) -> StoredRun:
    """The same run, in which something could not be measured."""
    return replace(stored, failures=(*stored.failures, failure))


def renamed(stored: StoredRun, old: str, new: str) -> StoredRun:
    """The run with a name replaced wherever a cell, a block or a plan states it."""

    def rename(key: CellKey) -> CellKey:
        return replace(
            key,
            **{
                name: getattr(key, name).replace(old, new)
                for name in ("pairing", "target", "drafter", "workload")
            },
        )

    ids = {plan.key.id: rename(plan.key).id for plan in stored.run.cells}
    return replace(
        stored,
        run=replace(
            stored.run, cells=tuple(replace(p, key=rename(p.key)) for p in stored.run.cells)
        ),
        blocks=tuple(
            replace(
                block,
                requests=tuple(replace(r, cell_id=ids[r.cell_id]) for r in block.requests),
            )
            for block in stored.blocks
        ),
        memory=tuple(
            replace(m, target=m.target.replace(old, new), drafter=m.drafter.replace(old, new))
            for m in stored.memory
        ),
    )


def keys(wish: Wish, workload: str, temperature: float) -> Iterator[CellKey]:
    """K = 0 once, then every K of every drafter."""
    base = CellKey(
        pairing=wish.target,
        target=wish.target,
        drafter=NO_DRAFTER,
        workload=workload,
        engine="builtin",
        method=NO_DRAFTER,
        num_speculative_tokens=0,
        concurrency=1,
        temperature=temperature,
        dtype="float32",
    )
    yield base
    for drafter in wish.drafters:
        for k in wish.ks:
            if k > 0:
                yield replace(
                    base,
                    pairing=f"{wish.target}/{drafter}",
                    drafter=drafter,
                    method="draft_model",
                    num_speculative_tokens=k,
                )


def environment(device: str) -> Environment:
    is_gpu = device == "gpu"
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


def _blocks(
    wish: Wish, purpose: BlockPurpose, ks: tuple[int, ...], first_repeat: int
) -> Iterator[BlockRecord]:
    for temperature in wish.temperatures:
        for repeat in range(first_repeat, first_repeat + (3 if temperature else 1)):
            for i in range(wish.num_prompts):
                for workload in wish.workloads:
                    prompt = f"{workload}-{i}"
                    requests = tuple(
                        _request(wish, key, prompt, repeat)
                        for key in keys(replace(wish, ks=ks), workload, temperature)
                    )
                    yield BlockRecord(
                        block_id=f"{prompt}|{temperature:g}|{wish.drafters}|{purpose}|{repeat}",
                        workload=workload,
                        prompt_id=prompt,
                        repeat=repeat,
                        purpose=purpose,
                        order=tuple(request.cell_id for request in requests),
                        started_at="2026-11-21T01:02:04+00:00",
                        requests=requests,
                    )


def _request(wish: Wish, key: CellKey, prompt: str, repeat: int) -> RequestRecord:
    rounds = _rounds(wish, key, f"{prompt} {repeat}")
    decode_s = sum(rounds.round_s)
    prefill_s = 0.02 if key.num_speculative_tokens == 0 else 0.024
    is_gpu = wish.device == "gpu"
    slow = wish.throttled_k is not None and key.num_speculative_tokens == wish.throttled_k
    return RequestRecord(
        cell_id=key.id,
        prompt_id=prompt,
        turn=0,
        repeat=repeat,
        seed=repeat,
        num_prompt_tokens=40,
        output_ids=tuple(range(NUM_TOKENS)),
        finish_reason="length",
        prefill_s=prefill_s,
        ttft_s=prefill_s,
        decode_s=decode_s,
        total_s=prefill_s + decode_s,
        cpu_s=prefill_s + decode_s,
        rounds=rounds,
        energy_j=300.0 * (prefill_s + decode_s) if is_gpu else None,
        device=DeviceSample(
            num_samples=9,
            power_w=300.0,
            sm_clock_mhz=1700,
            sm_clock_default_mhz=1755,
            throttle_reasons=("hw_thermal_slowdown",) if slow else (),
            num_other_processes=0,
        )
        if is_gpu
        else None,
    )


def _rounds(wish: Wish, key: CellKey, request: str) -> RoundLog:
    k = key.num_speculative_tokens
    # Which tokens the drafter guesses does not depend on K, as with a real greedy draft.
    guesses = random.Random(f"{key.drafter} {key.temperature} {request}")
    keep = ACCEPTANCE[key.drafter][key.workload] if k else 0.0
    keep += guesses.gauss(-0.05 * key.temperature, 0.02)
    is_guessed = [guesses.random() < keep for _ in range(NUM_TOKENS + k)]
    noise = random.Random(f"{key.id} {request}").gauss(1, 0.01)
    accepted, emitted, drafts, verifies, rounds = [], [], [], [], []
    done = 1
    while done < NUM_TOKENS:
        kept = next((i for i in range(k) if not is_guessed[done + i]), k)
        accepted.append(min(kept, NUM_TOKENS - done - 1))  # the budget cuts drafts short
        emitted.append(accepted[-1] + 1)
        done += emitted[-1]
        drafts.append(noise * k * STEP_S * DRAFT_STEPS.get(key.drafter, 0.0))
        verifies.append(noise * STEP_S * (1 + 0.04 * k))
        rounds.append(drafts[-1] + verifies[-1] + (0.0006 if k else 0.0))
    return RoundLog(
        num_drafted=(k,) * len(accepted),
        num_accepted=tuple(accepted),
        num_emitted=tuple(emitted),
        round_s=tuple(rounds),
        draft_s=tuple(drafts) if k and wish.device == "cpu" else None,
        verify_s=tuple(verifies) if k and wish.device == "cpu" else None,
    )


def _memory(wish: Wish) -> Iterator[MemoryRecord]:
    is_gpu = wish.device == "gpu"
    for position, drafter in enumerate((NO_DRAFTER, *wish.drafters)):
        own = 12 * MIB if position else 0
        peak = 1200 * MIB + own + (4 * MIB if position else 0)
        yield MemoryRecord(
            target=wish.target,
            drafter=drafter,
            weights_bytes=900 * MIB + own,
            kv_bytes_per_token=2 * MIB + (MIB // 8 if position else 0),
            peak_allocated_bytes=peak if is_gpu else None,
            peak_reserved_bytes=peak + 30 * MIB if is_gpu else None,
            process_peak_bytes=peak + 400 * MIB,
            device_peak_bytes=peak + 900 * MIB if is_gpu else None,
        )


def _forwards(wish: Wish) -> Iterator[ForwardCost]:
    for workload in wish.workloads:
        for key in keys(wish, workload, 0.0):
            k = key.num_speculative_tokens
            draft_s = k * DRAFT_STEPS[key.drafter] * STEP_S if k else 0.0
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
                    seconds=0.9 * STEP_S * DRAFT_STEPS[key.drafter],
                    num_samples=9,
                    round_s=round_s,
                )
