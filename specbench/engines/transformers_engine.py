"""transformers' `generate` as an engine, over the same weights as the built-in decoder.

Rounds are reconstructed from the tokens that `generate` fed to the target and streamed.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.utils import is_sklearn_available

from specbench.decode.rows import num_shared
from specbench.decode.serving import length_to_stop
from specbench.engines.engine import InProcess, Load, ServedPass, Work
from specbench.engines.model_pool import ModelPool, identity
from specbench.engines.transformers import ASSISTED, BASELINES, COUNTERPARTS, LOOKUP, STATIC
from specbench.errors import CompatibilityError, ModelError, SpecbenchError, UsageError, first_line
from specbench.files.model_spec import ModelSpec
from specbench.forward.attention.stock import attend_by
from specbench.forward.runner import check_context, context_limit
from specbench.forward.state_layers import cache_bytes, cache_of
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.library_errors import device_errors_translated, model_failure
from specbench.models.library_output import quiet
from specbench.models.loading import LoadedModel
from specbench.models.tokenizer import require_same_vocabulary
from specbench.records import (
    ASSISTED_DEFAULT,
    NO_DRAFTER,
    EngineRecord,
    ModelIdentity,
    Request,
    Result,
    RoundLog,
    RoundTimeline,
)
from specbench.settings import TRANSFORMERS


class GenerationLog:
    """A streamer for transformers, which calls `put` with the prompt, then with each round's
    tokens.

    The tokens are on the host by then, so the device has finished them.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._put_s: list[float] = []
        self._num_put: list[int] = []
        self._fed: list[Tensor] = []

    def put(self, tokens: Tensor) -> None:
        self._put_s.append(time.perf_counter())
        self._num_put.append(tokens.numel())

    def end(self) -> None:
        """Part of the streamer protocol; does nothing."""

    def feed(self, _module: nn.Module, _args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        """A forward hook of the target that records its input tokens; the drafts come last."""
        self._fed.append(inputs["input_ids"])

    @property
    def first_token_s(self) -> float:
        """The `perf_counter` reading when the first token arrived."""
        return self._put_s[1]

    @property
    def last_token_s(self) -> float:
        return self._put_s[-1]

    @property
    def num_first(self) -> int:
        """The number of tokens that arrived with the first one."""
        return self._num_put[1]

    def rounds(self, output_ids: Sequence[int], k: int) -> RoundLog | None:
        """The rounds after the first token; None if one drafted more than K.

        A first verification that was merged with the prompt is split in two: its first token
        belongs to the prefill, and its other tokens form a round with one draft fewer and 0
        seconds. A round cut by EOS or the token limit counts the drafts in the text.
        """
        num_drafted, num_accepted, num_emitted, round_s = [], [], [], []
        at = 0
        for i, size in enumerate(self._num_put[1:]):
            emitted = output_ids[at : at + size]
            drafts = self._drafts(i)
            at += size
            if i == 0:
                emitted, drafts = emitted[1:], drafts[1:]
            if not emitted:
                continue
            num_drafted.append(len(drafts))
            num_accepted.append(num_shared(drafts, emitted))
            num_emitted.append(len(emitted))
            round_s.append(self._put_s[i + 1] - self._put_s[i] if i > 0 else 0.0)
        if max(num_drafted, default=0) > k:
            return None
        return RoundLog(
            num_drafted=tuple(num_drafted),
            num_accepted=tuple(num_accepted),
            num_emitted=tuple(num_emitted),
            round_s=tuple(round_s),
        )

    def _drafts(self, i: int) -> list[int]:
        if not self._fed:  # K = 0
            return []
        num_known = self._num_prompt_tokens if i == 0 else 1
        drafts: list[int] = self._fed[i][0, num_known:].tolist()
        return drafts


def timeline(results: Sequence[Result], k: int) -> RoundTimeline:
    """The rounds of requests served one after the other, without requests of unknown rounds."""
    at_s, seconds, num_emitted = [], [], []
    for result in results:
        now_s = result.first_token_s
        if result.rounds is None or now_s is None:
            continue
        for round_s, emitted in zip(result.rounds.round_s, result.rounds.num_emitted, strict=True):
            at_s.append(now_s)
            seconds.append(round_s)
            num_emitted.append(emitted)
            now_s += round_s
    ones = (1,) * len(at_s)
    return RoundTimeline(
        at_s=tuple(at_s),
        seconds=tuple(seconds),
        num_speculative_tokens=(k,) * len(at_s),
        num_live=ones,
        num_rows=ones,
        num_emitted=tuple(num_emitted),
    )


_MERGED = (
    f"{ASSISTED} and {LOOKUP} verify their first drafts together with the prompt: the time is "
    "part of ttft_s, and decode_s covers only the tokens after them"
)
_WHOLE_HISTORY = (
    "every turn of a conversation prefills the earlier turns again, which builtin keeps in its "
    "cache: this time is part of ttft_s and total_s"
)
_FEW_TOKENS = 4  # enough for a prefill, a forward that is compiled, and another run of it


def twin(model: Any) -> Any:
    """A module of the same architecture over the same tensors, with a separate config.

    A deep copy in which every parameter and buffer is the original object, including rotary
    frequencies and tied or quantized weights. Changes to the data of one affect both, so matrices
    may be fused before or after.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, tensors)


def make_peer(model: Any) -> Any:
    """A twin with transformers' default attention, and no generation settings.

    The checkpoint's settings (temperature, penalties) are left out: every engine uses only the
    settings of the request.
    """
    module = twin(model)
    # The sdpa kernel has no soft-capping: some versions raise an error, others ignore it.
    config = module.config.get_text_config()
    has_cap = getattr(config, "attn_logit_softcapping", None) is not None
    try:
        attend_by(module, "eager" if has_cap else "sdpa")
    except ValueError:  # attention sinks, for example
        attend_by(module, "eager")
    module.generation_config = GenerationConfig()
    return module


@contextmanager
def generate_errors_translated(module: Any, method: str) -> Iterator[None]:
    """Raise ModelError if transformers cannot run a method, unless the device is out of memory.

    transformers raises plain ValueErrors and RuntimeErrors, so bugs in its code are included.
    """
    try:
        with device_errors_translated():
            yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        is_plain = isinstance(error, ValueError | RuntimeError)
        if isinstance(error, SpecbenchError) or not (is_plain or model_failure(error)):
            raise
        raise ModelError(
            f"transformers cannot run {method} on {type(module).__name__}: {first_line(error)}; "
            "choose another model, or leave transformers out of --engine"
        ) from error


_ASSISTANT_KEYS = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)


class Assistant:
    """A draft model with its default drafting settings."""

    def __init__(self, spec: ModelSpec, loaded: LoadedModel) -> None:
        self.spec = spec
        self.loaded = loaded
        self._module = make_peer(loaded.model)
        self._defaults = _library_defaults(loaded.model.generation_config)

    def drafting(self, k: int) -> Any:
        """The module, set to draft exactly `k` tokens per round."""
        self._module.generation_config = GenerationConfig(
            num_assistant_tokens=k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        return self._module

    def drafting_by_default(self) -> Any:
        """The module with the library's default settings."""
        self._module.generation_config = copy.deepcopy(self._defaults)  # `generate` may adapt it
        return self._module

    @property
    def defaults_in_words(self) -> str:
        adapted = ", a threshold that scikit-learn adapts" if is_sklearn_available() else ""
        return (
            f"drafts up to {self._defaults.num_assistant_tokens} tokens per round "
            f"({self._defaults.num_assistant_tokens_schedule}), until one is less likely than "
            f"{self._defaults.assistant_confidence_threshold:g}{adapted}"
        )


def require_same_width(target: LoadedModel, draft: LoadedModel, name: str) -> None:
    """Raise CompatibilityError unless the configs have the same vocab_size, padding included.

    transformers treats unequal sizes as different tokenizers.
    """
    target_width, draft_width = (
        loaded.model.config.get_text_config().vocab_size for loaded in (target, draft)
    )
    if target_width != draft_width:
        raise CompatibilityError(
            f"{name}: transformers drafts only between models of equal vocab_size; the target "
            f"has {target_width}, the draft model {draft_width}. Use --engine builtin, or a draft "
            "model of the target's size"
        )


def _library_defaults(checkpoint: GenerationConfig) -> GenerationConfig:
    values = {key: getattr(checkpoint, key) for key in _ASSISTANT_KEYS}
    # The defaults that replace None have no public name.
    library = GenerationConfig._get_default_generation_params()
    return GenerationConfig(
        **{key: library[key] if value is None else value for key, value in values.items()}
    )


class StopAtString:
    """A stopping criterion of `generate`: a round may also emit tokens after the stop string."""

    def __init__(self, request: Request, text: Callable[[Sequence[int]], str]) -> None:
        self._stop, self._num_prompt_tokens = request.settings.stop, len(request.prompt_ids)
        self._text = text
        self._num_seen = 0
        self.length: int | None = None  # tokens of the output; None: no stop string so far

    def __call__(self, ids_1T: Tensor, _scores: object, **_: object) -> Tensor:
        output_ids = ids_1T[0, self._num_prompt_tokens :].tolist()
        num_new, self._num_seen = len(output_ids) - self._num_seen, len(output_ids)
        self.length = length_to_stop(output_ids, num_new, self._stop, self._text)
        return torch.full((1,), self.length is not None, device=ids_1T.device)


class TransformersEngine(InProcess):
    """Runs `generate`, with or without an assistant, in this process.

    Its modules are twins of the loaded ones (`twin`), so attention and settings of one do not
    affect the other. It decodes one request at a time. The model forwards of these weights are
    measured in the built-in decoder.
    """

    name = TRANSFORMERS
    baseline = Work(drafter=NO_DRAFTER, method=BASELINES[0], k=0)

    def __init__(self, target: Target, pool: ModelPool) -> None:
        self._pool = pool
        self._target = pool.load(target.model)
        self.tokenizer = pool.tokenizer(target.model)
        self.eos_ids = self._target.eos_ids
        self.identity = identity(target.name, target.model, self._target, self.tokenizer)
        self._module = make_peer(self._target.model)
        self.context = context_limit(self._module.config.get_text_config())
        self._static_tokens = 0  # in the longest request that generate_static was compiled for
        self._assistants: dict[str, Assistant] = {}
        self._ngrams: dict[str, int | None] = {}  # longest suffix to look up; None: the default
        self.record = EngineRecord(
            target=target.name,
            engine=self.name,
            forward="stock",
            attention=self._module.config.get_text_config()._attn_implementation,
            notes=(_MERGED, _WHOLE_HISTORY),
        )

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        """Load the drafter; CompatibilityError if transformers cannot pair the two models."""
        if drafter.lossy is not None:
            raise UsageError(
                f"{drafter.name}: only the built-in decoder has the rule {drafter.lossy}; "
                "use --engine builtin, or a drafter without `lossy`"
            )
        if drafter.method not in COUNTERPARTS:
            raise UsageError(
                f"{drafter.name}: transformers has no method like {drafter.method}, only like: "
                f"{', '.join(COUNTERPARTS)}"
            )
        if drafter.model is None:
            self._add_lookup(drafter)
            return None
        # Vocabularies are compared before the weights are loaded.
        tokenizer = self._pool.tokenizer(drafter.model)
        require_same_vocabulary(self.tokenizer, tokenizer)
        loaded = self._pool.load(drafter.model, "draft")
        try:
            require_same_width(self._target, loaded, drafter.name)
        except CompatibilityError:
            self._pool.release(drafter.model)
            raise
        assistant = Assistant(drafter.model, loaded)
        self._assistants[drafter.name] = assistant
        self._note(f"{drafter.name}: {ASSISTED_DEFAULT} {assistant.defaults_in_words}")
        return identity(drafter.name, drafter.model, loaded, tokenizer)

    def remove_drafter(self, name: str) -> None:
        self._ngrams.pop(name, None)
        if name in self._assistants:
            self._pool.release(self._assistants.pop(name).spec)

    @torch.inference_mode()  # less overhead than the no_grad of `generate`
    def generate(self, request: Request, work: Work) -> Result:
        """Decode one request; ModelError if it is too long or transformers raises an error.

        If drafts are verified together with the prompt, the first n tokens arrive together. Their
        time is part of ttft_s, but not of decode_s, which covers the other tokens. total_s includes
        everything.
        """
        _require_known(work)
        self._prepare([request], work)
        settings = self._settings(request, work)
        ids_1T = torch.tensor([request.prompt_ids], device=self._module.device)
        log = GenerationLog(num_prompt_tokens=len(request.prompt_ids))
        stop = StopAtString(request, self.tokenizer.text)
        with (
            _seeded(request.seed, self._module.device),
            quiet(),  # transformers warns about how it calls the assistant itself
            self._log_inputs(log, work),
            generate_errors_translated(self._module, work.method),
        ):
            if self._module.device.type == "cuda":
                torch.cuda.synchronize()
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            text_1T = self._module.generate(
                ids_1T,
                attention_mask=torch.ones_like(ids_1T),
                generation_config=settings,
                assistant_model=self._assistant_model(work),
                stopping_criteria=[stop] if request.stop_at_eos and request.settings.stop else None,
                streamer=log,
            )
            output_ids = tuple(text_1T[0].tolist()[len(request.prompt_ids) :][: stop.length])
            total_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - cpu_s
        ttft_s = log.first_token_s - began_s
        return Result(
            output_ids=output_ids,
            finish_reason="eos" if stop.length or output_ids[-1] in self.eos_ids else "length",
            prefill_s=ttft_s if work.k == 0 else None,
            ttft_s=ttft_s,
            decode_s=log.last_token_s - log.first_token_s,
            total_s=total_s,
            cpu_s=cpu_s,
            rounds=log.rounds(output_ids, work.k),
            num_first=min(log.num_first, len(output_ids)),
        )

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        if load.concurrency != 1 or load.request_rate is not None:
            raise UsageError(
                "transformers drafts for one request at a time; run it with --concurrency 1 and "
                "without --request-rate, or leave it out of --engine"
            )
        self._prepare(requests, work)
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        results = []
        for request in requests:
            arrived_s = time.perf_counter() - began_s
            results.append(replace(self.generate(request, work), arrived_s=arrived_s))
        return ServedPass(
            results=tuple(results),
            seconds=time.perf_counter() - began_s,
            rounds=timeline(results, work.k),
            cpu_s=time.thread_time() - cpu_s,
        )

    def weights_bytes(self, drafter: str) -> int:
        return sum(loaded.weights_bytes for loaded in set(self._loaded(drafter)))

    def kv_bytes_per_token(self, drafter: str) -> int:
        models = (loaded.model for loaded in self._loaded(drafter))
        return sum(_kv_bytes_per_token(make_peer(model)) for model in models)

    def state_bytes_per_row(self, drafter: str) -> int:  # noqa: ARG002
        """0: transformers' recurrent states are not counted."""
        return 0

    def _add_lookup(self, drafter: DrafterSpec) -> None:
        longest = drafter.parameters.get("max_ngram")
        self._ngrams[drafter.name] = longest if isinstance(longest, int) else None
        if "min_ngram" in drafter.parameters:
            self._note(f"{drafter.name}: {LOOKUP} has no min_ngram and looks up single tokens")

    def _note(self, note: str) -> None:
        self.record = replace(self.record, notes=(*self.record.notes, note))

    def _prepare(self, requests: Sequence[Request], work: Work) -> None:
        """Raise ModelError if a request is too long; compile for a longer static cache, untimed."""
        longest = max(requests, key=lambda request: request.num_tokens)
        num_tokens = longest.num_tokens
        check_context(self.context, num_tokens)
        if work.method == STATIC and num_tokens > self._static_tokens:
            self._static_tokens = num_tokens
            num_new = min(_FEW_TOKENS, longest.max_new_tokens)
            self.generate(replace(longest, max_new_tokens=num_new, stop_at_eos=False), work)

    def _assistant_model(self, work: Work) -> Any:
        """The assistant with its settings for `work`; None for a method without an assistant."""
        if work.method == ASSISTED:
            return self._assistants[work.drafter].drafting(work.k)
        if work.method == ASSISTED_DEFAULT:
            return self._assistants[work.drafter].drafting_by_default()
        return None

    def _settings(self, request: Request, work: Work) -> GenerationConfig:
        sampling = request.sampling
        settings = GenerationConfig(max_new_tokens=request.max_new_tokens, do_sample=False)
        if sampling.temperature > 0:
            settings.do_sample = True
            settings.temperature = sampling.temperature
            settings.top_k = sampling.top_k
            settings.top_p = sampling.top_p
        if request.stop_at_eos and self.eos_ids:
            settings.eos_token_id = list(self.eos_ids)
            settings.pad_token_id = self.eos_ids[0]  # unused with one row; avoids a warning
        if work.method == STATIC:
            settings.cache_implementation = "static"
            settings.max_cache_len = self._static_tokens
        elif work.method == LOOKUP:
            settings.prompt_lookup_num_tokens = work.k
            settings.max_matching_ngram_size = self._ngrams[work.drafter]
        return settings

    @contextmanager
    def _log_inputs(self, log: GenerationLog, work: Work) -> Iterator[None]:
        """Log the target's input tokens, which include the drafts."""
        if work.k == 0:  # no drafts, and a hook would break up a compiled forward
            yield
            return
        hook = self._module.register_forward_pre_hook(log.feed, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _loaded(self, drafter: str) -> tuple[LoadedModel, ...]:
        assistant = self._assistants.get(drafter)
        return (self._target,) if assistant is None else (self._target, assistant.loaded)


def _require_known(work: Work) -> None:
    if work.adaptive:
        raise UsageError("transformers has no -k auto; give a K, or use --engine builtin")
    if work.method not in (sum(COUNTERPARTS.values(), ()) if work.k > 0 else BASELINES):
        raise ValueError(f"transformers has no method {work.method} at K={work.k}")


@torch.inference_mode()
def _kv_bytes_per_token(model: Any) -> int:
    """Bytes of the library's cache per token, summed over layers of possibly different sizes."""
    token_11 = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    return cache_bytes(cache_of(model(input_ids=token_11, use_cache=True)))[0]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random generators inside the block, and restore them afterwards."""
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        yield
