"""What rolling recurrent state back costs: states after every token against a snapshot.

    python -m benchmarks.rollback_costs

A forward over K + 1 tokens of one row is timed three ways, in turns, after a context of 64 tokens:
at once, without any way back (`bare`); token by token in the recurrent layers with each state
kept (what the decoder does); and as a snapshot would have it, at once from the state before the
last round, the accepted tokens once more before the drafts. The snapshot's is a forward alone:
the decoder has none. Prints a table in Markdown. Shape suffixes: B rows, T tokens.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.round import finish_round, propose
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import StockRunner
from specbench.records import Sampling

K, ACCEPTED, CONTEXT, REPEATS = 4, 2, 64, 40
SPAN = 128
_SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_THREE_OF_FOUR = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
_DELTA = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "Qwen 3.5 (gated delta net)": lambda: transformers.Qwen3_5TextConfig(
        layer_types=_THREE_OF_FOUR, **_DELTA, **_SHAPE
    ),
    "Bamba (Mamba 2)": lambda: transformers.BambaConfig(
        attn_layer_indices=[3, 7], mamba_chunk_size=64, **_MAMBA, **_SHAPE
    ),
    "Falcon-H1 (Mamba 2 and attention)": lambda: transformers.FalconH1Config(
        mamba_d_ssm=512, mamba_chunk_size=64, **_MAMBA, **_SHAPE
    ),
    "LFM2 (short convolutions)": lambda: transformers.Lfm2Config(
        layer_types=[*["conv"] * 3, "full_attention"] * 2, **_SHAPE
    ),
}


class Fixed(Drafter):
    """Drafts the same tokens for nothing."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        tokens_BK = torch.ones(state.num_rows, k, dtype=torch.long)
        return Proposal(tokens_BK, torch.full_like(state.budget_B, k))


@torch.inference_mode()
def costs(config: Any) -> dict[str, float]:
    """Median CPU seconds by way."""
    torch.manual_seed(0)
    runner = StockRunner(transformers.AutoModelForCausalLM.from_config(config).eval())
    runner.reserve(K)
    runner.allocate(1, SPAN)
    text_1C = torch.randint(1, 2000, (1, SPAN))
    positions_1C = torch.arange(SPAN)[None]

    def forward(first: int, num_tokens: int, start: int | None) -> None:
        at = slice(first, first + num_tokens)
        runner.forward(text_1C[:, at], positions_1C[:, at], SPAN, start=start)

    state, drafter, sampler = (
        State.allocate(1, SPAN, [], runner.device),
        Fixed(),
        Sampler(Sampling()),
    )

    def one_round() -> None:
        state.length_B1.fill_(CONTEXT)
        state.budget_B.fill_(SPAN)
        proposal = propose(drafter, state, sampler, K, SPAN)
        finish_round(runner, drafter, state, sampler, proposal, SPAN)

    begun = CONTEXT - ACCEPTED - 1
    ways = {
        "step": lambda: forward(CONTEXT, 1, None),
        "bare": lambda: forward(CONTEXT, K + 1, CONTEXT),
        "every token": lambda: forward(CONTEXT, K + 1, None),
        "round": one_round,
        "snapshot": lambda: forward(begun, ACCEPTED + 1 + K + 1, begun),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, run in ways.items():
            forward(0, CONTEXT, 0)  # its state is held again, whatever the last way left
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: median(taken[5:]) for name, taken in seconds.items()}


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print("| model | bare | every token / bare | round / bare | snapshot / bare | bare / step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, config in MODELS.items():
        found = costs(config())
        bare = found["bare"]
        cells = [f"{found[way] / bare:.2f}" for way in ("every token", "round", "snapshot")]
        print(
            f"| {name} | {bare * 1e3:.2f} ms | {' | '.join(cells)} | {bare / found['step']:.2f} |"
        )


if __name__ == "__main__":
    main()
