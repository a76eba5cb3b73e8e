"""The built-in decoder as an engine: one target and its drafters on one device."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks, measure_round_costs
from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter
from specbench.decode.graphs import Launchers
from specbench.decode.launcher import GraphKind, Launcher
from specbench.decode.lossy import SyntheticVerifier
from specbench.decode.round import Verifier
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, ObservedFixedK, Policy
from specbench.engines.engine import (
    InstrumentedEngine,
    Load,
    RoundForward,
    Scores,
    ServedPass,
    TimedForwards,
    Work,
    arriving,
)
from specbench.engines.kernel_choices import KernelChoices
from specbench.engines.loaded_drafters import LoadedDrafters, take
from specbench.engines.model_forwards import Forwards, ModelForwards
from specbench.engines.model_pool import ModelPool, bytes_read, identity
from specbench.footprint import row_slots
from specbench.forward.attention.candidates import USUAL
from specbench.forward.attention.implementations import PlainAttention
from specbench.forward.attention.masks import field
from specbench.forward.attention.stock import are_plain, attention_backend
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner
from specbench.forward.scoring import mean_log_probs
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.library_errors import errors_translated, failure_reason, is_of_our_kernel
from specbench.records import NO_DRAFTER, EngineRecord, ModelIdentity, Request, Result, Sampling
from specbench.settings import BUILTIN, DecoderSettings
from specbench.stats.rounds import bytes_per_forward

MOST_CAPTURING_PASSES = 3
_DEFAULTS = DecoderSettings()


DrafterLaunchers = Sequence[tuple[str, Launcher]]  # drafter names with their launchers


def graph_kind(launched: DrafterLaunchers) -> GraphKind:
    """The graph kind at K = 0; if only drafters ran, of a drafter, preferably the requested kind.

    `graph_notes` has the reasons why drafters ran with another kind.
    """
    plain = [launcher for name, launcher in launched if name == NO_DRAFTER]
    drafting = sorted((la for _, la in launched), key=lambda la: la.reason is not None)
    return next((launcher.graph for launcher in (*plain, *drafting)), "off")


def graph_notes(launched: DrafterLaunchers) -> Iterator[str]:
    """The reasons why rounds do not run as the requested graphs, per drafter if they differ."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, launcher in launched:
        if launcher.reason is not None:
            names.setdefault((launcher.graph, launcher.reason), {})[name] = None
    for (graph, reason), drafters in names.items():
        is_all = len(drafters) == len(dict(launched))
        listed = ", ".join(drafters)
        yield f"graphs: {reason}" if is_all else f"graphs of {listed}: {graph}, {reason}"


def _capture_note(captured: tuple[str, int]) -> str:
    """That the times of a drafter at a K include a capture."""
    drafter, k = captured
    return (
        f"graphs of {drafter}, K={k}: {MOST_CAPTURING_PASSES} passes in a row captured a graph, so "
        "the times of the last one include a capture"
    )


def attention_of(runner: Runner) -> str:
    """The implementations of a target's attention; if it is torch's, the kernel it chooses."""
    if isinstance(runner, FusedRunner):
        kernels, cases = runner.layers.kernels, runner.layers.cases
        names = {kernels[case.window, case.is_tree].name for case in cases}
        if names != {USUAL.name}:
            return ", ".join(sorted(names))
    config = runner.model.config.get_text_config()
    heads = field(config, "num_attention_heads") or 1
    kv_heads = field(config, "num_key_value_heads") or heads
    size = field(config, "head_dim") or runner.hidden_size // heads
    backend = attention_backend(
        runner.device, runner.dtype, num_heads=heads, num_kv_heads=kv_heads, head_dim=size
    )
    # Soft-capping or sinks may be in only some layers.
    names = {PlainAttention.name if plain else backend for plain in are_plain(runner.model)}
    return ", ".join(sorted(names)) or backend


class _Setting(NamedTuple):
    """Everything that round costs depend on."""

    drafter: str
    max_k: int
    context: int | None
    num_rows: int
    sampling: Sampling


class Controllers:
    """The controllers of adaptive K, which keep their statistics from pass to pass."""

    def __init__(self) -> None:
        self._costs: dict[_Setting, RoundCostModel] = {}
        self._known: dict[tuple[str, _Setting], Controller] = {}

    def open(
        self,
        request: Request,
        work: Work,
        load: Load,
        max_k: int,
        open_decoder: Callable[[], Decoder],
    ) -> tuple[Controller, float]:
        """The workload's controller, and the seconds spent on measuring round costs first.

        Costs are measured once for all workloads, by a decoder that does not stop at EOS, because a
        short output has too few rounds.
        """
        setting = _Setting(work.drafter, max_k, work.context, load.concurrency, request.sampling)
        ks, seconds = default_ks(max_k), 0.0
        if setting not in self._costs:
            self._costs[setting], seconds = measure_round_costs(
                open_decoder(), request.prompt_ids, ks, load.concurrency, Sampler(request.sampling)
            )
        known = (work.workload, setting)
        if known not in self._known:
            self._known[known] = Controller(ks, self._costs[setting])
        return self._known[known], seconds

    def forget(self, drafter: str) -> None:
        """Remove the costs and statistics of a drafter."""
        self._costs = {key: costs for key, costs in self._costs.items() if key.drafter != drafter}
        self._known = {key: c for key, c in self._known.items() if key[1].drafter != drafter}


class BuiltinEngine(InstrumentedEngine):
    """A target and its drafters in this process."""

    name = BUILTIN
    baseline = Work(drafter=NO_DRAFTER, method=NO_DRAFTER, k=0)

    @errors_translated()
    def __init__(
        self, target: Target, pool: ModelPool, options: DecoderSettings = _DEFAULTS
    ) -> None:
        self._pool = pool
        self._options = options
        self._clock = make_clock(pool.device)
        self.tokenizer = pool.tokenizer(target.model)
        self._launchers = Launchers(options.graph, pool.device)
        self._kernels = KernelChoices(options.kernels, self._clock, self._launchers.graphs)
        model = take(pool, target.model, options.forward, self._kernels)
        self._target, self._runner = model.loaded, model.runner
        self.eos_ids = self._target.eos_ids
        self.identity = identity(target.name, target.model, self._target, self.tokenizer)
        self._name = target.name
        self._model_forwards = ModelForwards(self._launchers.graphs, self._clock)
        self._drafters = LoadedDrafters(model, self.tokenizer, pool, options.forward, self._kernels)
        self._decoders: dict[tuple[str, bool], Decoder] = {}
        self._capturing: dict[tuple[str, int], None] = {}  # drafters and K timed with a capture
        self._controllers = Controllers()

    @property
    def record(self) -> EngineRecord:
        """Complete only after a round has run, since some choices are made then."""
        launched = [(n, d.launcher) for (n, _), d in self._decoders.items() if d.launcher]
        graphs = self._launchers.graphs
        return EngineRecord(
            target=self._name,
            engine=self.name,
            forward=self._runner.kind,
            graph=graph_kind(launched) if self._pool.device.type == "cuda" else "off",
            num_captures=graphs.num_captures if graphs else None,
            capture_s=graphs.capture_s if graphs else None,
            attention=attention_of(self._runner),
            kernels=tuple(self._kernels.autotuner.choices.values()),
            quantization=self._target.quantization,
            notes=(
                *self._drafters.notes,
                *graph_notes(launched),
                *map(_capture_note, self._capturing),
                *self._kernels.notes,
            ),
            max_k=dict(self._drafters.max_ks),
        )

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        return self._drafters.add(drafter)

    def remove_drafter(self, name: str) -> None:
        self._controllers.forget(name)
        self._decoders = {key: value for key, value in self._decoders.items() if key[0] != name}
        self._drafters.remove(name)
        self._model_forwards.forget()

    def generate(self, request: Request, work: Work) -> Result:
        served = self.serve([request], work, Load())
        return replace(served.results[0], cpu_s=served.cpu_s)

    @errors_translated()
    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        """Serve the requests; if Triton refuses our attention, again with torch's.

        Every shape runs once before any is measured, so all figures are with the same attention.
        """
        try:
            return self._serve_work(requests, work, load)
        except Exception as error:
            if not is_of_our_kernel(error) or not self._kernels.drop_triton(failure_reason(error)):
                raise
        self._decoders.clear()
        self._controllers = Controllers()
        self._model_forwards.forget()
        served = self._serve_work(requests, work, load)
        return replace(served, num_discarded=served.num_discarded + 1)

    def _serve_work(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        if not work.adaptive:
            return self._serve(requests, work, load, FixedK(self._drafters.depth(work)))
        policy, calibration_s = self._controllers.open(
            requests[0],
            work,
            load,
            self._drafters.depth(work),
            lambda: self._decoder(work.drafter, False),
        )
        served = self._serve(requests, work, load, policy)
        seconds = calibration_s + served.seconds
        return replace(served, seconds=seconds, calibration_s=calibration_s)

    def _serve(
        self, requests: Sequence[Request], work: Work, load: Load, policy: Policy
    ) -> ServedPass:
        sampler = Sampler(requests[0].sampling)
        decoder = self._decoder(work.drafter, requests[0].stop_at_eos)
        k = policy.max_k
        timed = list(arriving(requests, load))
        num_passes, has_captured = 0, True
        while has_captured and num_passes < MOST_CAPTURING_PASSES:
            num_captures, cpu_s = decoder.num_captures, time.thread_time()
            served = decoder.serve(timed, sampler, policy, num_rows=load.concurrency)
            num_passes += 1
            has_captured = decoder.num_captures > num_captures  # then its times include captures
        if has_captured:
            self._capturing[work.drafter, k] = None
        longest = max(request.num_tokens for request in timed)
        scores = self._score(requests[0].prompt_ids, served.results) if timed[0].is_sample else None
        return ServedPass(
            results=tuple(map(self._ended, served.results)),
            seconds=served.seconds,
            rounds=served.timeline,
            cpu_s=time.thread_time() - cpu_s,
            kv_bytes=load.concurrency * self._row_bytes(work.drafter, longest, k),
            scores=scores,
            num_discarded=num_passes - 1,
        )

    def _score(self, prompt_ids: Sequence[int], results: Sequence[Result]) -> Scores:
        self._clock.start()
        outputs = [result.output_ids for result in results]
        log_probs = mean_log_probs(self._runner, prompt_ids, outputs)
        return Scores(log_probs=log_probs, seconds=self._clock.now())

    @property
    def runner(self) -> Runner:
        """The target's runner."""
        return self._runner

    def drafting(self, drafter: str) -> Drafter:
        """The named drafter."""
        return self._drafters[drafter]

    def verifier(self, drafter: str) -> Verifier:
        """The verifier for the named drafter."""
        drawn = self._options.simulated
        return self._drafters.verifier(drafter) if drawn is None else SyntheticVerifier(drawn)

    def lossy_option(self, work: Work) -> str | None:
        """The lossy rule of the drafter of `work`; None if verification is lossless."""
        rule = self._drafters.rules.get(work.drafter)
        return None if rule is None else str(rule)

    def weights_bytes(self, drafter: str) -> int:
        return self._target.weights_bytes + self._drafters.weights_bytes(drafter)

    def bytes_read(self, drafter: str, forward: RoundForward, rows: int, context: int) -> int:
        if forward.role == "target":
            weights, kv = bytes_read(self._target), self._runner.cache.bytes_per_token
        else:
            weights, kv = self._drafters.bytes_read(drafter, forward.part)
        return bytes_per_forward(weights, rows, context, kv)

    def kv_bytes_per_token(self, drafter: str) -> int:
        drafter_bytes = self._drafters[drafter].resources.kv_bytes_per_token
        return self._runner.cache.bytes_per_token + drafter_bytes

    def state_bytes_per_row(self, drafter: str) -> int:
        drafter_bytes = self._drafters[drafter].resources.state_bytes_per_row
        return self._runner.cache.state_bytes_per_row + drafter_bytes

    def _row_bytes(self, drafter: str, num_tokens: int, k: int) -> int:
        """Bytes of keys, values and states that are allocated for a row of `num_tokens` tokens."""
        method = self._drafters[drafter]
        num_drafts = method.num_drafts(k) if k else 0
        slots = row_slots(num_tokens + num_drafts + 1, self._pool.device.type)
        resources = method.resources
        spare = resources.spare_slots * resources.kv_bytes_per_token
        return slots * self.kv_bytes_per_token(drafter) + spare + self.state_bytes_per_row(drafter)

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        method = self._drafters[drafter]
        if k and method.p_min:
            return ()  # rounds have fewer forwards than K needs
        times = Counter(method.resources.forwards(k) if k else ())
        if k and method.resources.weights and not times:
            return ()  # the head does not list its forwards, and the bound would be too low
        num_nodes = method.num_drafts(k) + 1 if k else 1
        drafting = (
            RoundForward(role="drafter", num_tokens=num_tokens, times=count, part=part)
            for (num_tokens, part), count in times.items()
        )
        return (RoundForward(role="target", num_tokens=num_nodes, times=1), *drafting)

    def time_forwards(self, request: Request, work: Work) -> TimedForwards | None:
        forwards = self.forwards(work.drafter, work.k)
        if not forwards:
            return None
        # Verifying a prediction before the first round would emit tokens that `between` misses.
        request = replace(request, prediction_ids=())
        if self._launchers.graphs is not None:
            self.generate(request, work)  # otherwise a capture would repeat the timed pass
        seconds: dict[RoundForward, list[float]] = {forward: [] for forward in forwards}
        in_order = sorted(forwards, key=lambda forward: forward.role == "target")
        # The forwards may overwrite only slots after the tokens of rounds in progress.
        length = len(request.prompt_ids) + self._launchers.lag * (work.k + 1)

        def between(num_emitted: int) -> None:
            nonlocal length
            length += num_emitted
            for forward in in_order:
                for _ in range(forward.times):
                    seconds[forward].append(self.forward_seconds(work.drafter, forward, length))

        policy = ObservedFixedK(self._drafters.depth(work), between)
        (result,) = self._serve([request], work, Load(), policy).results
        num_rounds = len(result.rounds) if result.rounds else 0
        last = {f: tuple(s[len(s) - f.times * num_rounds :]) for f, s in seconds.items()}
        return TimedForwards(result=result, forward_s=last)

    def forward_seconds(self, drafter: str, forward: RoundForward, context: int) -> float:
        """Seconds of the single forward after `context` tokens."""
        runner: Forwards = self._runner
        if forward.role == "drafter":
            runner = self._drafters.forwards(drafter, forward.part)
        return self._model_forwards.seconds(runner, forward.num_tokens, context)

    def _decoder(self, drafter: str, stop_at_eos: bool) -> Decoder:
        known = self._decoders.get((drafter, stop_at_eos))
        if known is None:
            known = self._decoders[drafter, stop_at_eos] = Decoder(
                self._runner,
                self._drafters[drafter],
                eos_ids=self.eos_ids if stop_at_eos else (),
                clock=self._clock,
                verifier=self.verifier(drafter),
                make_launcher=self._launchers,
                text=self.tokenizer.text,
            )
        return known

    def _ended(self, result: Result) -> Result:
        """The result with finish_reason "eos" if it ended with a stop string, or if its last token
        is EOS, even if decoding does not stop there."""
        is_ended = result.finish_reason == "eos" or result.output_ids[-1] in self.eos_ids
        return replace(result, finish_reason="eos" if is_ended else "length")
