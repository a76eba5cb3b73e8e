"""What a run decided about its plan while it measured."""

from dataclasses import dataclass
from typing import Literal

# drop: cells that are not worth more of the budget. precise: what was asked for is known well
# enough. confirm: winners that are measured again on fresh repeats.
ExtensionKind = Literal["drop", "precise", "confirm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtensionRecord:
    """A decision that changes what is measured next; a resumed run follows it."""

    kind: ExtensionKind
    drafters: tuple[str, ...]  # that were loaded together, in order of their names
    question: str = ""  # id of its first cell without drafts; "": all of these drafters
    num_prompts: int = 0  # of the question, measured before a drop was decided
    cell_ids: tuple[str, ...] = ()  # what is dropped, precise or to be confirmed
