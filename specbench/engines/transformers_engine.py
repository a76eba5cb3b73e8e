"""transformers' own generation as an engine: the peer everyone has, over the same weights."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import is_sklearn_available

from specbench.engines.engine import InProcess, Load, ServedPass, Work
from specbench.engines.expected_errors import device_errors_translated
from specbench.engines.generation_log import GenerationLog, timeline
from specbench.engines.model_pool import ModelPool, identity
from specbench.engines.transformers import ASSISTED, BASELINES, COUNTERPARTS, LOOKUP, STATIC
from specbench.errors import CompatibilityError, ModelError, SpecbenchError, UsageError, first_line
from specbench.files.model_spec import ModelSpec
from specbench.forward.attention.stock import attend_by
from specbench.forward.limits import check_context, context_limit
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.library_errors import model_failure
from specbench.models.library_log import quiet
from specbench.models.loading import LoadedModel
from specbench.models.tokenizer import require_same_vocabulary
from specbench.records import (
    ASSISTED_DEFAULT,
    NO_DRAFTER,
    EngineRecord,
    ModelIdentity,
    Request,
    Result,
)
from specbench.settings import TRANSFORMERS

_MERGED = (
    f"{ASSISTED} and {LOOKUP} verify their first drafts together with the prompt: the time is "
    "part of ttft_s, and the tokens cost no decoding time"
)
_WHOLE_HISTORY = (
    "every turn of a conversation prefills the turns before it again, which builtin keeps: "
    "that is in ttft_s and total_s"
)
_FEW_TOKENS = 4  # a prefill and enough forwards to compile the next and run it again


def twin(model: Any) -> Any:
    """A module of the same architecture over the same tensors, with a config of its own.

    A deep copy that finds every parameter and buffer already copied, rotary frequencies and
    tied or quantized weights included. They are the same objects, so what is done to the data
    of one is done to both: matrices may be fused before or after.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, tensors)


def make_peer(model: Any) -> Any:
    """A twin with the attention that a user of transformers gets, and no generation settings.

    Those of the checkpoint (temperature, penalties) are left out: every engine decodes what the
    request asks for.
    """
    module = twin(model)
    # The kernel knows no soft-capping: some versions refuse it there, others forget it.
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
    """ModelError where transformers refuses or cannot run a method; lack of memory stays as it is.

    Its refusals have no class of their own, so errors of its code are among them.
    """
    try:
        with device_errors_translated():
            yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        is_refusal = isinstance(error, ValueError | RuntimeError)
        if isinstance(error, SpecbenchError) or not (is_refusal or model_failure(error)):
            raise
        raise ModelError(
            f"transformers cannot run {method} on {type(module).__name__}: {first_line(error)}; "
            "choose another model, or leave transformers out of --engine"
        ) from error


_KEYS = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)


class Assistant:
    """A draft model and how it drafts when nothing is asked for."""

    def __init__(self, spec: ModelSpec, loaded: LoadedModel) -> None:
        self.spec = spec
        self.loaded = loaded
        self._module = make_peer(loaded.model)
        self._defaults = _library_defaults(loaded.model.generation_config)

    def drafting(self, k: int) -> Any:
        """Its module, told to draft exactly `k` tokens a round."""
        self._module.generation_config = GenerationConfig(
            num_assistant_tokens=k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        return self._module

    def drafting_by_default(self) -> Any:
        """Its module, left to the library's own settings."""
        self._module.generation_config = self._defaults
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
    """CompatibilityError unless the configs, padding included, name equally many tokens.

    transformers takes another number for another tokenizer.
    """
    target_width, draft_width = (
        loaded.model.config.get_text_config().vocab_size for loaded in (target, draft)
    )
    if target_width != draft_width:
        raise CompatibilityError(
            f"{name}: transformers drafts only between models of equal vocab_size; the target "
            f"has {target_width}, the draft {draft_width}. The engine builtin takes this pair; "
            "for both engines choose a draft of the target's size"
        )


def _library_defaults(checkpoint: GenerationConfig) -> GenerationConfig:
    own = {key: getattr(checkpoint, key) for key in _KEYS}
    # No public name gives the numbers that stand in for None.
    library = GenerationConfig._get_default_generation_params()
    return GenerationConfig(
        **{key: library[key] if value is None else value for key, value in own.items()}
    )


class TransformersEngine(InProcess):
    """`generate`, alone or with an assistant, in this process.

    Its modules are twins of the loaded ones (`twin`), so neither side's attention or
    settings reach the other. One request at a time. The model forwards of these weights are
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
        self._static_tokens = 0  # the longest request that generate_static was made ready for
        self._assistants: dict[str, Assistant] = {}
        self._ngrams: dict[str, int | None] = {}  # longest suffix looked up; None: the library's
        self.record = EngineRecord(
            target=target.name,
            engine=self.name,
            forward="stock",
            attention=self._module.config.get_text_config()._attn_implementation,
            notes=(_MERGED, _WHOLE_HISTORY),
        )

    def add_drafter(self, drafter: DrafterSpec) -> ModelIdentity | None:
        """As in the protocol; CompatibilityError where transformers cannot pair the two."""
        if drafter.lossy is not None:
            raise UsageError(
                f"{drafter.name}: the rule {drafter.lossy} is the built-in decoder's; "
                "use --engine builtin, or a drafter without `lossy`"
            )
        if drafter.method not in COUNTERPARTS:
            raise UsageError(
                f"{drafter.name}: transformers has nothing like method {drafter.method}; it has "
                f"a counterpart of: {', '.join(COUNTERPARTS)}"
            )
        if drafter.model is None:
            self._add_lookup(drafter)
            return None
        # Vocabularies are compared before the weights go anywhere near the device.
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

    @torch.inference_mode()  # cheaper than the no_grad of its own
    def generate(self, request: Request, work: Work) -> Result:
        """Decode one request alone; ModelError where it is too long or transformers refuses.

        Where drafts are verified together with the prompt, the first token comes with others:
        ttft_s is when they all are there, and decode_s, first token to last, does not contain
        the time of those n - 1 further ones. That flatters the peer's decode_s by a round at
        most; total_s holds everything.
        """
        _require_known(work)
        self._make_room([request], work)
        settings = self._settings(request, work)
        ids_1T = torch.tensor([request.prompt_ids], device=self._module.device)
        log = GenerationLog(num_prompt_tokens=len(request.prompt_ids))
        with (
            _seeded(request.seed, self._module.device),
            quiet(),  # it warns about the way in which it calls its own assistant
            self._fed_to(log, work),
            generate_errors_translated(self._module, work.method),
        ):
            if self._module.device.type == "cuda":
                torch.cuda.synchronize()
            began_s, cpu_s = time.perf_counter(), time.process_time()
            text_1T = self._module.generate(
                ids_1T,
                attention_mask=torch.ones_like(ids_1T),
                generation_config=settings,
                assistant_model=self._drafting(work),
                streamer=log,
            )
            output_ids = tuple(text_1T[0].tolist()[len(request.prompt_ids) :])
            total_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        ttft_s = log.first_token_s - began_s
        return Result(
            output_ids=output_ids,
            finish_reason="eos" if output_ids[-1] in self.eos_ids else "length",
            prefill_s=ttft_s if work.k == 0 else None,
            ttft_s=ttft_s,
            decode_s=log.last_token_s - log.first_token_s,
            total_s=total_s,
            cpu_s=cpu_s,
            rounds=log.rounds(output_ids, work.k),
        )

    def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
        if load.concurrency != 1 or load.request_rate is not None:
            raise UsageError(
                "transformers drafts for one request at a time; run it with --concurrency 1 and "
                "without --request-rate, or leave it out of --engine"
            )
        self._make_room(requests, work)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        results = []
        for request in requests:
            arrived_s = time.perf_counter() - began_s
            results.append(replace(self.generate(request, work), arrived_s=arrived_s))
        return ServedPass(
            results=tuple(results),
            seconds=time.perf_counter() - began_s,
            rounds=timeline(results, work.k),
            cpu_s=time.process_time() - cpu_s,
        )

    def weights_bytes(self, drafter: str) -> int:
        return sum(loaded.weights_bytes for loaded in set(self._loaded(drafter)))

    def kv_bytes_per_token(self, drafter: str) -> int:
        return sum(_kv_bytes_per_token(make_peer(one.model)) for one in self._loaded(drafter))

    def state_bytes_per_row(self, drafter: str) -> int:  # noqa: ARG002
        """Its states are transformers' own, and nobody counts them."""
        return 0

    def _add_lookup(self, drafter: DrafterSpec) -> None:
        longest = drafter.parameters.get("max_ngram")
        self._ngrams[drafter.name] = longest if isinstance(longest, int) else None
        if "min_ngram" in drafter.parameters:
            self._note(f"{drafter.name}: {LOOKUP} has no min_ngram and looks up single tokens")

    def _note(self, note: str) -> None:
        self.record = replace(self.record, notes=(*self.record.notes, note))

    def _make_room(self, requests: Sequence[Request], work: Work) -> None:
        """Refuse what is too long; compile for a longer static cache now, not under the clock."""
        longest = max(requests, key=lambda request: request.num_tokens)
        num_tokens = longest.num_tokens
        check_context(self.context, num_tokens)
        if work.method == STATIC and num_tokens > self._static_tokens:
            self._static_tokens = num_tokens
            few = min(_FEW_TOKENS, longest.max_new_tokens)
            self.generate(replace(longest, max_new_tokens=few, stop_at_eos=False), work)

    def _drafting(self, work: Work) -> Any:
        """The module that drafts, told how; None for a method without one."""
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
            settings.pad_token_id = self.eos_ids[0]  # unused by one row; unset, it is warned about
        if work.method == STATIC:
            settings.cache_implementation = "static"
            settings.max_cache_len = self._static_tokens
        elif work.method == LOOKUP:
            settings.prompt_lookup_num_tokens = work.k
            settings.max_matching_ngram_size = self._ngrams[work.drafter]
        return settings

    @contextmanager
    def _fed_to(self, log: GenerationLog, work: Work) -> Iterator[None]:
        """Log what the target is fed: the one place where the drafts can be seen."""
        if work.k == 0:  # nothing is drafted, and a hook would break up a compiled forward
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
        raise UsageError("transformers has no -k auto; name its K, or use engine builtin")
    if work.method not in (sum(COUNTERPARTS.values(), ()) if work.k > 0 else BASELINES):
        raise ValueError(f"transformers has no method {work.method} at K = {work.k}")


@torch.inference_mode()
def _kv_bytes_per_token(model: Any) -> int:
    """What the library's own cache holds for a token: sizes may differ from layer to layer."""
    token_11 = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    cache = model(input_ids=token_11, use_cache=True).past_key_values
    kept = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(tensor.nbytes for tensor in kept if isinstance(tensor, torch.Tensor))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The generators start from `seed` and are then put back as the caller had them."""
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        yield
