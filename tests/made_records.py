"""Stored requests and blocks for tests, with usual values for omitted fields."""

from typing import Any

from specbench.records import BlockRecord, RequestRecord, RoundLog


def made_request(
    cell_id: str, prompt_id: str, rounds: RoundLog | None, **more: Any
) -> RequestRecord:
    """A request as long as its rounds, after a prefill of 0.1 s; `more`: other fields."""
    decode_s = more.get("decode_s", sum(rounds.round_s) if rounds else None)
    prefill_s = more.get("prefill_s", 0.1)
    ttft_s = more.get("ttft_s", prefill_s)
    usual = {
        "turn": 0,
        "repeat": 0,
        "seed": 0,
        "num_prompt_tokens": 10,
        "output_ids": tuple(range(1 + sum(rounds.num_emitted))) if rounds else (),
        "finish_reason": "length",
        "prefill_s": prefill_s,
        "ttft_s": ttft_s,
        "decode_s": decode_s,
        "total_s": None if decode_s is None else ttft_s + decode_s,
        "cpu_s": None,
    }
    return RequestRecord(
        **{"cell_id": cell_id, "prompt_id": prompt_id, "rounds": rounds, **usual, **more}
    )


def steps(num_rounds: int, round_s: float = 0.1) -> RoundLog:
    """K = 0: a token per round."""
    none = (0,) * num_rounds
    return RoundLog(
        num_drafted=none,
        num_accepted=none,
        num_emitted=(1,) * num_rounds,
        round_s=(round_s,) * num_rounds,
    )


def made_block(
    prompt_id: str, *requests: RequestRecord, purpose: str = "explore", repeat: int = 0, **more: Any
) -> BlockRecord:
    """Cells in the order of their requests; `more`: other fields."""
    usual = {
        "block_id": f"{prompt_id}-{repeat}-{purpose}",
        "workload": "code",
        "order": tuple(dict.fromkeys(request.cell_id for request in requests)),
        "started_at": "2026-11-21T01:02:04+00:00",
        "requests": requests,
    }
    return BlockRecord(
        **{"prompt_id": prompt_id, "repeat": repeat, "purpose": purpose, **usual, **more}
    )
