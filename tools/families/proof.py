"""What becomes of a family: its text over slots is that of `generate`, or words say why not."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import torch

from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter, NoDrafter
from specbench.decode.sampling import Sampler
from specbench.drafters.registry import Parts, build_drafter
from specbench.engines.family_trial import VOCABULARY
from specbench.errors import ModelError, first_line
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner
from specbench.models.library_errors import errors_translated
from specbench.models.parts import keep_text_part
from specbench.records import Request, Sampling
from tools.families.registry import tiny_model

IDENTICAL = "identical"
REFUSED = "refused"
NOT_BUILT = "not built"
WRONG = "wrong"

_SIZES = re.compile(r" by \S+ of their spread \([^)]*\)")
_NUM_TOKENS = 20
_PROMPT_LENGTHS = (20, 9, 15)  # ragged, below and above the window of 12
_K = 3


class Verdict(NamedTuple):
    """What becomes of a family, and why."""

    state: str
    why: str = ""

    @property
    def shown(self) -> "Verdict":
        """As it is listed: without sizes of differences, which are the processor's."""
        return self._replace(why=_SIZES.sub("", self.why))


def verdict(family: str) -> Verdict:
    """Nothing that a model raises gets out of here: it would end a user's run."""
    try:
        model, stranger = tiny_model(family, 0), tiny_model(family, 1)
    except ModelError as error:
        return Verdict(REFUSED, str(error))
    except Exception as error:
        return Verdict(NOT_BUILT, f"{type(error).__name__}: {first_line(error)}")
    texts = _texts(model)
    try:
        with errors_translated():
            target, other = (_runner(one) for one in (model, stranger))
    except ModelError as error:
        return Verdict(REFUSED, str(error))
    runs = {
        "no drafts": (NoDrafter(), 0),
        "wrong drafts": (_drafter(target, other), _K),
        "right drafts": (_drafter(target, _runner(model)), _K),
    }
    if target.most_drafts is None:  # recurrent layers check chains alone
        runs["a tree of right drafts"] = (_drafter(target, _runner(model), tree=(2, 1)), 2)
    for name, (drafter, k) in runs.items():
        if _decoded(target, drafter, k) != texts:
            return Verdict(WRONG, f"another text with {name}")
    return Verdict(IDENTICAL, target.kind)


def _runner(model: Any) -> Runner:
    """As loading makes one of a model's files."""
    keep_text_part(model)
    runner, _ = make_checked_runner(model)
    return runner


def _prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())
        for length in _PROMPT_LENGTHS
    ]


def _texts(model: Any) -> list[tuple[int, ...]]:
    """What transformers gives for the prompts; nothing where its code runs on no text."""
    for how in (_generated, _plainly_generated):
        with suppress(Exception):
            return [how(model, prompt) for prompt in _prompts()]
    return []


@torch.inference_mode()
def _plainly_generated(model: Any, prompt: Sequence[int]) -> tuple[int, ...]:
    """Greedy text by whole forwards, for models that `generate` itself fails on."""
    text = list(prompt)
    for _ in range(_NUM_TOKENS):
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits
        text.append(int(logits[0, -1].argmax()))
    return tuple(text[len(prompt) :])


def _generated(model: Any, prompt: Sequence[int]) -> tuple[int, ...]:
    """Greedy text from transformers' own `generate`."""
    ids_1T = torch.tensor([list(prompt)])
    text_1T = model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=_NUM_TOKENS,
        min_new_tokens=_NUM_TOKENS,
    )
    return tuple(text_1T[0, len(prompt) :].tolist())


def _drafter(target: Runner, draft: Runner, **parameters: Any) -> Drafter:
    parts = Parts(target=target, draft_runner=lambda: draft, checkpoint=_no_head)
    return build_drafter("draft_model", parts, parameters)


def _no_head() -> NoReturn:
    raise AssertionError("a draft model has no head")


def _decoded(target: Runner, drafter: Drafter, k: int) -> list[tuple[int, ...]]:
    """All prompts together, in rows of their own."""
    decoder = Decoder(target, drafter, eos_ids=(), clock=make_clock(target.device))
    requests = [Request(prompt_ids=p, max_new_tokens=_NUM_TOKENS) for p in _prompts()]
    results = decoder.decode(requests, Sampler(Sampling()), k=k)
    return [tuple(result.output_ids) for result in results]
