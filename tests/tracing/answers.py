"""Texts of the demo models to trace, and the measured rounds over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from specbench.bench.session import quoted_text
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Target
from specbench.inputs.workloads import load_workload
from specbench.records import Message, Prompt, Request, RoundLog, Sampling
from specbench.shipped import shipped
from specbench.stats.rounds import RoundCounts
from specbench.tracing.trace import TargetText

WORKLOADS = ("chat", "code", "creative", "qa", "edit")
Conversation = list[TargetText]


@cache
def demo_target() -> Target:
    pairings = load_pairings(shipped("pairings.yaml"))
    return next(target for target in pairings.targets if target.name == "demo")


def open_demo(*drafters: str) -> BuiltinEngine:
    """The bundled target with some of its drafters, in float32."""
    target = demo_target()
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu"), "float32"))
    for drafter in target.drafters:
        if drafter.name in drafters:
            engine.add_drafter(drafter)
    return engine


def method_of(drafter: str) -> str:
    return next(d.method for d in demo_target().drafters if d.name == drafter)


@dataclass(frozen=True)
class Options:
    """Decoding options of a prompt's turns."""

    temperature: float = 0.0
    repeat: int = 0
    max_new_tokens: int = 64


def decode(engine: BuiltinEngine, workload: str, prompt: Prompt, options: Options) -> Conversation:
    """The target's own answers without drafts; later turns follow the greedy ones."""
    history: list[Message] = []
    texts: Conversation = []
    before: tuple[int, ...] = ()
    for turn, messages in enumerate(prompt.turns):
        if turn:
            history.append(Message(role="assistant", content=engine.tokenizer.text(before)))
        history += messages
        prompt_ids = engine.tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
        quoted = engine.tokenizer.ids(quoted_text(prompt.turns[0]))
        seed, sampling = 1000 * options.repeat + turn, Sampling(temperature=options.temperature)
        output = _answer(engine, prompt_ids, sampling, seed, options.max_new_tokens)
        texts.append(
            TargetText(
                workload=workload,
                prompt_id=prompt.id,
                turn=turn,
                repeat=options.repeat,
                prompt_ids=prompt_ids,
                output_ids=output,
                # Greedy cells decode as many tokens as the reference has, sampled ones to the end.
                max_new_tokens=options.max_new_tokens if options.temperature else len(output),
                sampling=sampling,
                seed=seed,
                prediction_ids=before if turn else quoted,
            )
        )
        if turn + 1 < len(prompt.turns):
            before = _answer(engine, prompt_ids, Sampling(), 0, options.max_new_tokens)
    return texts


def conversations(
    engine: BuiltinEngine, workload: str, num_prompts: int, options: Options = Options()
) -> list[Conversation]:
    """The first prompts of a workload, answered."""
    prompts = load_workload(workload, folder=demo_target().workloads).prompts[:num_prompts]
    return [decode(engine, workload, prompt, options) for prompt in prompts]


def request_of(text: TargetText, conversation: str | None = None) -> Request:
    """A request that decodes the text again."""
    return Request(
        prompt_ids=text.prompt_ids,
        max_new_tokens=text.max_new_tokens,
        sampling=text.sampling,
        seed=text.seed,
        stop_at_eos=text.sampling.temperature > 0,
        conversation=conversation,
        prediction_ids=text.prediction_ids,
    )


def decode_with_drafts(
    engine: BuiltinEngine, drafter: str, texts: Sequence[TargetText], k: int
) -> list[tuple[tuple[int, ...], RoundLog]]:
    """The same turns decoded with drafts: their output and rounds."""
    requests = [
        request_of(text, conversation=text.prompt_id if len(texts) > 1 else None) for text in texts
    ]
    work = Work(drafter=drafter, method=method_of(drafter), k=k)
    results = []
    for result in engine.serve(requests, work, Load()).results:
        assert result.rounds is not None
        results.append((result.output_ids, result.rounds))
    return results


def measured(
    engine: BuiltinEngine, drafter: str, texts: Sequence[TargetText], k: int
) -> list[RoundLog]:
    """The rounds of the same turns, decoded with drafts."""
    return [log for _, log in decode_with_drafts(engine, drafter, texts, k)]


def counted(logs: Sequence[RoundLog], k: int) -> RoundCounts:
    """Measured rounds in the form of replayed ones."""
    drafted = [d for log in logs for d in log.num_drafted]
    accepted = [a for log in logs for a in log.num_accepted]
    emitted = [e for log in logs for e in log.num_emitted]
    return RoundCounts.of_rounds(drafted, accepted, emitted, k)


def _answer(
    engine: BuiltinEngine, prompt_ids: Sequence[int], sampling: Sampling, seed: int, most: int
) -> tuple[int, ...]:
    request = Request(
        prompt_ids=tuple(prompt_ids), max_new_tokens=most, sampling=sampling, seed=seed
    )
    return engine.generate(request, engine.baseline).output_ids
