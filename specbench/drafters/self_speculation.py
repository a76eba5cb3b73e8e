"""Drafts with the target's first layers; needs no additional weights and no separate cache."""

from specbench.drafters.draft_model import ModelDrafter
from specbench.drafters.registry import Parts, drafter
from specbench.errors import UsageError
from specbench.methods import num_first_layers


@drafter("self_speculation")
class SelfSpeculation(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its output matrix.

    Draft tokens attend to the target's keys and values of committed tokens. Their own keys and
    values are overwritten when the target verifies them.
    """

    def __init__(self, parts: Parts, *, num_layers: int, tree: tuple[int, ...]) -> None:
        most = parts.target.num_layers
        if num_layers > most:
            raise UsageError(
                f"self_speculation: num_layers {num_layers}; the target has {most} layers"
            )
        first_layers = parts.target.first_layers(num_first_layers(num_layers, most))
        super().__init__(first_layers, parts.target, tree)
