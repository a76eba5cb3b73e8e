"""Medusa's heads: residual layers and a head of its own each, all run in one batched product.

Shape suffixes: B rows, F hidden size, H heads, L residual layers of a head, V rows of a head's
vocabulary.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.drafters.heads.layers import fitting
from specbench.files.medusa import MedusaLayout, medusa_tensors, token_map
from specbench.forward.runner import Runner
from specbench.models.checkpoint import Checkpoint


class MedusaHeads:
    """Every head's weights on the target's device, in its dtype.

    Head i: x + silu(W x + b), once or several times, then a product over the vocabulary.
    Source: Cai et al. 2024 (arXiv:2401.10774), section 2.1.1.
    """

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """How many heads and layers there are follows from the tensors: configs say otherwise.

        ModelError names what is missing, unknown or of another shape than the target's.
        """
        checkpoint = medusa_tensors(fitting(checkpoint, target, "medusa"))
        tensors = checkpoint.tensors
        ids = token_map(checkpoint, target.vocab_size)
        layout = MedusaLayout.of(checkpoint, target)
        self.num_heads = layout.num_heads
        shapes = layout.shapes

        def stacked(names: list[str]) -> Tensor:
            shape = (len(names), *shapes[names[0]])
            together = torch.zeros(shape, dtype=target.dtype, device=target.device)
            for i, name in enumerate(names):
                if name in tensors:
                    together[i].copy_(tensors[name])
            return together

        self._layers = [
            (stacked(of_weights).transpose(1, 2), stacked(of_biases)[:, None])
            for of_weights, of_biases in zip(layout.weights, layout.biases, strict=True)
        ]
        self._out_HFV = stacked(layout.outs).transpose(1, 2)
        self._token_map_V = None if ids is None else torch.tensor(ids, device=target.device)
        self.vocab_size = layout.num_tokens
        self.device, self.dtype = target.device, target.dtype

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self._out_HFV, *(tensor for layer in self._layers for tensor in layer))

    def reads(self, num_heads: int) -> tuple[Tensor, ...]:
        """What `logits` reads of so many heads."""
        return tuple(tensor[:num_heads] for tensor in self.weights)

    def logits(self, states_BF: Tensor, num_heads: int) -> Tensor:
        """The first heads', over their own vocabulary [H, B, V]."""
        x_HBF = states_BF.expand(num_heads, -1, -1)
        for weight_HFF, bias_H1F in self._layers:
            inner_HBF = torch.baddbmm(bias_H1F[:num_heads], x_HBF, weight_HFF[:num_heads])
            x_HBF = x_HBF + silu(inner_HBF)
        if len(self._out_HFV) == 1:
            return x_HBF @ self._out_HFV[0]
        return torch.bmm(x_HBF, self._out_HFV[:num_heads])

    def target_ids(self, tokens: Tensor) -> Tensor:
        """The target's ids of the heads' own."""
        return tokens if self._token_map_V is None else self._token_map_V[tokens]
