"""The target's first layers draft the next tokens, with no other weights and no other cache."""

from specbench.drafters.draft_model import ModelDrafter
from specbench.drafters.registry import Parts, drafter
from specbench.errors import UsageError
from specbench.methods import num_first_layers


@drafter("self_speculation")
class SelfSpeculation(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its head.

    It uses the target's keys and values of committed tokens; those of drafts are overwritten when
    the target verifies them.
    """

    def __init__(self, parts: Parts, *, num_layers: int, tree: tuple[int, ...]) -> None:
        most = parts.target.num_layers
        if num_layers > most:
            raise UsageError(
                f"self_speculation: num_layers {num_layers}; the target has {most} layers"
            )
        first_layers = parts.target.first_layers(num_first_layers(num_layers, most))
        super().__init__(first_layers, parts.target, tree)
