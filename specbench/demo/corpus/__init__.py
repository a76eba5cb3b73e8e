"""The embedded pair's corpus: conversations as a pure function of register, index and seed."""

import hashlib
import json
from collections.abc import Callable

from specbench.demo.corpus import chat, code, creative, edit, qa
from specbench.demo.corpus.conversation import CorpusConversation
from specbench.demo.corpus.grammar import Dice

_SAMPLERS: dict[str, Callable[[Dice], CorpusConversation]] = {
    "chat": chat.sample,
    "code": code.sample,
    "creative": creative.sample,
    "qa": qa.sample,
    "edit": edit.sample,
}
REGISTERS = tuple(_SAMPLERS)


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
