"""Writes GGUF files of tiny models whose tensors are zeros."""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

NUM_TOKENS = 300
TOKENS = tuple(f"t{i}" for i in range(NUM_TOKENS))
# The model has 2 layers of 4 query and 2 key/value heads of 8 numbers.
HIDDEN, LAYERS = 32, 2
KV_BYTES = LAYERS * 2 * (8 + 8) * 2
KEYS: Mapping[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.embedding_length": HIDDEN,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 4096,
    "llama.attention.layer_norm_rms_epsilon": 1,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.merges": ["t 1"],
    **{"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2},
}


def write_gguf(
    path: Path,
    tokens: Sequence[str] = TOKENS,
    *,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    **changes: Any,
) -> Path:
    """Write a file; `changes` are keys with `__` for the dot, and None omits a key."""
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    keys = {**KEYS, "tokenizer.ggml.tokens": list(tokens), **changed}
    of = f"{keys['general.architecture']}."
    keys = {n.replace("llama.", of): value for n, value in keys.items() if value is not None}
    shapes = tensors if tensors is not None else {"token_embd.weight": (HIDDEN, len(tokens))}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(keys))
    for name, (kind, content) in zip(keys, map(_value, keys.values()), strict=True):
        head += _string(name) + struct.pack("<I", kind) + content
    offset = 0
    for name, shape in shapes.items():
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", 8, offset)  # Q8_0
        offset += prod(shape) // 32 * 34
    path.write_bytes(head + bytes(-len(head) % 32 + offset))
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, str):
        return 8, _string(value)
    parts = [_value(part) for part in value]
    head = struct.pack("<IQ", parts[0][0] if parts else 8, len(parts))
    return 9, head + b"".join(content for _, content in parts)
