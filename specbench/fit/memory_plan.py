"""Memory of a target and a drafter, and lower bounds on the time of a step and a round.

No model is loaded. Workspace is counted as forward/workspace.py, state.py, sampling.py and rows.py
allocate it. Letters: B rows, T tokens per row, S slots, V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specbench.files.config import is_hybrid
from specbench.files.model import DTYPE_BYTES, ModelFiles, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.weights import (
    Weights,
    dtype_note,
    head_weights,
    model_weights,
    planned_dtype,
    sizes_of,
    text_tensors,
)
from specbench.footprint import (
    KEPT_TOKENS,
    PREFILL_CHUNK,
    STATES_BESIDE_DRAFTS,
    Sizes,
    row_slots,
    rows_prefilled_together,
)
from specbench.inputs.pairing import TARGET_ONLY, DrafterSpec
from specbench.methods import METHODS, BufferSizes, RoundShape, find_method
from specbench.stats.rounds import bytes_per_forward, roofline_s

_PROBABILITY = 4  # bytes of a probability
_TOKEN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """The sizes of a model's layers on which temporary tensors depend; `size`: bytes per number."""

    sizes: Sizes
    vocab_size: int
    size: int
    mirrored: bool  # the hidden state is kept twice, as forward/fused_layers.py does on a CPU

    @property
    def shared_bytes(self) -> int:
        """Bytes of the workspace that forward passes of few tokens share."""
        return KEPT_TOKENS * sum(self.sizes.widths(mirrored=self.mirrored)) * self.size

    def rotary_bytes(self, capacity: int) -> int:
        """Bytes of the table of sines and cosines by position."""
        return capacity * 2 * self.sizes.head * self.size

    def forward_bytes(self, rows: int, tokens: int, span: int, num_logits: int) -> int:
        """Peak bytes of temporary tensors in a forward pass of B x T tokens.

        `num_logits` is the tokens per row whose logits are computed; a `span` of 0 needs no mask.
        """
        sizes, num_tokens = self.sizes, rows * tokens
        query, kv = sizes.query_heads * sizes.head, sizes.kv_heads * sizes.head
        made = (1 + self.mirrored) * sizes.hidden + max(query + kv, query, sizes.mlp)
        scratch = sum(sizes.widths(mirrored=self.mirrored)) if num_tokens > KEPT_TOKENS else 0
        mask = rows * sizes.group * tokens * span
        logits = rows * num_logits * self.vocab_size
        return (num_tokens * (made + scratch) + mask + logits) * self.size

    def prefill_bytes(self, rows: int, context: int) -> int:
        """Peak bytes of prefilling one chunk of all prompts that are prefilled together."""
        num_rows = min(rows, rows_prefilled_together(self.vocab_size))
        return self.forward_bytes(num_rows, min(PREFILL_CHUNK, context), 0, 1)


def state_bytes(rows: int, capacity: int) -> int:
    """Bytes of the prompt and output tokens of every row, by position."""
    return rows * capacity * _TOKEN


def sampling_bytes(rows: int, num_drafts: int, vocab_size: int, *, draws: bool) -> int:
    """Bytes of a sampled round's probabilities: scores, noise and p per node, and the drafts' q.

    At temperature 0 there are none: a chain is compared with the likeliest tokens.
    """
    nodes = rows * (num_drafts + 1) * vocab_size
    of_drafts = 2 * rows * num_drafts * vocab_size if draws else 0
    noise = 2 * _TOKEN * nodes  # the hash is mixed in 64 bits
    return (3 * nodes + of_drafts) * _PROBABILITY + noise


class LowerBound(NamedTuple):
    """The minimum seconds of a baseline step and of a round at K."""

    step_s: float
    round_s: float


CountWeights = Callable[
    [ModelFiles, str], Weights | None
]  # for an architecture that no rule here covers
CUBLAS_BYTES = 2**25  # its workspace on a Hopper GPU, less on older ones
STEP = 64  # tokens of context: the capacity of rows grows in steps of this size


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentSpec:
    """The device and settings that the pair will run with; it may use `memory_bytes`."""

    device: Literal["cpu", "cuda"]
    memory_bytes: int | None = None
    bytes_per_s: float | None = None
    compute_capability: tuple[int, int] | None = None  # of an NVIDIA GPU; None: unknown
    gpu: str | None = None  # its name
    dtype: str | None = None  # for both models; None: the dtype that each would be loaded in
    concurrency: int = 1
    context: int = 2048  # tokens of each row's prompt and answer
    num_speculative_tokens: int = 4
    temperature: float = 0.0

    def free_for(self, *models: ModelSpec | None) -> int | None:
        """Bytes that these models may use; None: unknown, as of a model on several cards."""
        is_spread = self.device == "cuda" and any(spec and spec.is_spread for spec in models)
        return None if is_spread else self.memory_bytes

    def dtype_of(self, model: ModelFiles) -> str:
        """The dtype that a model will be loaded in."""
        return planned_dtype(model, self.device, self.dtype, self.compute_capability)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Peak bytes by purpose, at one context length."""

    weights: int
    kv_cache: int
    rest: int  # state, workspace, logits, distributions

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.rest


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The plan of a drafter with its target; with the drafter `none`, of only the target.

    A number is None if files do not show it. `max_context` is the longest context of a row at the
    plan's concurrency, capped at the target's own limit; 0 if not even the weights fit.
    """

    drafter: str
    method: str
    dtype: str
    target: Weights
    draft: Weights | None
    num_drafts: int
    peak: Peak
    headroom_bytes: int | None
    max_context: int | None
    step_s: float | None  # minimum seconds of a baseline step: bytes to read / bandwidth
    round_s: float | None  # minimum seconds of a round at K
    notes: tuple[str, ...] = ()
    is_most: bool = False  # whether `peak` is an upper bound

    @property
    def fits(self) -> bool | None:
        """None if it is unknown, also of an upper bound that exceeds the memory."""
        room = self.headroom_bytes
        return None if room is None or (self.is_most and room < 0) else room >= 0

    @property
    def break_even_length(self) -> float | None:
        """Tokens per round that pay for the bytes that it reads; real rounds need more."""
        if not self.step_s or self.round_s is None:
            return None
        return self.round_s / self.step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    weights: Weights
    layers: Layers | None = None


def plan_target(
    target: ModelFiles, setup: DeploymentSpec, count: CountWeights | None = None
) -> MemoryPlan | None:
    """The plan of a target without a drafter; None if its weights cannot be counted. ModelError."""
    return plan_pair(target, TARGET_ONLY, setup, count)


def plan_pair(
    target: ModelFiles,
    drafter: DrafterSpec,
    setup: DeploymentSpec,
    count: CountWeights | None = None,
) -> MemoryPlan | None:
    """The plan of a drafter with its target; None if weights cannot be counted. ModelError."""
    model = _model(target, setup, count)
    if model is None:
        return None
    head = None if drafter is TARGET_ONLY else find_method(drafter.method).head
    draft: _Model | None = None
    if drafter.model is not None or head:
        draft_files = target if drafter.model is None else open_model(drafter.model)
        dtype = setup.dtype_of(target)
        if head:
            weights = head_weights(target, draft_files, head, dtype)
            if weights is not None:
                layers = None
                if weights.kv_bytes_per_token:  # else it has no layers
                    layers = _layers(draft_files, target.vocab_size, setup, dtype)
                draft = _Model(weights=weights, layers=layers)
        else:
            draft = _model(draft_files, setup, count)
        if draft is None:
            return None
    return _plan(target, model, draft, drafter, setup)


def _model(files: ModelFiles, setup: DeploymentSpec, count: CountWeights | None) -> _Model | None:
    dtype = setup.dtype_of(files)
    weights = model_weights(files, dtype)
    if weights is None or is_hybrid(files.field):
        # In a hybrid, some layers keep keys and others a state: only building it shows which.
        weights = _with_kept(weights, count(files, dtype) if count else None)
    layers = None if weights is None else _layers(files, files.vocab_size, setup, dtype)
    if weights is None or layers is None:
        return None
    return _Model(weights=weights, layers=layers)


def _layers(files: ModelFiles, vocab_size: int, setup: DeploymentSpec, dtype: str) -> Layers | None:
    sizes = sizes_of(files)
    if sizes is None:
        return None
    return Layers(
        sizes=sizes,
        vocab_size=vocab_size,
        size=DTYPE_BYTES[dtype],
        mirrored=setup.device == "cpu",
    )


def _with_kept(weights: Weights | None, built: Weights | None) -> Weights | None:
    """The weights as counted from files, with the KV and state bytes of the built model."""
    if weights is None or built is None:
        return built
    kv, state = built.kv_bytes_per_token, built.state_bytes
    return replace(weights, kv_bytes_per_token=kv, state_bytes=state)


def _plan(
    files: ModelFiles,
    target: _Model,
    draft: _Model | None,
    drafter: DrafterSpec,
    setup: DeploymentSpec,
) -> MemoryPlan:
    method = METHODS.get(drafter.method)  # None: the target only
    k = setup.num_speculative_tokens if method else 0
    shape = method.shape(drafter.parameters, k) if method else RoundShape(0, 0)

    def peak(context: int) -> Peak:
        return _peak(target, draft, drafter, shape, setup, context, k)

    planned = peak(setup.context)
    memory, limit = setup.free_for(files.spec, drafter.model), files.longest_context
    draft_weights = draft.weights if draft else None
    bound = _lower_bound(files, target.weights, draft_weights, drafter, shape, setup)
    return MemoryPlan(
        drafter=drafter.name,
        method=drafter.method,
        dtype=setup.dtype_of(files),
        target=target.weights,
        draft=draft_weights,
        num_drafts=shape.num_drafts,
        peak=planned,
        headroom_bytes=None if memory is None else memory - planned.total,
        max_context=None if memory is None else longest_that_fits(peak, memory, limit),
        step_s=bound.step_s if bound else None,
        round_s=bound.round_s if bound and k else None,
        notes=tuple(_notes(files, target, draft, drafter, setup)),
    )


def _lower_bound(
    files: ModelFiles,
    target: Weights,
    draft: Weights | None,
    drafter: DrafterSpec,
    shape: RoundShape,
    setup: DeploymentSpec,
) -> LowerBound | None:
    """Lower bounds; None if the bandwidth is unknown. Verifying a few tokens reads the same bytes
    as one, so it costs one step; of a mixture of experts it reads more.

    Source: the memory side of the roofline (Williams et al. 2009).
    """
    bandwidth = setup.bytes_per_s
    if not bandwidth:
        return None

    def seconds(read: int, kv: int) -> float:
        num_bytes = bytes_per_forward(read, setup.concurrency, setup.context, kv)
        return roofline_s(num_bytes, bandwidth)

    size = DTYPE_BYTES[setup.dtype_of(files)]
    head_bytes = files.vocab_size * files.hidden_size * size
    step_s, forward_s = seconds(target.read_bytes, target.kv_bytes_per_token), 0.0
    method = METHODS.get(drafter.method)
    if draft is not None:
        is_shared = method and method.head and method.head.reads_target_head
        shared = head_bytes if is_shared else 0
        forward_s = seconds(draft.read_bytes + shared, draft.kv_bytes_per_token)
    elif method and method.num_target_layers:
        settings = method.settings(drafter.parameters)
        share = method.num_target_layers(settings, files.num_layers) / files.num_layers
        read_bytes = (target.read_bytes - head_bytes) * share + head_bytes
        forward_s = seconds(round(read_bytes), round(target.kv_bytes_per_token * share))
    return LowerBound(step_s, step_s + (shape.num_forwards - shape.num_small) * forward_s)


def _peak(
    target: _Model,
    draft: _Model | None,
    drafter: DrafterSpec,
    shape: RoundShape,
    setup: DeploymentSpec,
    context: int,
    k: int,
) -> Peak:
    method = METHODS.get(drafter.method)
    rows, weights = setup.concurrency, target.weights
    capacity = row_slots(context + shape.num_drafts + 1, setup.device)
    models = [target, *([draft] if draft else [])]
    kv = rows * capacity * weights.kv_bytes_per_token
    if draft is not None:
        kv += rows * (capacity + shape.spare_slots) * draft.weights.kv_bytes_per_token
    # Two more than those of rows: one for rows that are not fed, one for the beginnings of texts.
    num_states = rows * (shape.num_drafts + STATES_BESIDE_DRAFTS) + 2
    kv += num_states * sum(model.weights.state_bytes for model in models)
    layers = [model.layers for model in models if model.layers is not None]
    fixed = sum(la.shared_bytes + la.rotary_bytes(capacity) for la in layers)
    of_target = layers[0]
    of_round = of_target.forward_bytes(rows, shape.num_drafts + 1, capacity, shape.num_drafts + 1)
    if k and len(layers) > 1:
        of_round += layers[1].forward_bytes(rows, 2, capacity, 2)
    if setup.temperature > 0:
        draws = k > 0 and method is not None and method.draws_with(drafter.parameters)
        of_round += sampling_bytes(rows, shape.num_drafts, of_target.vocab_size, draws=draws)
    prefill = max(la.prefill_bytes(rows, context) for la in layers)
    # A captured round keeps its tensors as long as its graph exists.
    is_gpu = setup.device == "cuda"
    busy = prefill + of_round + CUBLAS_BYTES if is_gpu else max(prefill, of_round)
    buffers = 0
    if method is not None:
        hidden_bytes = of_target.sizes.hidden * of_target.size
        sizes = BufferSizes(rows, capacity, of_target.vocab_size, hidden_bytes)
        buffers = method.buffer_bytes(method.settings(drafter.parameters), sizes)
    return Peak(
        weights=sum(model.weights.nbytes for model in models),
        kv_cache=kv,
        rest=state_bytes(rows, capacity) + fixed + busy + buffers,
    )


def longest_that_fits(peak: Callable[[int], Peak], memory: int, limit: int | None) -> int:
    """The longest context whose peak fits, a multiple of STEP; all rows have the same length."""
    most = (limit or 2**20) // STEP
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if peak(middle * STEP).total <= memory:
            low = middle
        else:
            high = middle - 1
    return low * STEP


def _notes(
    files: ModelFiles,
    target: _Model,
    draft: _Model | None,
    drafter: DrafterSpec,
    setup: DeploymentSpec,
) -> Iterator[str]:
    if note := dtype_note(files, setup.dtype, setup.compute_capability):
        yield note
    for name, model in (("target", target), ("draft", draft)):
        if model is not None and not model.weights.is_exact:
            owner = f"{drafter.name}'s" if name == "draft" else "the target's"
            yield f"{owner} weights are packed: their bytes are an estimate"
    _, dropped = text_tensors(files)
    if dropped:
        yield f"only the target's text part is planned and runs; left out: {', '.join(dropped)}"
