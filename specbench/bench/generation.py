"""Decodes one answer and reports each round as soon as it is verified.

Shape suffixes: B rows, K drafts, N nodes, T tokens, V vocabulary.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from specbench.bench.hub import download_missing
from specbench.bench.this_process import autotune_threads, choose_threads, prepare_device
from specbench.bench.units import Reporter
from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.verifier import Verdict
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.pairing import Pairing
from specbench.inputs.workloads import DEFAULT_MAX_NEW_TOKENS
from specbench.models.library_errors import errors_translated
from specbench.records import Message, Request, Sampling
from specbench.settings import RunSettings


class WatchedRound(NamedTuple):
    """A round as token ids. The prefill is one with K = 0."""

    num_drafted: int  # K, or fewer if the drafter found fewer; for a tree its nodes
    accepted: tuple[int, ...]  # draft tokens, as are the rejected ones
    rejected: tuple[int, ...]
    extra: int | None  # the bonus or recovered token; None if the answer ended before it


class Generation(NamedTuple):
    """A decoded answer with its rounds."""

    output_ids: tuple[int, ...]
    rounds: tuple[WatchedRound, ...]
    decode_s: float  # of all rounds, including the calls of `on_round`


# Called with the round, and with a function from token ids to text.
OnRound = Callable[[WatchedRound, Callable[[tuple[int, ...]], str]], None]


def _round_of(proposal: Proposal, verdict: Verdict) -> WatchedRound:
    """The round of row 0, as the verifier decided it."""
    num_accepted, num_drafted = int(verdict.num_accepted_B[0]), int(proposal.num_drafted_B[0])
    tokens: list[int] = verdict.tokens_BT[0].tolist()
    drafts: list[int] = proposal.tokens_BK[0].tolist()
    if proposal.tree is None:
        rejected = drafts[num_accepted:num_drafted]
    else:
        active: list[bool] = proposal.tree.is_active_BK[0].tolist()
        path = [] if verdict.path_BT is None else verdict.path_BT[0].tolist()
        kept = set(path[1 : num_accepted + 1])  # node 0 is the root
        nodes = zip(range(1, len(drafts) + 1), drafts, active, strict=True)
        rejected = [token for node, token, is_active in nodes if is_active and node not in kept]
    return WatchedRound(
        num_drafted=num_drafted,
        accepted=tuple(tokens[:num_accepted]),
        rejected=tuple(rejected),
        extra=tokens[num_accepted],
    )


@errors_translated()
def watched_generation(
    settings: RunSettings,
    pairing: Pairing,
    prompt: str,
    k: int,
    reporter: Reporter,
    on_round: OnRound,
) -> Generation:
    """Decode the answer to a prompt, and call `on_round` after each round.

    Captures no CUDA graphs and stores no records. Raises ModelError, UsageError and
    CompatibilityError, as a run does.
    """
    device = prepare_device(settings.machine)
    download_missing(pairing.models, reporter.warn, weights=not settings.decoder.dummy_weights)
    reporter.stage(f"{pairing.name}: loading")
    decoder_settings = settings.decoder
    pool = ModelPool(device, settings.machine.dtype, dummy=decoder_settings.dummy_weights)
    engine = BuiltinEngine(pairing.target, pool, decoder_settings)
    engine.add_drafter(pairing.drafter)
    drafting = Work(drafter=pairing.drafter.name, method=pairing.drafter.method, k=k)
    if device.type == "cpu" and settings.machine.threads is None:
        autotune = partial(autotune_threads, engine, (engine.baseline, drafting), prompt, 1)
        facts = engine.identity.content_sha256, engine.identity.dtype, engine.name, 1
        choose_threads(pairing.name, facts, autotune)
    ids = engine.tokenizer.prompt_ids([Message(role="user", content=prompt)])
    sampling = Sampling(temperature=settings.sampling.temperatures[0])
    max_new_tokens = settings.sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    # The verifier does not see the prefill's token. The same seed gives the same token here.
    one_token = Request(prompt_ids=ids, max_new_tokens=1, sampling=sampling, seed=settings.seed)
    first = engine.generate(one_token, engine.baseline).output_ids
    rounds: list[WatchedRound] = []
    budget, has_ended = max_new_tokens, False  # `budget`: how many more tokens to emit

    def report(watched: WatchedRound) -> None:
        """Report a round without the tokens after the end of the answer."""
        nonlocal budget, has_ended
        if has_ended or budget == 0:
            return
        emitted = [*watched.accepted, *([] if watched.extra is None else [watched.extra])][:budget]
        end = next((i + 1 for i, token in enumerate(emitted) if token in engine.eos_ids), None)
        has_ended = end is not None
        kept = emitted[:end]
        budget -= len(kept)
        accepted = tuple(kept[: len(watched.accepted)])
        extra = kept[len(watched.accepted)] if len(kept) > len(watched.accepted) else None
        rounds.append(watched._replace(accepted=accepted, extra=extra))
        on_round(rounds[-1], engine.tokenizer.text)

    reporter.stage(f"{pairing.name}: decoding")
    report(WatchedRound(0, (), (), first[0]))
    drafter = pairing.drafter
    # Decoded only for the engine's error, which says why a drafter cannot draft K tokens.
    engine.generate(one_token, drafting)
    verifier = engine.verifier(drafter.name)

    def verify_and_report(
        proposal: Proposal,
        logits_BNV: Tensor,
        sampler: Sampler,
        seed_B: Tensor,
        positions_BN: Tensor,
    ) -> Verdict:
        verdict = verifier(proposal, logits_BNV, sampler, seed_B, positions_BN)
        report(_round_of(proposal, verdict))
        return verdict

    decoder = Decoder(
        engine.runner,
        engine.drafting(drafter.name),
        eos_ids=engine.eos_ids,
        clock=make_clock(device),
        verifier=verify_and_report,
    )
    began_s = time.monotonic()
    request = Request(prompt_ids=ids, max_new_tokens=max_new_tokens, seed=settings.seed)
    (result,) = decoder.decode([request], Sampler(sampling), k=k)
    return Generation(result.output_ids, tuple(rounds), time.monotonic() - began_s)
