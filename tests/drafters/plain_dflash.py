"""Plain DFlash: the whole context and the block in one forward pass, without a cache.

Shape suffixes: T tokens of the context, N of the block, S of both, F hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.models.checkpoint import Checkpoint


class PlainDFlash:
    """A head's tensors and its plain outputs; by layer the range that it sees."""

    windows: Sequence[int | None] = (None, None)
    causal: Sequence[bool] = (False, False)
    embedding_scale = 1.0
    from_current = False  # windows count back from the current token
    drafts_first = False  # the current token's place also gives a draft

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model, self.config, self.tensors = model, checkpoint.config, checkpoint.tensors

    @torch.no_grad()
    def logits(self, text: Sequence[int], k: int) -> Tensor:
        """Logits [K, V] of the k tokens after a text, whose last token the target has not read."""
        return self.states(text, k) @ self.model.get_output_embeddings().weight.T

    @torch.no_grad()
    def states(self, text: Sequence[int], k: int) -> Tensor:
        """The normalized states [K, F] that `logits` multiplies."""
        facts = self.config.get("dflash_config", self.config)
        masks = [facts["mask_token_id"]] * (k - self.drafts_first)
        block = torch.tensor([text[-1], *masks])
        states_NF = self.model.get_input_embeddings().weight[block] * self.embedding_scale
        if len(text) > 1:
            ids_1T = torch.tensor([text[:-1]])
            out = self.model.model(input_ids=ids_1T, use_cache=False, output_hidden_states=True)
            chosen = [out.hidden_states[i + 1][0] for i in facts["target_layer_ids"]]
            context_TF = self.norm(
                torch.cat(chosen, -1) @ self.tensors["fc.weight"].T, "hidden_norm"
            )
        else:
            context_TF = states_NF[:0]
        for i in range(self.config["num_hidden_layers"]):
            seen_NS = self.seen(i, len(context_TF), len(block))
            states_NF = self.layer(f"layers.{i}.", context_TF, states_NF, seen_NS)
        states_KF = states_NF[0 if self.drafts_first else 1 :]
        return self.norm(states_KF, "norm")

    def seen(self, i: int, T: int, N: int) -> Tensor:
        """The part of the context and the block that layer i sees."""
        window = self.windows[i]
        places_S, places_N1 = torch.arange(T + N), torch.arange(T, T + N)[:, None]
        seen_NS = torch.ones(N, T + N, dtype=torch.bool)
        if self.causal[i]:
            seen_NS &= places_S <= places_N1
        if window is not None:
            since_N1 = places_N1 - window if not self.from_current else T - 1 - window
            seen_NS &= (places_S > since_N1) | (places_S >= T)
        return seen_NS

    def layer(self, at: str, context_TF: Tensor, states_NF: Tensor, seen_NS: Tensor) -> Tensor:
        def attend(x_NF: Tensor) -> Tensor:
            return self.attention(at, context_TF, x_NF, seen_NS)

        normed_NF = self.norm(states_NF, f"{at}input_layernorm")
        states_NF = states_NF + self.around(f"{at}attention_conv", normed_NF, attend)
        normed_NF = self.norm(states_NF, f"{at}post_attention_layernorm")
        return states_NF + self.around(f"{at}mlp_conv", normed_NF, lambda x_NF: self.mlp(at, x_NF))

    def around(self, at: str, x_NF: Tensor, module: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: ARG002
        """A module's output, with what another method adds around it."""
        return module(x_NF)

    def attention(self, at: str, context_TF: Tensor, x_NF: Tensor, seen_NS: Tensor) -> Tensor:
        both_SF = torch.cat([context_TF, x_NF])
        places_S = torch.arange(len(both_SF))
        names = {name: self.tensors[f"{at}self_attn.{name}_proj.weight"].T for name in "qkvo"}
        D = self.config["head_dim"]
        query = self.turned(x_NF @ names["q"], f"{at}self_attn.q_norm", places_S[-len(x_NF) :])
        keys = self.turned(both_SF @ names["k"], f"{at}self_attn.k_norm", places_S)
        values = (both_SF @ names["v"]).unflatten(-1, (-1, D))
        group = query.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("nhd,shd->hns", query, keys).div(D**0.5)
        weights = scores.masked_fill(~seen_NS, -torch.inf).softmax(-1)
        return torch.einsum("hns,shd->nhd", weights, values).flatten(1) @ names["o"]

    def mlp(self, at: str, x_NF: Tensor) -> Tensor:
        names = {n: self.tensors[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up", "down")}
        return (silu(x_NF @ names["gate"]) * (x_NF @ names["up"])) @ names["down"]

    def turned(self, x: Tensor, norm: str, places: Tensor) -> Tensor:
        """Heads with their norm, rotated by their positions."""
        D = self.config["head_dim"]
        heads = self.norm(x.unflatten(-1, (-1, D)), norm)
        rates = self.config["rope_theta"] ** -(torch.arange(0, D, 2) / D)
        angles = (places[:, None] * rates).repeat(1, 2)[:, None]
        swapped = torch.cat([-heads[..., D // 2 :], heads[..., : D // 2]], -1)
        return heads * angles.cos() + swapped * angles.sin()

    def norm(self, x: Tensor, name: str) -> Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return unit * self.tensors[f"{name}.weight"]
