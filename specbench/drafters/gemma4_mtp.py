"""Assistants of Gemma 4: layers of queries that attend to the target's own keys and values.

Shape suffixes: B rows, T tokens, S slots, N key/value heads, D head size, F hidden size of the
assistant, M hidden size of the target, C centroids, R tokens whose logits are computed,
V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AutoConfig, AutoModel
from transformers import __version__ as transformers_version

from specbench.decode.drafter import (
    Capabilities,
    Drafter,
    DrafterForward,
    HeadPart,
    Outcome,
    Proposal,
    Resources,
    RowBuffer,
)
from specbench.decode.growth import grow_chain
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.layers import WRONG_CONFIG, fitting, load, tensors_of
from specbench.errors import ModelError, first_line
from specbench.files.config import FULL, SLIDING
from specbench.files.gemma4_mtp import AssistantStyle, kv_heads
from specbench.files.head_files import TOKEN_ORDERING
from specbench.forward.attention import stock
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.runner import Runner
from specbench.models.checkpoint import Checkpoint

_OUTPUT, _TIED = "model.embed_tokens.weight", "lm_head.weight"
# Fields of transformers' config that the files set; they are not trusted with any other.
_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "layer_types"),
    *("num_attention_heads", "hidden_activation", "rms_norm_eps", "rope_parameters"),
    *("max_position_embeddings", "sliding_window"),
)
_WITHOUT_LAYER_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_TEXT_TYPES = ("gemma4_text", "gemma4_unified_text")
KeysValues = Mapping[str, tuple[Tensor, Tensor]]  # by type of attention, [B, N, S, D] each


class AssistantModules(nn.Module):
    """The modules of an assistant, named as in its files."""

    def __init__(self, style: AssistantStyle, decoder: Any) -> None:
        super().__init__()
        F, M = style.hidden_size, style.backbone_size
        self.model: Any = decoder
        self.pre_projection = nn.Linear(2 * M, F, bias=False)
        self.post_projection = nn.Linear(F, M, bias=False)
        self.masked_embedding: Any = None
        if style.num_centroids:
            self.masked_embedding = nn.Module()
            self.masked_embedding.centroids = nn.Linear(F, style.num_centroids, bias=False)


class AssistantHead:
    """An assistant over a target's cache, run by transformers' code of its layers."""

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """ModelError if a tensor is missing, does not fit the target or cannot be run."""
        checkpoint = fitting(checkpoint, target, "gemma4_mtp")
        self.style = style = AssistantStyle.of(checkpoint)
        self._target = target
        self._stored = {kind: kv_heads(target.field)[kind] for kind in style.heads}
        self.modules = make_modules(style, checkpoint.source)
        taken = load(self.modules, checkpoint, target, {_TIED, TOKEN_ORDERING})
        decoder = self.modules.model
        self.output_VF: Tensor = decoder.embed_tokens.weight
        decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(target.device)
        self.ordering_CR: Tensor | None = None
        if style.num_centroids:
            self.ordering_CR = taken[TOKEN_ORDERING].long().view(style.num_centroids, -1)
        stock.attend_by(decoder, stock.NAME)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Its tensors, those of its files."""
        ids = () if self.ordering_CR is None else (self.ordering_CR,)
        return (*self.modules.state_dict().values(), *ids)

    @property
    def read(self) -> tuple[Tensor, ...]:
        """The tensors that a step reads; of an output matrix with centroids, only some rows."""
        modules = self.modules
        layers = tensors_of(modules.model.layers, modules.model.norm)
        output = (
            (self.output_VF,)
            if modules.masked_embedding is None
            else tensors_of(modules.masked_embedding)
        )
        return (*tensors_of(modules.pre_projection, modules.post_projection), *layers, *output)

    @property
    def kv_bytes(self) -> int:
        """Bytes that a step reads for each token of context."""
        heads = [self.style.heads[kind] for kind in self.style.kinds]
        return 2 * sum(of.num * of.size for of in heads) * self._target.dtype.itemsize

    def keys_values(self, num_rows: int, span: int, first_row: int) -> KeysValues:
        """The target's keys and values of these rows; arbitrary ones before its first forward."""
        device = self._target.device
        by_kind = {}
        for kind, heads in self._stored.items():
            stored = self._target.keys_values(heads.layer, num_rows, span, first_row=first_row)
            by_kind[kind] = stored or self.unwritten(kind, num_rows, span)
        return {kind: (k.to(device), v.to(device)) for kind, (k, v) in by_kind.items()}

    def unwritten(self, kind: str, num_rows: int, span: int) -> tuple[Tensor, Tensor]:
        """Keys and values of arbitrary numbers."""
        heads, target = self._stored[kind], self._target
        keys, values = torch.empty(
            *(2, num_rows, heads.num, span, heads.size), dtype=target.dtype, device=target.device
        )
        return keys, values

    def masks(self, length_B1: Tensor, span: int) -> dict[str, Tensor]:
        """Masks that show the committed tokens, in layers with a window the last ones of them."""
        slots_S = torch.arange(span, device=length_B1.device)
        windows = {FULL: None, SLIDING: self.style.window}
        return {
            kind: additive_mask(
                visible(length_B1 - 1, slots_S, window=windows[kind]),
                self._target.dtype,
                pack=self.style.num_heads // heads.num,
            )
            for kind, heads in self.style.heads.items()
        }

    def step(
        self,
        tokens_B1: Tensor,
        states_B1M: Tensor,
        positions_B1: Tensor,
        keys_values: KeysValues,
        masks: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, 1, V] of the token after each, and the state that the next step gets."""
        modules = self.modules
        joined_B12M = torch.cat([self._target.embed(tokens_B1), states_B1M], -1)
        out = modules.model(
            inputs_embeds=modules.pre_projection(joined_B12M),
            attention_mask=dict(masks),
            position_ids=positions_B1,
            shared_kv_states=dict(keys_values),
            use_cache=False,
        )
        states_B1F = out.last_hidden_state
        return self._logits(states_B1F), modules.post_projection(states_B1F)

    def _logits(self, states_BTF: Tensor) -> Tensor:
        """Logits [B, T, V]; with centroids, -inf for tokens of those that are not the best."""
        centroids, ordering_CR = self.modules.masked_embedding, self.ordering_CR
        if centroids is None or ordering_CR is None:
            return states_BTF @ self.output_VF.T
        best = centroids.centroids(states_BTF).topk(self.style.num_chosen, dim=-1).indices
        ids_BTR = embedding(best, ordering_CR).flatten(2)
        rows_BTRF = embedding(ids_BTR, self.output_VF)
        logits_BTR = (rows_BTRF @ states_BTF[..., None])[..., 0]
        shape = (*states_BTF.shape[:2], self.style.vocab_size)
        return logits_BTR.new_full(shape, -torch.inf).scatter(-1, ids_BTR, logits_BTR)


def make_modules(style: AssistantStyle, source: str) -> AssistantModules:
    """An assistant without weights; ModelError if transformers cannot build its layers."""
    text, heads = style.text, style.heads
    fields = {name: text.values[name] for name in _FIELDS if text.has(name)}
    fields |= _WITHOUT_LAYER_INPUTS | {
        "num_kv_shared_layers": len(style.kinds),
        "head_dim": heads.get(SLIDING, heads[FULL]).size,
        "num_key_value_heads": heads.get(SLIDING, heads[FULL]).num,
        "global_head_dim": heads[FULL].size,
    }
    kind = text.text("model_type") if text.text("model_type") in _TEXT_TYPES else _TEXT_TYPES[0]
    try:
        with torch.device("meta"):
            config = AutoConfig.for_model(kind, **fields)
            decoder = AutoModel.from_config(config, attn_implementation="eager")
            decoder.embed_tokens = nn.Embedding(style.vocab_size, style.hidden_size)  # unscaled
            return AssistantModules(style, decoder)
    except WRONG_CONFIG as error:
        raise ModelError(
            f"{source}: transformers {transformers_version} cannot build it: {first_line(error)}; "
            "5.17 and 5.24 are tested"
        ) from error


@drafter("gemma4_mtp")
class Gemma4Mtp(Drafter):
    """Drafts with an assistant, token by token, each from the last state and the last token.

    All drafts of a round are made at the current token's position and attend to the committed
    tokens before it: the assistant stores no keys, so a prompt costs it nothing. transformers also
    shows it the keys of the first rejected draft of the round before.
    """

    def __init__(self, parts: Parts) -> None:
        self.assistant = AssistantHead(parts.checkpoint(), parts.target)
        target = parts.target
        self.capabilities = Capabilities(
            features=(target.num_layers,), reads_target_cache=True, chains_nest=True
        )
        self._last_BM = torch.empty(0, target.hidden_size)
        self._target = target

    @staticmethod
    def new_checkpoint(config: Any, seed: int, *, num_centroids: int = 0) -> Checkpoint:
        """An assistant with random weights for a target with this transformers config, of one layer
        for each type of attention. ModelError if no layer has full attention."""
        text = config.get_text_config()
        stored = kv_heads(text.to_dict().get)
        if FULL not in stored:
            raise ModelError("an assistant needs a target whose layers keep keys of all tokens")
        kinds = [kind for kind in (SLIDING, FULL) if kind in stored]
        F, V = max(text.hidden_size // 4, 4) * 2, text.vocab_size
        first, last = stored[kinds[0]], stored[FULL]
        layers = {
            "model_type": _TEXT_TYPES[0],
            "vocab_size": V,
            "hidden_size": F,
            "intermediate_size": 2 * F,
            "num_hidden_layers": len(kinds),
            "layer_types": kinds,
            "sliding_window": getattr(text, "sliding_window", None) or 512,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": first.num,
            "head_dim": first.size,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": last.num,
            "global_head_dim": last.size,
            **_WITHOUT_LAYER_INPUTS,
            "num_kv_shared_layers": len(kinds),
        }
        fields = {
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
            "backbone_hidden_size": text.hidden_size,
            "use_ordered_embeddings": num_centroids > 0,
            "num_centroids": num_centroids or 2048,
            "centroid_intermediate_top_k": max(num_centroids // 4, 1),
            "text_config": layers,
        }
        empty = Checkpoint(source="a new assistant", config=fields, tensors={})
        generator = torch.Generator("cpu").manual_seed(seed)
        tensors = {
            name: torch.ones(shape)
            if len(shape) == 1
            else torch.randn(shape, generator=generator, device="cpu") * F**-0.5
            for name, shape in AssistantStyle.of(empty).shapes.items()
        }
        if num_centroids:
            tensors[TOKEN_ORDERING] = torch.randperm(V, generator=generator, device="cpu")
        return replace(empty, tensors=tensors)

    @cached_property
    def resources(self) -> Resources:
        assistant = self.assistant

        def draft(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            places_11 = positions_1T[:, :1]
            logits, _ = assistant.step(
                tokens_1T[:, :1],
                self._last_BM.new_zeros(1, 1, self._last_BM.shape[1]),
                places_11,
                {kind: assistant.unwritten(kind, 1, span) for kind in assistant.style.heads},
                assistant.masks(places_11, span),
            )
            return logits

        part = HeadPart(run=draft, weights=assistant.read, target_kv_bytes=assistant.kv_bytes)
        return Resources(
            weights=assistant.weights,
            head_parts={"draft": part},
            forwards=lambda k: (DrafterForward(1, "draft"),) * k,
        )

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self._last_BM,)

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        if num_rows > len(self._last_BM):
            target = self._target
            self._last_BM = torch.zeros(
                num_rows, target.hidden_size, dtype=target.dtype, device=target.device
            )

    def observe(self, state: State, outcome: Outcome) -> None:
        """Store the target's state at the last token that it processed."""
        outcome.keep_last(outcome.features[0], state.rows_of(self._last_BM))

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        assistant, length_B1 = self.assistant, state.length_B1
        keys_values = assistant.keys_values(state.num_rows, span, state.first_row)
        masks = assistant.masks(length_B1, span)
        states_B1M = state.rows_of(self._last_BM)[:, None]

        def follow(tokens_B1: Tensor, _: Tensor) -> Tensor:
            nonlocal states_B1M
            logits_B1V, states_B1M = assistant.step(
                tokens_B1, states_B1M, length_B1, keys_values, masks
            )
            return logits_B1V

        logits_B1V = follow(state.tokens_at(length_B1), length_B1)
        return grow_chain(state, logits_B1V[:, 0], follow, k, sampler, self.p_min)
