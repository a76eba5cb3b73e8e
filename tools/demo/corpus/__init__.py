"""The corpus of the demo models: conversations as a pure function of register, index and seed."""

import hashlib
import json
from collections.abc import Callable

from tools.demo.corpus import chat, code, creative, edit, qa
from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice

_SAMPLERS: dict[str, Callable[[Dice], CorpusConversation]] = {
    "chat": chat.sample,
    "code": code.sample,
    "creative": creative.sample,
    "qa": qa.sample,
    "edit": edit.sample,
}
REGISTERS = tuple(_SAMPLERS)
SEED = 0
# Conversations of each register: the draft model is distilled on others than the target's.
TARGET_START, DRAFT_START, END = 0, 9000, 11500


def sample(register: str, index: int, seed: int) -> CorpusConversation:
    """Conversation number `index` of a register; equal arguments give equal text everywhere."""
    return _SAMPLERS[register](Dice(seed, register, index))


def corpus_sha256(seed: int, per_register: int = 500) -> str:
    """SHA-256 over the first conversations of every register: a fingerprint of the generator."""
    digest = hashlib.sha256()
    for register in REGISTERS:
        for index in range(per_register):
            digest.update(json.dumps(sample(register, index, seed).messages()).encode())
    return digest.hexdigest()


def training_conversations(
    seed: int, start: int, end: int, registers: tuple[str, ...] = REGISTERS
) -> list[CorpusConversation]:
    """The conversations `start`..`end - 1` of each register that are not held out."""
    drawn = (sample(r, i, seed) for i in range(start, end) for r in registers)
    return [conversation for conversation in drawn if not conversation.is_held_out]


def held_out_conversations(register: str, seed: int, count: int) -> list[CorpusConversation]:
    """The first held-out conversations of a register with different first prompts."""
    by_prompt: dict[str, CorpusConversation] = {}
    index = 0
    while len(by_prompt) < count:
        conversation = sample(register, index, seed)
        if conversation.is_held_out:
            by_prompt.setdefault(conversation.turns[0][0], conversation)
        index += 1
    return list(by_prompt.values())
