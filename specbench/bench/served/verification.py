"""Collects evidence about serving engines: outputs of servers, then the target's logits of them.

Torch is imported only after the last server has stopped, and only if the target is on this disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specbench.bench.machine import served_dtype
from specbench.bench.planning import plan_targets, require_verifiable
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
    """Evidence for every pairing at every K and temperature of each serving engine, K = 0 first.

    Raises UsageError and WorkloadError before a server is started; a server that fails gives
    FailedEvidence.
    """
    load = settings.load
    served = tuple(engine for engine in load.engines if engine in SERVED)
    lossy = [pairing.name for pairing in pairings if pairing.drafter.lossy]
    if lossy and BUILTIN in load.engines:
        reporter.warn(f"{', '.join(lossy)}: only the built-in decoder has the lossy rule")
        pairings = [pairing for pairing in pairings if not pairing.drafter.lossy]
    settings = replace(settings, load=replace(load, engines=served, concurrency=(concurrency,)))
    running = running_servers(settings)
    if running and 0 not in (running_ks(running) or ()):
        raise UsageError(
            "verify compares servers with one without speculation; add it with --base-url, such "
            "as --base-url http://localhost:8000#k=0"
        )
    plans = plan_targets(
        settings,
        pairings,
        partial(served_dtype, settings),
        running_ks=running_ks(running),
        context=running_context(running),
    )
    require_verifiable(plans)
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
            evidence += _OutputScoring(collector, outputs).evidence()
    return evidence


class _OutputScoring:
    """Turns servers' outputs into evidence, scored by the target's logits if possible."""

    def __init__(self, collector: OutputCollector, outputs: Sequence[ServerOutputs]) -> None:
        self._collector, self._plan, self._outputs = collector, collector.plan, outputs
        self._baselines = {o.temperature: o for o in outputs if not (o.draft.k or o.error)}
        self._why_not_scored = ""
        self._target: ReferenceScorer | None = None

    def evidence(self) -> list[Evidence]:
        """The evidence of each output, in order."""
        spec = self._plan.target.model
        if spec.folder is None:
            self._why_not_scored = f"{spec.source} is not a folder on this disk"
            return list(self._each())
        self._collector.reporter.stage(f"{self._plan.target.name}: computing its logits")
        # Imported here, so that no torch is loaded while servers run.
        from specbench.bench.served.reference_scorer import ReferenceScorer  # noqa: PLC0415
        from specbench.models.library_errors import EXPECTED_ERRORS  # noqa: PLC0415

        requests, most_tokens = self._collector.requests, self._collector.most_tokens
        try:
            self._target = ReferenceScorer(self._plan, requests, most_tokens)
            return list(self._each())
        except EXPECTED_ERRORS as error:
            self._target, self._why_not_scored = None, first_line(error)
        return list(self._each())

    def _why_not_scored_at(self, temperature: float) -> str:
        """The reason why answers at a temperature cannot be scored; "" if they can."""
        texts = [text for o in self._outputs if o.temperature == temperature for text in o.texts]
        if not self._why_not_scored and not have_ids(texts):
            return "the server does not report the ids of all tokens"
        return self._why_not_scored

    def _each(self) -> Iterator[Evidence]:
        for output in self._outputs:
            if output.error:
                yield FailedEvidence(subject=self._subject(output), reason=output.error)
            elif output.temperature > 0:
                yield self._sampled(output)
            else:
                yield self._greedy(output)

    @cached_property
    def _greedy_baseline(self) -> GreedyEvidence:
        """The texts of K = 0 compared with the target's best tokens."""
        assert self._target is not None
        baseline = self._baselines[0.0]
        evidence = self._target.greedy(self._subject(baseline), baseline.texts, None)
        return replace(evidence, is_baseline=True)

    def _greedy(self, output: ServerOutputs) -> Evidence:
        subject, baseline = self._subject(output), self._baselines[0.0]
        is_baseline = output is baseline
        why_not_scored = self._why_not_scored_at(0.0)
        if self._target is not None and not why_not_scored:
            if is_baseline:
                return self._greedy_baseline
            beyond = [d for d in self._greedy_baseline.divergences if not is_tie(d)]
            if not beyond:
                evidence = self._target.greedy(subject, output.texts, baseline.texts)
                return replace(evidence, rule=output.rule)
            why_not_scored = (
                f"K = 0 differs from the target on this machine beyond rounding, first at "
                f"{beyond[0].prompt_id}, token {beyond[0].position}"
            )
        pairs = zip(baseline.texts, output.texts, strict=True)
        differing = (first_divergence(*pair) for pair in pairs)
        return GreedyEvidence(
            subject=subject,
            num_prompts=len(output.texts),
            num_tokens=sum(text.num_tokens for text in output.texts),
            divergences=tuple(d for d in differing if d is not None),
            is_baseline=is_baseline,
            not_scored_because=why_not_scored,
            rule=output.rule,
        )

    def _sampled(self, output: ServerOutputs) -> Evidence:
        subject, baseline = self._subject(output), self._baselines[output.temperature]
        scored = None
        distances: tuple[Distance, ...] = ()
        why_not_scored = self._why_not_scored_at(output.temperature)
        if self._target is not None and not why_not_scored:
            settings = self._plan.settings.sampling
            sampling = Sampling(
                temperature=output.temperature, top_k=settings.top_k, top_p=settings.top_p
            )
            num = self._collector.num_tokens
            scored, tally = self._target.sampled(subject, sampling, output.texts, num)
            distances = tally.distances()
        return ServedEvidence(
            subject=subject,
            num_texts=len(output.texts),
            num_tokens=sum(text.num_tokens for text in output.texts),
            scored=scored,
            sample=None if output is baseline else self._baseline_sample(output, baseline),
            distances=distances,
            not_scored_because=why_not_scored,
            rule=output.rule,
        )

    def _baseline_sample(self, output: ServerOutputs, baseline: ServerOutputs) -> BaselineSample:
        has_ids = have_ids(output.texts, baseline.texts, baseline.colder)
        outputs, baseline_outputs, colder = (
            as_outputs(texts, has_ids=has_ids)
            for texts in (output.texts, baseline.texts, baseline.colder)
        )
        return BaselineSample(
            baseline=self._subject(baseline),
            outputs=outputs,
            baseline_outputs=baseline_outputs,
            colder=colder,
            distances=between(outputs, baseline_outputs),
        )

    def _subject(self, output: ServerOutputs) -> Subject:
        target, drafter = self._plan.target.name, output.draft.drafter
        return Subject(
            pairing=f"{target}/{drafter}" if output.draft.k else target,
            engine=self._collector.engine,
            method=output.draft.method,
            num_speculative_tokens=output.draft.k,
            temperature=output.temperature,
            lossy=output.draft.lossy,
        )
