"""The built-in decoder as an engine: one target on one device, drafters beside it."""

import time
from collections.abc import Callable

import torch

from specbench.config import Drafter, Target
from specbench.decoding.decoder import SPAN_STEP, Decoder, Request
from specbench.decoding.drafter import Drafter as DraftingMethod
from specbench.decoding.drafter import NoDrafter
from specbench.decoding.loading import LoadedModel, ModelSource, eos_ids, load_model
from specbench.decoding.runner import StockRunner
from specbench.decoding.sampling import Sampler
from specbench.decoding.self_test import make_checked_runner
from specbench.decoding.tokenizer import Tokenizer, require_same_vocabulary
from specbench.drafters.catalogue import find_method
from specbench.drafters.registry import Parts, build_drafter
from specbench.engines.engine import EngineRequest, EngineResult, RoundForward
from specbench.errors import UsageError
from specbench.model_spec import ModelSpec
from specbench.records import NO_DRAFTER, ModelIdentity


class BuiltinEngine:
    """A target and its drafters in this process."""

    name = "builtin"

    def __init__(self, target: Target, device: torch.device, *, dtype: str | None = None) -> None:
        self._device = device
        self._dtype = dtype
        self.tokenizer = _tokenizer(target.model)
        self._target, self._runner, self.notes = self._load(target.model)
        self.dtype = self._target.dtype
        self.eos_ids = eos_ids(self._target.model)
        self.identity = _identity(target.name, target.model, self._target, self.tokenizer)
        self._methods: dict[str, DraftingMethod] = {NO_DRAFTER: NoDrafter()}
        self._draft_models: dict[str, tuple[LoadedModel, StockRunner]] = {}

    def add_drafter(self, drafter: Drafter) -> ModelIdentity | None:
        find_method(drafter.method)  # a method that arrives later has files of another kind
        identity = None
        if drafter.model is not None:
            # Vocabularies are compared before the weights go anywhere near the device.
            tokenizer = _tokenizer(drafter.model)
            if renamed := require_same_vocabulary(self.tokenizer, tokenizer):
                self.notes += (
                    f"{drafter.name}: {len(renamed)} special tokens have other names than the "
                    f"target's, the first is id {renamed[0]}",
                )
        parts = Parts(target=self._runner, draft_runner=lambda: self._draft_runner(drafter))
        self._methods[drafter.name] = build_drafter(drafter.method, parts, dict(drafter.parameters))
        if drafter.model is not None:
            loaded, _ = self._draft_models[drafter.name]
            identity = _identity(drafter.name, drafter.model, loaded, tokenizer)
        return identity

    def remove_drafter(self, name: str) -> None:
        self._methods.pop(name, None)
        self._draft_models.pop(name, None)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def generate(self, request: EngineRequest, drafter: str, k: int) -> EngineResult:
        decoder = Decoder(
            self._runner,
            self._methods[drafter],
            eos_ids=self.eos_ids if request.stop_at_eos else (),
            clock=self._clock,
        )
        cpu_s = time.process_time()
        (result,) = decoder.decode(
            [
                Request(
                    prompt_ids=request.prompt_ids,
                    max_new_tokens=request.max_new_tokens,
                    seed=request.seed,
                )
            ],
            Sampler(request.sampling),
            k=k,
        )
        return EngineResult(
            output_ids=result.output_ids,
            hit_eos=result.output_ids[-1] in self.eos_ids,
            prefill_s=result.first_token_s - result.started_s,
            ttft_s=result.first_token_s - result.started_s,
            decode_s=result.finished_s - result.first_token_s,
            total_s=result.finished_s - result.started_s,
            cpu_s=time.process_time() - cpu_s,
            rounds=result.rounds,
        )

    def weights_bytes(self, drafter: str) -> int:
        draft = self._draft_models.get(drafter)
        return self._target.weights_bytes + (draft[0].weights_bytes if draft else 0)

    def kv_bytes_per_token(self, drafter: str) -> int:
        draft = self._draft_models.get(drafter)
        own = self._runner.cache.bytes_per_token
        return own + (draft[1].cache.bytes_per_token if draft else 0)

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        own = tuple(
            RoundForward(role="drafter", num_tokens=forward.num_tokens, times=forward.times)
            for forward in self._methods[drafter].forwards(k)
        )
        return (RoundForward(role="target", num_tokens=k + 1, times=1), *own)

    @torch.inference_mode()
    def forward_seconds(
        self, drafter: str, forward: RoundForward, context: int, num_samples: int
    ) -> tuple[float, ...]:
        is_target = forward.role == "target"
        runner = self._runner if is_target else self._draft_models[drafter][1]
        T = forward.num_tokens
        span = -(-(context + T) // SPAN_STEP) * SPAN_STEP
        runner.allocate(1, span)
        tokens_1T = torch.zeros(1, T, dtype=torch.long, device=self._device)
        positions_1T = torch.arange(context, context + T, device=self._device)[None]
        seconds = []
        for _ in range(num_samples):
            began_s = self._clock()
            runner.forward(tokens_1T, positions_1T, span)
            seconds.append(self._clock() - began_s)
        return tuple(seconds)

    def _draft_runner(self, drafter: Drafter) -> StockRunner:
        if drafter.model is None:
            raise UsageError(f"{drafter.name}: method {drafter.method} needs `model:`")
        loaded, runner, notes = self._load(drafter.model)
        self.notes += notes
        self._draft_models[drafter.name] = (loaded, runner)
        return runner

    def _load(self, spec: ModelSpec) -> tuple[LoadedModel, StockRunner, tuple[str, ...]]:
        loaded = load_model(
            ModelSource(
                location=spec.location,
                revision=spec.revision,
                dtype=self._dtype or spec.dtype,
                device_map=spec.device_map,
                quantization=spec.quantization,
                trust_remote_code=spec.trust_remote_code,
            ),
            self._device,
        )
        runner, notes = make_checked_runner(loaded.model)
        return loaded, runner, tuple(f"{spec.source}: {note}" for note in notes)

    @property
    def _clock(self) -> Callable[[], float]:
        return _cuda_clock if self._device.type == "cuda" else time.perf_counter


def _cuda_clock() -> float:
    """Seconds once the device has finished what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _tokenizer(spec: ModelSpec) -> Tokenizer:
    return Tokenizer(
        spec.location, revision=spec.revision, trust_remote_code=spec.trust_remote_code
    )


def _identity(
    name: str, spec: ModelSpec, loaded: LoadedModel, tokenizer: Tokenizer
) -> ModelIdentity:
    return ModelIdentity(
        name=name,
        source=spec.folder.name if spec.folder else spec.source,
        revision=loaded.revision,
        content_sha256=loaded.content_sha256,
        tokenizer_sha256=tokenizer.sha256,
        dtype=loaded.dtype,
        num_parameters=loaded.num_parameters,
    )
