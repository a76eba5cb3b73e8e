"""The target's own first layers guess the next tokens: no other weights, no other cache."""

from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.model_drafter import ModelDrafter
from specbench.errors import UsageError
from specbench.methods import num_first_layers


@drafter("self_speculation")
class SelfSpeculation(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its head.

    Their keys and values of committed tokens are the target's own; those that drafts leave behind
    are rewritten by the target's check.
    """

    def __init__(self, parts: Parts, *, num_layers: int, tree: tuple[int, ...]) -> None:
        most = parts.target.num_layers
        if num_layers > most:
            raise UsageError(
                f"self_speculation: num_layers {num_layers}; the target has {most} layers"
            )
        first_layers = parts.target.first_layers(num_first_layers(num_layers, most))
        super().__init__(first_layers, parts.target, tree)
