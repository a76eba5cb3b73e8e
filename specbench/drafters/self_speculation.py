"""The target's own first layers guess the next tokens: no other weights, no other cache."""

from typing import Annotated

from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.model_drafter import ModelDrafter
from specbench.errors import UsageError


@drafter("self_speculation", draws=True)
class SelfSpeculation(ModelDrafter):
    """The target's first layers draft for all of it (Elhoushi et al. 2024, arXiv:2404.16710).

    `num_layers` of them, a quarter of all where it is 0, draft with the target's final norm and
    head. Their keys and values of committed tokens are the target's own; those that
    drafts leave behind are rewritten by the target's check. `tree` is that of draft_model.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        num_layers: Annotated[int, range(0, 257)] = 0,
        tree: tuple[int, ...] = (),
    ) -> None:
        most = parts.target.num_layers
        if num_layers > most:
            raise UsageError(
                f"self_speculation: num_layers {num_layers}; the target has {most} layers"
            )
        first_layers = parts.target.first_layers(num_layers or max(most // 4, 1))
        super().__init__(first_layers, parts.target, tree)
