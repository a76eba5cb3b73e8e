"""Evidence about serving engines: their servers are asked, then the target looks at the answers.

No torch is imported before the last server has stopped, and none where the target is not here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specbench.bench.machine import served_dtype
from specbench.bench.planning import plan_targets
from specbench.bench.progress import Reporter
from specbench.bench.served.collect_outputs import OutputCollector, ServerOutputs
from specbench.bench.served.host import host_of, require_startable
from specbench.bench.served.running import (
    running_context,
    running_ks,
    running_servers,
    server_warnings,
)
from specbench.errors import UsageError, first_line
from specbench.inputs.pairing import Pairing
from specbench.records import Sampling
from specbench.settings import BUILTIN, SERVED, RunSettings
from specbench.verify.evidence import (
    BaselineSample,
    Distance,
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    ServedEvidence,
    Subject,
)
from specbench.verify.judge import is_tie
from specbench.verify.two_samples import as_outputs, between, first_divergence, have_ids

if TYPE_CHECKING:
    from specbench.bench.served.reference_scorer import ReferenceScorer


def collect_served_evidence(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    reporter: Reporter,
    *,
    num_tokens: int,
    concurrency: int,
) -> list[Evidence]:
    """Every pairing at every K and temperature of each serving engine, K = 0 before it.

    Raises UsageError and WorkloadError before anything is started; a server that fails is evidence.
    """
    load = settings.load
    own = tuple(engine for engine in load.engines if engine in SERVED)
    lossy = [pairing.name for pairing in pairings if pairing.drafter.lossy]
    if lossy and BUILTIN in load.engines:
        reporter.warn(f"{', '.join(lossy)}: the lossy rule is one of the built-in decoder's alone")
        pairings = [pairing for pairing in pairings if not pairing.drafter.lossy]
    settings = replace(settings, load=replace(load, engines=own, concurrency=(concurrency,)))
    running = running_servers(settings)
    if running and 0 not in (running_ks(running) or ()):
        raise UsageError(
            "verify holds a server to one without speculation: add its --base-url, such as "
            "http://localhost:8000#k=0"
        )
    plans = plan_targets(
        settings,
        pairings,
        partial(served_dtype, settings),
        running_ks=running_ks(running),
        context=running_context(running),
    )
    if not running:
        require_startable(plans)
    for text in server_warnings(running, settings.load.engines[0], plans[0].target):
        reporter.warn(text)
    evidence: list[Evidence] = []
    for plan in plans:
        for text in plan.left_out:
            reporter.warn(text)
        for engine in plan.served:
            with TemporaryDirectory(prefix="specbench-") as folder:
                addresses = [server.address for server in running]
                host = host_of(plan, engine, addresses, Path(folder))
                collector = OutputCollector(plan, engine, host, reporter, num_tokens, concurrency)
                outputs = collector.run()
            evidence += _Weighing(collector, outputs).evidence()
    return evidence


class _Weighing:
    """What servers said as evidence: with the target's logits, or why without them."""

    def __init__(self, collector: OutputCollector, outputs: Sequence[ServerOutputs]) -> None:
        self._collector, self._plan, self._outputs = collector, collector.plan, outputs
        self._own = {one.temperature: one for one in outputs if not (one.draft.k or one.error)}
        self._unseen = ""
        self._target: ReferenceScorer | None = None

    def evidence(self) -> list[Evidence]:
        """In the order in which it was outputs."""
        spec = self._plan.target.model
        if spec.folder is None:
            self._unseen = f"{spec.source} is not a folder on this disk"
            return list(self._each())
        self._collector.reporter.stage(f"{self._plan.target.name}: looking at its logits")
        # Here alone, so that servers are asked without torch.
        from specbench.bench.served.reference_scorer import ReferenceScorer  # noqa: PLC0415
        from specbench.engines.expected_errors import EXPECTED_ERRORS  # noqa: PLC0415

        asked, most_tokens = self._collector.requests, self._collector.most_tokens
        try:
            self._target = ReferenceScorer(self._plan, asked, most_tokens)
            return list(self._each())
        except EXPECTED_ERRORS as error:
            self._target, self._unseen = None, first_line(error)
        return list(self._each())

    def _unseen_at(self, temperature: float) -> str:
        """Why the target's logits say nothing of the answers at a temperature."""
        texts = [
            text for one in self._outputs if one.temperature == temperature for text in one.texts
        ]
        if not self._unseen and not have_ids(texts):
            return "the server does not tell the ids of all tokens"
        return self._unseen

    def _each(self) -> Iterator[Evidence]:
        for one in self._outputs:
            if one.error:
                yield FailedEvidence(subject=self._subject(one), reason=one.error)
            elif one.temperature > 0:
                yield self._sampled(one)
            else:
                yield self._greedy(one)

    @cached_property
    def _own_greedy(self) -> GreedyEvidence:
        """Texts of K = 0 beside the target's best tokens."""
        assert self._target is not None
        own = self._own[0.0]
        found = self._target.greedy(self._subject(own), own.texts, None)
        return replace(found, is_baseline=True)

    def _greedy(self, one: ServerOutputs) -> Evidence:
        subject, own = self._subject(one), self._own[0.0]
        is_own = one is own
        unseen = self._unseen_at(0.0)
        if self._target is not None and not unseen:
            if is_own:
                return self._own_greedy
            beyond = [d for d in self._own_greedy.divergences if not is_tie(d)]
            if not beyond:
                found = self._target.greedy(subject, one.texts, own.texts)
                return replace(found, rule=one.rule)
            unseen = (
                f"K = 0 itself departs from the target here beyond rounding, first at "
                f"{beyond[0].prompt_id}, token {beyond[0].position}"
            )
        pairs = zip(own.texts, one.texts, strict=True)
        differing = (first_divergence(*pair) for pair in pairs)
        return GreedyEvidence(
            subject=subject,
            num_prompts=len(one.texts),
            num_tokens=sum(text.num_tokens for text in one.texts),
            divergences=tuple(d for d in differing if d is not None),
            is_baseline=is_own,
            not_scored_because=unseen,
            rule=one.rule,
        )

    def _sampled(self, one: ServerOutputs) -> Evidence:
        subject, own = self._subject(one), self._own[one.temperature]
        along = None
        distances: tuple[Distance, ...] = ()
        unseen = self._unseen_at(one.temperature)
        if self._target is not None and not unseen:
            asked = self._plan.settings.sampling
            sampling = Sampling(temperature=one.temperature, top_k=asked.top_k, top_p=asked.top_p)
            num = self._collector.num_tokens
            along, tally = self._target.sampled(subject, sampling, one.texts, num)
            distances = tally.distances()
        return ServedEvidence(
            subject=subject,
            num_texts=len(one.texts),
            num_tokens=sum(text.num_tokens for text in one.texts),
            scored=along,
            sample=None if one is own else self._beside(one, own),
            distances=distances,
            not_scored_because=unseen,
            rule=one.rule,
        )

    def _beside(self, one: ServerOutputs, own: ServerOutputs) -> BaselineSample:
        has_ids = have_ids(one.texts, own.texts, own.colder)
        answers, own_answers, colder = (
            as_outputs(texts, has_ids=has_ids) for texts in (one.texts, own.texts, own.colder)
        )
        return BaselineSample(
            baseline=self._subject(own),
            outputs=answers,
            baseline_outputs=own_answers,
            colder=colder,
            distances=between(answers, own_answers),
        )

    def _subject(self, one: ServerOutputs) -> Subject:
        target, drafter = self._plan.target.name, one.draft.drafter
        return Subject(
            pairing=f"{target}/{drafter}" if one.draft.k else target,
            engine=self._collector.engine,
            method=one.draft.method,
            num_speculative_tokens=one.draft.k,
            temperature=one.temperature,
            lossy=one.draft.lossy,
        )
