"""How the names of a tokenizer's tokens spell the text that they stand for."""

import json
import re
from typing import Literal, Protocol

# "bytes": byte-level BPE, a character for each byte (GPT-2). "pieces": SentencePiece's, with
# U+2581 for a space and <0xAB> for a byte.
Spelling = Literal["bytes", "pieces"]

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Decoder(Protocol):
    """That of the tokenizers library."""

    def __getstate__(self) -> bytes: ...


def spelling_of(decoder: Decoder | None) -> Spelling | None:
    """How a tokenizer of the tokenizers library spells, by its decoder; None: in another way."""
    if decoder is None:
        return None
    parts = json.loads(decoder.__getstate__())
    steps = parts.get("decoders", [parts])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "bytes"
    replaces = any(
        step.get("type") == "Replace" and step["pattern"].get("String") == _SPACE for step in steps
    )
    return "pieces" if replaces or "Metaspace" in kinds else None


def text_of(token: str, spelling: Spelling) -> bytes:
    """The bytes that a token adds to a text."""
    if spelling == "bytes":
        # Tokens that were added by hand are plain text, which may have a space.
        spelt = [_BYTES.get(character) for character in token]
        known = [byte for byte in spelt if byte is not None]
        return bytes(known) if len(known) == len(spelt) else token.encode()
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's: printable Latin-1 stands for itself, the other bytes follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()
