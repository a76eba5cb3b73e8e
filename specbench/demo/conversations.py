"""Which conversations of the corpus train the embedded models, and which are held out."""

from specbench.demo.corpus import REGISTERS, sample
from specbench.demo.corpus.conversation import CorpusConversation

SEED = 0
# Conversations of each register: the draft is distilled on others than the target's.
TARGET_START, DRAFT_START, END = 0, 9000, 11500


def training_conversations(
    seed: int, start: int, end: int, registers: tuple[str, ...] = REGISTERS
) -> list[CorpusConversation]:
    """The conversations `start`..`end - 1` of each register that are not held out."""
    drawn = (sample(r, i, seed) for i in range(start, end) for r in registers)
    return [conversation for conversation in drawn if not conversation.is_held_out]


def held_out_conversations(register: str, seed: int, count: int) -> list[CorpusConversation]:
    """The first held-out conversations of a register with different first prompts."""
    found: dict[str, CorpusConversation] = {}
    index = 0
    while len(found) < count:
        conversation = sample(register, index, seed)
        if conversation.is_held_out:
            found.setdefault(conversation.turns[0][0], conversation)
        index += 1
    return list(found.values())
