"""The 8B-shaped pair that the sections of speed share, made when one first needs it."""

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_suite.machine import Machine
from benchmarks.gpu_suite.models import (
    HeldPool,
    agree,
    made_up_pair,
    make_draft,
    make_model,
    random_prompt,
    shape,
)
from specbench.engines.builtin import BuiltinEngine
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import Request, Sampling
from specbench.settings import DecoderSettings

AGREEMENT = 0.75  # of the pair's greedy tokens
DRAFT_LAYERS = 4
GREEDY = Sampling()


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """Two models as the engines take them; how the draft was made to agree, and how often."""

    model: Any
    target: Target
    drafter: DrafterSpec
    pool: HeldPool
    draft_layers: int
    scale: float
    agreed: float

    def builtin(self, machine: Machine) -> BuiltinEngine:
        """Our engine over it, with its drafter."""
        engine = BuiltinEngine(self.target, self.pool, DecoderSettings(kernels=machine.kernels))
        engine.add_drafter(self.drafter)
        return engine

    def requests(
        self, num: int, machine: Machine, *, new_tokens: int = 128, sampling: Sampling = GREEDY
    ) -> list[Request]:
        """Prompts of 64 made-up tokens."""
        vocab = self.model.config.vocab_size
        return [
            request_of(random_prompt(64, vocab, seed), machine.pick(new_tokens, 8), sampling)
            for seed in range(num)
        ]


class Stage:
    """Holds the pair between sections."""

    def __init__(self) -> None:
        self._pair: MadeUp | None = None

    def pair(self, machine: Machine) -> MadeUp:
        """The draft is the target's first layers; the later ones are scaled until both agree about
        three times in four, so that acceptance is real."""
        if self._pair is None:
            model = make_model(shape("llama-8b", machine), torch.bfloat16, machine.device)
            draft = make_draft(model, machine.pick(DRAFT_LAYERS, 1))
            scale, agreed = agree(model, draft, AGREEMENT, num_tokens=machine.pick(512, 64))
            target, drafter, pool = made_up_pair(model, draft)
            self._pair = MadeUp(
                model=model,
                target=target,
                drafter=drafter,
                pool=pool,
                draft_layers=draft.config.num_hidden_layers,
                scale=scale,
                agreed=agreed,
            )
        return self._pair

    def clear(self) -> None:
        """Give its memory to what is larger."""
        self._pair = None


def request_of(
    prompt_ids: tuple[int, ...], new_tokens: int, sampling: Sampling = GREEDY
) -> Request:
    """A request of exactly so many tokens."""
    return Request(
        prompt_ids=prompt_ids,
        max_new_tokens=new_tokens,
        sampling=sampling,
        seed=0,
        stop_at_eos=False,
    )
