"""DFlash 2: a DFlash block with convolutions, drafted in turn among each position's candidates.

Shape suffixes: B rows, N tokens of a block, K draft tokens, F hidden size, C taps of a convolution,
G groups of channels, S channels of a group, M candidates, R rank of the selector, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from specbench.decode.drafter import HeadPart, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.dflash import DFlash, DFlashHead
from specbench.drafters.registry import drafter
from specbench.files.dflash import DFLASH2_ARCHITECTURE, SELECTOR, DFlashStyle, dflash2_shapes
from specbench.forward.runner import Runner
from specbench.methods import NEW_BLOCK_SIZE
from specbench.models.checkpoint import Checkpoint

_NEW_RANK, _NEW_CANDIDATES = 16, 8
_NEW_TAPS, _NEW_GROUP = 2, 4


class CandidateTokens(NamedTuple):
    """The likeliest tokens at each position of a block, and what scores them."""

    tokens_BKM: Tensor
    logits_BKM: Tensor
    gates_BKR: Tensor  # of the selector's factors, from the states of the block


class BlockConvolution(nn.Module):
    """A module between two causal convolutions over a block, whose kernels follow from its input.

    A kernel is a base per channel and a sum per group. Before the block's first token are zeros.
    """

    def __init__(self, size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        num_groups = size // group_size
        self._kernels_2CG = (2, num_taps, num_groups)
        self.base_kernel = nn.Parameter(torch.empty(2, num_taps, size))
        self.kernel_projection = nn.Linear(size, 2 * num_taps * num_groups, bias=False)

    def forward(self, x_BNF: Tensor, module: Callable[[Tensor], Tensor]) -> Tensor:
        sums_BN2CG = self.kernel_projection(x_BNF).unflatten(-1, self._kernels_2CG)
        base_2CGS = self.base_kernel.view(*self._kernels_2CG, -1)
        kernels_BN2CF = (sums_BN2CG[..., None] + base_2CGS).flatten(-2)
        before_BNCF, after_BNCF = kernels_BN2CF.unbind(2)
        return _convolve(module(_convolve(x_BNF, before_BNCF)), after_BNCF)


def _convolve(x_BNF: Tensor, kernel_BNCF: Tensor) -> Tensor:
    """Each token's sum over itself and the tokens before it, weighted by the token's own kernel."""
    N, C = kernel_BNCF.shape[1:3]
    padded = pad(x_BNF, (0, 0, C - 1, 0))
    taps = (kernel_BNCF[:, :, c] * padded[:, C - 1 - c :][:, :N] for c in range(C))
    return torch.stack(tuple(taps)).sum(0)


class _ConvolvedLayer(nn.Module):
    """A layer of Qwen 3 with convolutions around its attention and its MLP."""

    def __init__(self, layer: Any, size: int, num_taps: int, group_size: int) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = layer.input_layernorm, layer.self_attn
        self.post_attention_layernorm, self.mlp = layer.post_attention_layernorm, layer.mlp
        self.attention_conv = BlockConvolution(size, num_taps, group_size)
        self.mlp_conv = BlockConvolution(size, num_taps, group_size)

    def forward(self, states_BNF: Tensor, **arguments: Any) -> Tensor:
        def attend(x_BNF: Tensor) -> Tensor:
            attended: Tensor = self.self_attn(hidden_states=x_BNF, **arguments)[0]
            return attended

        states_BNF = states_BNF + self.attention_conv(self.input_layernorm(states_BNF), attend)
        normed_BNF = self.post_attention_layernorm(states_BNF)
        result_BNF: Tensor = states_BNF + self.mlp_conv(normed_BNF, self.mlp)
        return result_BNF


class DFlash2Head(DFlashHead):
    """A DFlash head with convolutions, and a selector that scores a token after the one before.

    The M likeliest tokens of a position are its candidates. A product of rank R, gated by the
    position's state, adds to their logits. Sources: see `DFlashStyle`.
    """

    method = "dflash2"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        super().__init__(checkpoint, target)
        self.layers.run_stock("convolutions are around its attention and its MLP")

    def extend(self) -> None:
        style, size = self.style, len(self.model.norm.weight)
        with torch.device("meta"):
            self.model.layers = nn.ModuleList(
                _ConvolvedLayer(layer, size, style.num_taps, style.group_size)
                for layer in self.model.layers
            )

    @property
    def selector(self) -> tuple[Tensor, Tensor, Tensor]:
        """Factors [V, R] of the token before and of a candidate, and the gates' matrix [R, F]."""
        before_VR, after_VR, gate_RF = (self.taken[name] for name in SELECTOR)
        return before_VR, after_VR, gate_RF

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (*super().weights, *self.selector)

    @property
    def block_weights(self) -> tuple[Tensor, ...]:
        return (*super().block_weights, self.selector[2])

    def candidates(
        self, current_B1: Tensor, places_BN: Tensor, span: int, first_row: int
    ) -> CandidateTokens:
        """The candidates for the K tokens after the current one."""
        states_BKF = self.states(current_B1, places_BN, span, first_row)
        best = self.unembed(states_BKF).topk(self.style.num_candidates, dim=-1)
        return CandidateTokens(best.indices, best.values, states_BKF @ self.selector[2].T)

    def logits_after(self, candidates: CandidateTokens, i: int, tokens_B1: Tensor) -> Tensor:
        """Logits [B, 1, V] of draft i after these tokens; -inf for all but its candidates."""
        before_VR, after_VR, _ = self.selector
        tokens_B1M, logits_B1M, gates_B1R = (part[:, i : i + 1] for part in candidates)
        keys_B1R = embedding(tokens_B1, before_VR) * gates_B1R
        pairs_B1M = (embedding(tokens_B1M, after_VR) @ keys_B1R[..., None]).squeeze(-1)
        none_B1V = logits_B1M.new_full((len(tokens_B1), 1, self._target.vocab_size), -torch.inf)
        return none_B1V.scatter(-1, tokens_B1M, logits_B1M + pairs_B1M)


@drafter("dflash2")
class DFlash2(DFlash):
    """Drafts with a DFlash 2 head: one forward over a block of masks, then token by token."""

    open_head = DFlash2Head
    head: DFlash2Head

    @staticmethod
    def new_checkpoint(
        config: Any, seed: int, *, num_layers: int = 5, block_size: int = NEW_BLOCK_SIZE
    ) -> Checkpoint:
        """A head with random weights for a target with this transformers config, whose
        convolutions change little."""
        made = DFlash.new_checkpoint(config, seed, num_layers=num_layers, block_size=block_size)
        text = config.get_text_config()
        sizes = {
            "conv_kernel_size": _NEW_TAPS,
            "conv_group_size": _NEW_GROUP,
            "selector_rank": _NEW_RANK,
            "selector_top_k": min(_NEW_CANDIDATES, text.vocab_size),
        }
        fields = {
            **made.config,
            "architectures": [DFLASH2_ARCHITECTURE],
            "dflash_config": {**made.config["dflash_config"], **sizes},
        }
        head = replace(made, config=fields)
        generator = torch.Generator("cpu").manual_seed(seed)
        shapes = dflash2_shapes(DFlashStyle.of(head), text.hidden_size, text.vocab_size)
        tensors = {
            name: torch.randn(shape, generator=generator, device="cpu")
            * fields["initializer_range"]
            for name, shape in shapes.items()
        }
        for name, kernel_2CF in tensors.items():
            if name.endswith(".base_kernel"):
                kernel_2CF[:, 0] += 1
        return replace(head, tensors={**made.tensors, **tensors})

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """Those of DFlash; `block` also drafts, as at temperature 0."""
        head, parts = self.head, super()._head_parts()

        def block(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            tokens_11 = tokens_1T[:, :1]
            candidates = head.candidates(tokens_11, positions_1T, span, 0)
            for i in range(candidates.tokens_BKM.shape[1]):
                tokens_11 = head.logits_after(candidates, i, tokens_11).argmax(-1)
            return tokens_11

        return {**parts, "block": replace(parts["block"], run=block)}

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head = self.head
        candidates = head.candidates(*self.block(state, k), span, state.first_row)
        return self.draft_in_turn(
            state, k, sampler, lambda i, tokens_B1: head.logits_after(candidates, i, tokens_B1)
        )
