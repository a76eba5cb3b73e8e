"""DFlash: one forward over a block of mask tokens drafts all tokens of a round.

Shape suffixes: B rows, T tokens, K draft tokens, N tokens of a block, F hidden size, D the tokens
that a head can draft, V vocabulary.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decode.drafter import (
    Capabilities,
    Chunk,
    Drafter,
    DrafterForward,
    HeadPart,
    Outcome,
    Proposal,
    Resources,
    RowBuffer,
)
from specbench.decode.growth import grow_block, grow_chain
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.layers import (
    decoder_layer,
    fitting,
    layer_config,
    layer_stack,
    load,
    new_layer_fields,
    output_weights,
    random_weights,
    tensors_of,
    to_target_vocab,
    token_embedding,
    token_table,
    weights_of,
)
from specbench.files.dflash import (
    CONFIDENCE,
    DFLASH_ARCHITECTURE,
    EMBEDDING,
    MARKOV,
    SELECTOR,
    DFlashStyle,
    with_layer_fields,
)
from specbench.forward.runner import Runner, state_features
from specbench.forward.tree import Branches
from specbench.methods import NEW_BLOCK_SIZE
from specbench.models.checkpoint import Checkpoint

_SEPARATE = {"d2t", "t2d", EMBEDDING, *MARKOV, *CONFIDENCE, *SELECTOR}


class _DFlashLayers(nn.Module):
    """The modules of a head, named as in its files."""

    def __init__(self, config: Any, num_features: int, names: Collection[str]) -> None:
        super().__init__()
        F, count = config.hidden_size, config.num_hidden_layers
        self.fc = nn.Linear(num_features * F, F, bias=False)
        self.hidden_norm = nn.RMSNorm(F, config.rms_norm_eps)
        self.layers = nn.ModuleList(decoder_layer(config, i, names) for i in range(count))
        self.norm = nn.RMSNorm(F, config.rms_norm_eps)
        self.lm_head: nn.Linear | None = None  # if the head has a smaller vocabulary


class DFlashHead:
    """Layers like those of Qwen 3 that use the target's embedding and output matrix.

    The keys and values of a committed token are computed only from the target's states; those of a
    block are discarded after its forward. Sources: see `DFlashStyle`.
    """

    method = "dflash"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """ModelError if a tensor is missing, does not fit the target or cannot be run."""
        checkpoint = fitting(checkpoint, target, self.method)
        self.style = style = DFlashStyle.of(checkpoint)
        D, names = style.num_tokens or target.vocab_size, checkpoint.tensors.keys()
        self.features = tuple(i + 1 for i in style.layer_ids)
        if style.reads_bare_output:
            self.features = state_features(self.features, target.model, target.num_layers)
        self.depth = style.depth
        self._target = target
        config = make_config(checkpoint)
        self.model = make_layers(config, len(self.features), names)
        if "lm_head.weight" in names:
            with torch.device("meta"):
                self.model.lm_head = nn.Linear(config.hidden_size, D, bias=False)
        self.extend()
        self.taken = load(self.model, checkpoint, target, _SEPARATE)
        self._embed = token_embedding(target, self.taken.get(EMBEDDING))
        self._target_ids_D = token_table(checkpoint, D, target)
        self.layers = layer_stack(config, self.model.layers, target)

    def extend(self) -> None:
        """Add another method's modules to `model`, before the tensors are loaded."""

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return weights_of(self.model, self._embed)

    @property
    def context_weights(self) -> tuple[Tensor, ...]:
        """The tensors that `add_context` reads."""
        of_layers: list[nn.Module] = []
        for layer in self.layers.layers:
            attention: Any = layer.self_attn
            of_layers += [attention.k_proj, attention.k_norm, attention.v_proj]
        return tensors_of(self.model.fc, self.model.hidden_norm, *of_layers)

    @property
    def block_weights(self) -> tuple[Tensor, ...]:
        """The tensors that `logits` reads."""
        layer_tensors, lm_head = tensors_of(self.model.layers, self.model.norm), self.model.lm_head
        head_weights = output_weights(self._target) if lm_head is None else tensors_of(lm_head)
        return (*layer_tensors, *head_weights)

    def block_length(self, k: int) -> int:
        """The number of tokens in a block with k draft tokens."""
        return k + self.style.block_size - self.depth

    def add_context(
        self, features: tuple[Tensor, ...], positions_BT: Tensor, span: int, first_row: int
    ) -> None:
        """Write keys and values of committed tokens, computed from the target's states there."""
        context_BTF = self.model.hidden_norm(self.model.fc(torch.cat(features, -1)))
        self.layers.write_kv(context_BTF, positions_BT, span, first_row=first_row)

    def logits(self, current_B1: Tensor, places_BN: Tensor, span: int, first_row: int) -> Tensor:
        """Logits [B, K, V] of the K tokens after the current one, from a block of masks."""
        return self.for_target(self.own_logits(current_B1, places_BN, span, first_row))

    def for_target(self, logits_BTD: Tensor) -> Tensor:
        """Logits over the target's vocabulary [B, T, V], from those of the head's tokens."""
        return to_target_vocab(logits_BTD, self._target_ids_D, self._target.vocab_size)

    def own_logits(
        self, current_B1: Tensor, places_BN: Tensor, span: int, first_row: int
    ) -> Tensor:
        """Logits [B, K, D] of the head's tokens, as `logits`."""
        return self.unembed(self.states(current_B1, places_BN, span, first_row))

    def states(self, current_B1: Tensor, places_BN: Tensor, span: int, first_row: int) -> Tensor:
        """The normalized states [B, K, F] from which the block's tokens are drafted."""
        style = self.style
        masks_BK = torch.full_like(places_BN[:, 1:], style.mask_id)
        states_BNF = self._embed(torch.cat([current_B1, masks_BK], 1))
        if style.embedding_scale != 1:
            states_BNF = states_BNF * style.embedding_scale
        is_causal = set(style.is_causal)
        # Layers that have different masks are run one by one.
        for layer in (None,) if len(is_causal) == 1 else range(len(style.is_causal)):
            states_BNF = self.layers.forward(
                states_BNF,
                places_BN,
                span,
                first_row=first_row,
                branches=_block(places_BN, is_causal=style.is_causal[layer or 0]),
                only=layer,
                windows_from_BT=places_BN[:, :1] - 1 if style.windows_from_current else None,
            )
        states_BKF: Tensor = self.model.norm(states_BNF[:, 0 if style.drafts_from_current else 1 :])
        return states_BKF

    def unembed(self, states_BKF: Tensor) -> Tensor:
        """Logits [B, K, D] of the head's tokens from their states."""
        style, lm_head = self.style, self.model.lm_head
        logits_BKD: Tensor = (self._target.logits if lm_head is None else lm_head)(states_BKF)
        if style.logit_scale != 1:
            logits_BKD = logits_BKD * style.logit_scale
        if cap := style.softcap:
            logits_BKD = (logits_BKD / cap).tanh() * cap
        return logits_BKD


def _block(places_BN: Tensor, *, is_causal: bool) -> Branches:
    """The mask of a block: each token attends to the whole block, or up to itself if causal."""
    B, N = places_BN.shape
    seen_BNN = torch.ones(B, N, N, dtype=torch.bool, device=places_BN.device)
    return Branches(
        places_BN[:, :1], places_BN, seen_BNN.tril() if is_causal else seen_BNN, places_BN
    )


def make_config(checkpoint: Checkpoint) -> Any:
    """The config of the layers, which are Qwen 3's for every target."""
    return layer_config(with_layer_fields(checkpoint))


def make_layers(config: Any, num_features: int, names: Collection[str] = ()) -> _DFlashLayers:
    """Layers without weights; attention has the biases that `names` contains."""
    with torch.device("meta"):
        return _DFlashLayers(config, num_features, names)


def spread_layers(num_layers: int, count: int) -> list[int]:
    """The target's layers whose states a new head fuses: `count` layers, evenly spaced from the
    second to the third last, or only the middle one."""
    first = min(1, num_layers - 1)
    last = max(num_layers - 3, first)
    if count == 1:
        return [num_layers // 2]
    return sorted({round(first + i * (last - first) / (count - 1)) for i in range(count)})


@drafter("dflash")
class DFlash(Drafter):
    """Drafts with a block of mask tokens, all of which one forward replaces.

    The block is the current token and K masks; K is less than the head's block size. Some heads
    draft the first token at the current token's position and need one mask less. The block attends
    to the target's hidden states at all earlier tokens. Draft tokens are independent: above
    temperature 0 each is drawn from its own distribution.
    """

    open_head = DFlashHead

    def __init__(self, parts: Parts) -> None:
        self.head = self.open_head(parts.checkpoint(), parts.target)
        self.capabilities = Capabilities(features=self.head.features, max_k=self.head.depth)

    @staticmethod
    def new_checkpoint(
        config: Any, seed: int, *, num_layers: int = 5, block_size: int = NEW_BLOCK_SIZE
    ) -> Checkpoint:
        """A head with random weights for a target with this transformers config; the last token of
        the vocabulary is the mask."""
        text = config.get_text_config()
        target_layer_ids = spread_layers(text.num_hidden_layers, num_layers)
        fields = new_layer_fields(config, DFLASH_ARCHITECTURE) | {
            "model_type": "qwen3",
            "num_hidden_layers": num_layers,
            "num_target_layers": text.num_hidden_layers,
            "block_size": block_size,
            "dflash_config": {
                "target_layer_ids": target_layer_ids,
                "mask_token_id": text.vocab_size - 1,
            },
        }
        empty = Checkpoint(source="a new DFlash head", config=fields, tensors={})
        layers = make_layers(make_config(empty), len(target_layer_ids))
        return replace(empty, tensors=random_weights(layers, seed, fields["initializer_range"]))

    @cached_property
    def resources(self) -> Resources:
        return Resources(
            cached_layers=self.head.layers,
            weights=self.head.weights,
            head_parts=self._head_parts(),
            forwards=lambda k: (
                DrafterForward(k + 1, "observe"),
                DrafterForward(self.head.block_length(k), "block"),
            ),
        )

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """`observe` writes keys and values without attention; `block` drafts in place of masks."""
        head = self.head
        weight_F = head.model.norm.weight
        feature_11F = weight_F.new_zeros(1, 1, len(weight_F))

        def observe(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> None:
            features = (feature_11F.expand(-1, tokens_1T.shape[1], -1),) * len(head.features)
            head.add_context(features, positions_1T, span, 0)

        def block(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            return head.logits(tokens_1T[:, :1], positions_1T, span, 0)

        num_layers = len(head.layers.layers)
        return {
            "observe": HeadPart(run=observe, weights=head.context_weights, layers=head.layers),
            "block": HeadPart(
                run=block,
                weights=head.block_weights,
                layers=head.layers,
                num_attending=num_layers,
            ),
        }

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.head.layers.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.head.layers.allocate(num_rows, max_len)

    def prefill(self, state: State, chunk: Chunk) -> None:
        self.head.add_context(chunk.features, chunk.positions_BT, chunk.span, state.first_row)

    def observe(self, state: State, outcome: Outcome) -> None:
        """Write the accepted tokens; the next block overwrites the slots after them."""
        self.head.add_context(outcome.features, outcome.positions_BT, outcome.span, state.first_row)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        logits_BKV = self.head.logits(*self.block(state, k), span, state.first_row)
        return grow_block(state, logits_BKV, sampler, self.p_min)

    def block(self, state: State, k: int) -> tuple[Tensor, Tensor]:
        """The current tokens [B, 1], and the positions [B, N] of a block with k draft tokens."""
        return state.tokens_at(state.length_B1), state.positions(0, self.head.block_length(k))

    def draft_in_turn(
        self, state: State, k: int, sampler: Sampler, logits_after: Callable[[int, Tensor], Tensor]
    ) -> Proposal:
        """K drafts, each from `logits_after` [B, 1, V]: its number, and the token before it."""
        first_B1V = logits_after(0, state.tokens_at(state.length_B1))
        numbers = count(1)
        return grow_chain(
            state,
            first_B1V[:, 0],
            lambda tokens_B1, _: logits_after(next(numbers), tokens_B1),
            k,
            sampler,
            self.p_min,
        )
