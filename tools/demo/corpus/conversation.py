"""A conversation of a register, and whether it is held out from training."""

import hashlib
from dataclasses import dataclass

HELD_OUT_ONE_IN = 25


@dataclass(frozen=True, kw_only=True)
class CorpusConversation:
    """User and assistant turns; `topic` and `phrasing` name the combination they were made from."""

    category: str
    topic: str
    phrasing: str
    turns: tuple[tuple[str, str], ...]  # (user, assistant)
    system: str | None = None

    @property
    def is_prompt_held_out(self) -> bool:
        """True for 1 in 25 first prompts."""
        return _is_drawn(self.turns[0][0])

    @property
    def is_held_out(self) -> bool:
        """True for held-out prompts, and for 1 in 25 pairs of topic and phrasing."""
        return self.is_prompt_held_out or _is_drawn(f"{self.topic}\n{self.phrasing}")

    def messages(self) -> list[dict[str, str]]:
        """The messages for a chat template."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + [
            {"role": role, "content": content}
            for turn in self.turns
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]


def _is_drawn(key: str) -> bool:
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0
