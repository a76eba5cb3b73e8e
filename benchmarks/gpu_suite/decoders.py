"""Decoders over made-up pairs, and the texts they give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_suite.machine import Machine
from benchmarks.gpu_suite.models import (
    agree,
    draft_of,
    make_draft,
    make_model,
    medium,
    random_prompt,
)
from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder, MakeLauncher
from specbench.decode.drafter import Drafter, NoDrafter
from specbench.decode.graphs import Launchers
from specbench.decode.launcher import GraphKind
from specbench.decode.round import Verifier
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.verifier import verify
from specbench.engines.kernel_choices import FORWARDS, KernelChoices
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner
from specbench.records import Request, Sampling

GRAPHS: tuple[GraphKind, ...] = ("off", "step", "round")
GREEDY = Sampler(Sampling())
Text = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target on the device, and a draft or none."""

    machine: Machine
    target: Any
    draft: Any = None

    def decoder(
        self,
        *,
        forward: str = "auto",
        graph: GraphKind = "round",
        verifier: Verifier = verify,
        make_launcher: MakeLauncher | None = None,
        prefill_chunk: int = 512,
    ) -> Decoder:
        """A decoder with caches of its own, over the one set of weights."""
        target = make_runner(self.machine, self.target, forward)
        drafter: Drafter = NoDrafter()
        if self.draft is not None:
            drafter = draft_of(target, make_runner(self.machine, self.draft, forward))
        return Decoder(
            target,
            drafter,
            eos_ids=(),
            clock=make_clock(self.machine.device),
            verifier=verifier,
            make_launcher=make_launcher or Launchers(graph, self.machine.device),
            prefill_chunk=prefill_chunk,
        )

    def requests(self, num: int, *, prompt: int, new_tokens: int) -> list[Request]:
        """Ragged: prompts of `prompt` tokens and more, answers of `new_tokens` and fewer."""
        vocab = self.target.config.vocab_size
        return [
            Request(
                prompt_ids=random_prompt(prompt + 7 * (i % 5), vocab, seed=i),
                max_new_tokens=max(new_tokens - 5 * (i % 4), 2),
                seed=1000 + i,
            )
            for i in range(num)
        ]


def make_runner(machine: Machine, model: Any, forward: str = "auto") -> Runner:
    """One of the forwards that compete, by name, or with auto the one that won.

    Attention is what won here in any case. ModelError where the named one cannot run.
    """
    checked, _ = make_checked_runner(model, "stock" if forward == "stock" else "auto")
    graphs = Launchers("auto", machine.device).graphs
    choices = KernelChoices(machine.kernels, make_clock(machine.device), graphs)
    chosen = choices.choose(checked, "auto", "the suite's model")
    if forward in ("auto", "stock") or not isinstance(checked, FusedRunner):
        return chosen
    return FORWARDS[forward](checked)


def medium_pair(machine: Machine, dtype: torch.dtype, *, layers: int) -> Pair:
    """A target of `layers` layers and its first one, which agree about seven times in ten."""
    target = make_model(medium(layers, machine), dtype, machine.device)
    draft = make_draft(target, 1)
    agree(target, draft, 0.7, num_tokens=machine.pick(512, 64))
    return Pair(machine=machine, target=target, draft=draft)


def texts(
    decoder: Decoder,
    requests: Sequence[Request],
    *,
    k: int,
    num_rows: int,
    sampler: Sampler = GREEDY,
) -> list[Text]:
    served = decoder.serve(requests, sampler, FixedK(k), num_rows=num_rows)
    return [result.output_ids for result in served.results]


def num_equal(found: Sequence[Text], expected: Sequence[Text]) -> int:
    return sum(a == b for a, b in zip(found, expected, strict=True))
