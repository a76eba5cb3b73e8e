"""A fused layer's steps by torch's compiler: one program for all layers, weights are arguments.

Each of the two pieces around attention is compiled once for a number of tokens, and compared with
the steps that it stands for before it runs. Shape suffixes: N tokens, F hidden size, D head size,
M width of the MLP, W queries, keys and values, S slots, P positions.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.errors import ModelError
from specbench.footprint import KEPT_TOKENS, Sizes
from specbench.forward.fused_weights import FusedLayer
from specbench.forward.layer_steps import LayerSteps
from specbench.forward.rounding import wrong
from specbench.forward.workspace import JoinedCache, Kept, Workspace
from specbench.models.raised import raise_if_device_lost

MOST_PROGRAMS = 16  # of one model; the numbers of tokens that are met first have them
FIRST = (1, 5)  # K = 0 and K = 4
_MOST_OF_ALL = 256  # of all models; the compiler's own limit of 8 is against accidents
# Where graphs hide what a call costs the host, kernels are tried out; else calls are made cheap.
_ON_CUDA: dict[str, Any] = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "autotune_num_choices_displayed": 0,
}
_ON_HOST: dict[str, Any] = {"cpp_wrapper": True}


class Programs:
    """What was compiled for the models of an engine, and what it took."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self.compile_s = 0.0
        self.notes: list[str] = []  # what runs as it is, and why

    def note(self, text: str) -> None:
        """Say it once."""
        if text not in self.notes:
            self.notes.append(text)


class Pieces(NamedTuple):
    """The two parts of a layer around its attention, as `before` and `after` have them."""

    before: Callable[..., None]
    after: Callable[..., Tensor]


class CompiledSteps:
    """Compiles for the numbers of tokens that rounds have, `usual` steps run all others.

    On a CPU one program serves all numbers above 1; on a GPU each has kernels of its own.
    ModelError where a layer cannot be compiled, or computes something else.
    """

    name = "compiled"

    def __init__(
        self, sizes: Sizes, eps: float, usual: LayerSteps, first: FusedLayer, programs: Programs
    ) -> None:
        self._sizes, self._eps, self._usual, self._first = sizes, eps, usual, first
        self._programs = programs
        self._is_cuda = first.qkv.is_cuda
        options = _ON_CUDA if self._is_cuda else _ON_HOST
        self._pieces = Pieces(*(_compiled(piece, options) for piece in (before, after)))
        self._known: dict[int, LayerSteps] = {}  # by what tells programs apart
        for num_tokens in FIRST:
            self._make(num_tokens)

    def sized(self, num_tokens: int | None) -> LayerSteps:
        if num_tokens is None or num_tokens > KEPT_TOKENS:
            return self._usual
        kind = self._kind(num_tokens)
        if kind not in self._known:
            self._known[kind] = self._usual
            if len(self._known) > MOST_PROGRAMS:
                self._programs.note(
                    f"{MOST_PROGRAMS} numbers of tokens are the most that a model's layers are "
                    "compiled for: others run as they are"
                )
                return self._usual
            try:
                self._make(num_tokens)
            except ModelError as error:
                self._programs.note(f"layers of {num_tokens} tokens run as they are: {error}")
        return self._known[kind]

    def places(
        self, rope_P: Tensor, positions_N: Tensor, slots_N: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = rope_P.index_select(0, positions_N).unbind(1)
        # Of one stride and alignment always: a program is made for them.
        return cos, sin, slots_N.clone(memory_format=torch.contiguous_format)

    def embed(self, work: Workspace, embedding: Tensor, tokens_N: Tensor) -> Tensor:  # noqa: ARG002
        return embedding.index_select(0, tokens_N)

    def before_attention(
        self,
        work: Workspace,
        hidden: Tensor,
        layer: FusedLayer,
        kept: Kept,
        places: tuple[Tensor, Tensor, Tensor],
        entry: Tensor | None = None,
    ) -> None:
        assert entry is None, "heads' layers run as they are"
        assert layer.input_norm is not None
        self._pieces.before(
            hidden,
            layer.input_norm,
            layer.qkv,
            layer.qkv_bias,
            layer.head_norm,
            *places,
            work.qkv,
            kept.buffer,
            self._sizes.query_heads,
            self._sizes.kv_heads,
            self._eps,
        )

    def after_attention(
        self,
        work: Workspace,
        hidden: Tensor,
        layer: FusedLayer,
        *,
        lasts: bool = False,  # noqa: ARG002 - it always does
    ) -> Tensor:
        return self._pieces.after(
            hidden,
            work.joined,
            layer.output,
            layer.output_bias,
            layer.mlp_norm,
            layer.gate_up,
            layer.gate_up_bias,
            layer.down,
            layer.down_bias,
            self._eps,
        )

    def keys_alone(
        self, work: Workspace, x_NF: Tensor, layer: FusedLayer, kept: Kept, places: Any
    ) -> None:
        raise NotImplementedError("heads' layers run as they are")

    def final_norm(self, work: Workspace, hidden: Tensor, weight: Tensor) -> Tensor:  # noqa: ARG002
        return _norm(hidden, weight, self._eps)

    def _kind(self, num_tokens: int) -> int:
        return num_tokens if self._is_cuda else min(num_tokens, 2)

    def _make(self, num_tokens: int) -> None:
        """Compile for so many tokens; ModelError with its reason."""
        began_s = time.perf_counter()
        try:
            got = self._outcome(self, num_tokens)
        except Exception as error:
            raise_if_device_lost(error)
            said = " ".join(str(error).splitlines()[:2])  # some begin with who says it
            raise ModelError(f"torch.compile: {said}") from error
        finally:
            self._programs.compile_s += time.perf_counter() - began_s
        self._programs.num_compiled += 1
        for one, expected in zip(got, self._outcome(self._usual, num_tokens), strict=True):
            if reason := wrong(one, expected, expected.dtype):
                raise ModelError(f"of {num_tokens} tokens {reason}")
        self._known[self._kind(num_tokens)] = self

    @torch.inference_mode()
    def _outcome(self, steps: LayerSteps, num_tokens: int) -> tuple[Tensor, ...]:
        """What the first layer writes over made-up numbers: queries, the cache, a hidden state."""
        sizes, layer, N = self._sizes, self._first, num_tokens
        generator = torch.Generator(layer.qkv.device).manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            with torch.inference_mode(False):  # as what lasts is made
                made = torch.empty(shape, dtype=layer.qkv.dtype, device=layer.qkv.device)
            return made.normal_(generator=generator)

        mirrored = len(layer.mlp_norm) > sizes.hidden
        work = Workspace(
            sizes, drawn(N * sum(sizes.widths(mirrored=mirrored))), N, 1, mirrored=mirrored
        )
        cache = JoinedCache(N, 2, [drawn(2 * N, 2 * sizes.kv_heads * sizes.head)])
        (kept,) = cache.view(N, 2, 0, sizes).layers
        numbers_N = torch.arange(N, device=layer.qkv.device)
        rope_P = drawn(N, 2, 1, 2, sizes.head // 2)
        places = steps.places(rope_P, numbers_N, 2 * numbers_N)
        hidden = steps.embed(work, drawn(N, sizes.hidden), numbers_N)
        if steps is self and not self._is_cuda and N > 1:
            for tensor in (hidden, work.qkv, work.joined, *places):
                torch._dynamo.mark_dynamic(tensor, 0)
        torch._dynamo.mark_dynamic(kept.buffer, 0)
        steps.before_attention(work, hidden, layer, kept, places)
        hidden = steps.after_attention(work, hidden, layer)
        queries = work.qkv[:, : sizes.query_heads * sizes.head]
        return queries, kept.buffer, hidden


def before(
    hidden_NF: Tensor,
    input_norm: Tensor,
    qkv: Tensor,
    qkv_bias: Tensor | None,
    head_norm: Tensor | None,
    cos_N: Tensor,
    sin_N: Tensor,
    slots_N: Tensor,
    qkv_NW: Tensor,
    kept_SW: Tensor,
    query_heads: int,
    kv_heads: int,
    eps: float,
) -> None:
    """Norm, queries, keys and values, heads turned; queries to `qkv`, the others to their slots."""
    N, num_turned = len(hidden_NF), query_heads + kv_heads
    new_NW = _product(_norm(hidden_NF, input_norm, eps), qkv, qkv_bias)
    heads = new_NW.view(N, num_turned + kv_heads, -1)
    turned = heads[:, :num_turned]
    if head_norm is not None:
        turned = torch.rms_norm(turned, turned.shape[2:], None, eps) * head_norm
    halves = turned.view(N, num_turned, 2, -1)
    turned = (halves * cos_N + halves.flip(2) * sin_N).flatten(2)
    # All heads in one tensor, which one kernel writes.
    qkv_NW.copy_(torch.cat((turned, heads[:, num_turned:]), 1).flatten(1))
    kept_SW.index_copy_(0, slots_N, qkv_NW[:, query_heads * heads.shape[2] :])


def after(
    hidden_NF: Tensor,
    joined: Tensor,
    output: Tensor,
    output_bias: Tensor | None,
    mlp_norm: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Output product, norm, MLP: the next hidden state."""
    hidden_NF = _added_product(joined, output, output_bias, hidden_NF)
    gate, up = _product(_norm(hidden_NF, mlp_norm, eps), gate_up, gate_up_bias).chunk(2, 1)
    return _added_product(silu(gate) * up, down, down_bias, hidden_NF)


def _compiled(piece: Callable[..., Any], options: dict[str, Any]) -> Any:
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_OF_ALL)
    return torch.compile(piece, fullgraph=True, dynamic=False, options=options)


def _norm(x_NF: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Weights may have zeros behind them."""
    F = x_NF.shape[1]
    return torch.rms_norm(x_NF, (F,), weight[:F], eps)


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)


def _added_product(x: Tensor, matrix: Tensor, bias: Tensor | None, total: Tensor) -> Tensor:
    total = torch.addmm(total, x, matrix)
    return total if bias is None else total + bias
