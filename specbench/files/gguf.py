"""Reads the header of a GGUF file: its keys, its vocabulary, and the sizes of its tensors.

A header has `GGUF`, a version, the numbers of tensors and keys, the keys with their values, and the
name, shape, type and offset of each tensor. It is untrusted: no more is allocated than was read.
Sources: docs/gguf.md of ggml; src/llama-vocab.cpp of llama.cpp (October 2026) for missing keys.
"""

import hashlib
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from specbench.errors import ModelError
from specbench.files.config import MOST_LAYERS, Experts
from specbench.files.headers import TensorHeader
from specbench.files.model_spec import ModelSpec

# llama.cpp drafts with a different vocabulary only within these limits: the difference in the
# number of tokens, and the first id whose tokens are compared. Source: common/speculative.cpp.
MAX_VOCAB_DIFFERENCE, FIRST_COMPARED_ID = 128, 5

_LARGEST_HEADER = 2**28  # bytes; those of published models are below 2**24
_MOST_NUMBERS = 2**12  # in an array that is kept: one number per layer, not one per token
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
# Keys that every architecture needs. Source: src/llama-model.cpp.
_REQUIRED = ("context_length", "embedding_length", "block_count", "attention.head_count")
_FFN_UP = "blk.0.ffn_up.weight"
_EPSILONS = (".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_ASSISTANT = "-assistant"
_EXPERTS = "_exps."  # in the names of tensors that have one matrix per expert
# Values of general.type. Source: gguf-py/gguf/constants.py.
_OTHER_KINDS = {"adapter": "a LoRA adapter", "mmproj": "a projector of images or sound (mmproj)"}
_REDOWNLOAD = "download or convert it again"

# Name, elements per block, and bytes per block.
_TYPES: Mapping[int, tuple[str, int, int]] = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 28: ("F64", 1, 8), 30: ("BF16", 1, 2)},
    **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
    **{8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210)},
    **{15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74)},
    **{18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18)},
    **{21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136)},
    **{29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66)},
    **{39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18)},
}


class GgufVocabulary(NamedTuple):
    """Tokens by id, and the ids that llama.cpp adds around a prompt."""

    tokenizer: str  # its kind: BPE, SPM ...; the name in the file if the kind is unknown
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    tokens: tuple[str, ...] = ()


# Defaults for missing keys, by the tokenizer's name in the file.
_DEFAULTS = {
    "llama": GgufVocabulary("SPM", 1, 2, True, False),
    "gpt2": GgufVocabulary("BPE", 11, 11, False, False),
    "gemma4": GgufVocabulary("BPE", None, None, True, False),
    "t5": GgufVocabulary("UGM", None, 1, False, True),
}
# Pre-tokenizers for which llama.cpp adds the BOS token if the file does not say.
_ADDING_BOS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"}
_ADDING_BOS |= {"lfm2", "jina-v5-nano", "tekken", "chameleon"}


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """The header of a model in one or more files; properties raise ModelError for wrong keys."""

    path: Path
    keys: Mapping[str, Any]  # long arrays of numbers are left out
    tensors: Mapping[str, TensorHeader]  # `nbytes` is 0 for types that are not in `_TYPES`
    nbytes: int  # of all tensors
    header_sha256: str  # of all bytes before the tensors; of several files, of their hashes

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 0 under a key of the architecture, such as `block_count`."""
        value: Any = self.keys.get(f"{self.architecture}.{name}", default)
        if type(value) is not int or value < 0:
            self._fail(f"its {self.architecture}.{name} is {str(value)[:40]}, not a whole number")
        return int(value)

    @property
    def architecture(self) -> str:
        return str(self.keys.get("general.architecture", "(no general.architecture)"))

    @property
    def experts(self) -> Experts | None:
        """The experts of a mixture of experts; None for other models."""
        return Experts.of(self.number("expert_count", 0), self.number("expert_used_count", 0))

    @property
    def longest_context(self) -> int | None:
        return self.number("context_length", 0) or None

    @property
    def chat_template(self) -> str | None:
        template = self.keys.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def num_layers(self) -> int:
        if (count := self.number("block_count")) > MOST_LAYERS:
            self._fail(f"it would have {count:,} layers")
        return count

    @property
    def num_heads(self) -> int:
        return max(self._heads("attention.head_count", 0))

    @property
    def kv_heads(self) -> tuple[int, ...]:
        return self._heads("attention.head_count_kv", self.num_heads)

    @property
    def kv_bytes_per_token(self) -> int:
        """An upper bound: f16, llama.cpp's default, and full attention in all layers; 0 for an
        assistant, which stores none."""
        if self.is_assistant:
            return 0
        size = self.number("embedding_length", 0) // max(self.num_heads, 1)
        sizes = (self.number(f"attention.{part}_length", size) for part in ("key", "value"))
        return 2 * sum(self.kv_heads) * sum(sizes)

    @property
    def quantization(self) -> str:
        """The type of tensors with the most elements."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            counts[tensor.dtype] += tensor.num_elements
        return max(counts, key=counts.__getitem__, default="none")

    @property
    def mtp_layers(self) -> int:
        """How many of its layers are for multi-token prediction, which llama.cpp calls nextn."""
        is_there = any(".nextn." in name for name in self.tensors)
        return self.number("nextn_predict_layers", 0) if is_there else 0

    @property
    def is_assistant(self) -> bool:
        """Whether it is an assistant of Gemma 4, whose layers attend to the target's keys."""
        return self.architecture.endswith(_ASSISTANT)

    @property
    def is_dspark(self) -> bool:
        """Whether it is a DSpark head, which llama.cpp tells from DFlash by this tensor."""
        return self.architecture == "dflash" and "markov_w1.weight" in self.tensors

    @property
    def is_dflash2(self) -> bool:
        """Whether it is a DFlash 2 head, by the tensor by which llama.cpp recognizes it."""
        return self.architecture == "dflash" and "selector_hidden.weight" in self.tensors

    @property
    def is_mtp_head(self) -> bool:
        """Whether it has only such layers: a file converted with --mtp."""
        has_first = any(name.startswith("blk.0.") for name in self.tensors)
        return self.mtp_layers > 0 and not has_first and not self.is_assistant

    @property
    def num_elements(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors.values())

    @property
    def read_bytes(self) -> int:
        """Bytes that a forward pass of one token reads: of the experts only those that it uses, and
        no embedding that only serves for lookups."""
        is_looked_up = {"token_embd.weight", "output.weight"} <= self.tensors.keys()
        unread = self.tensors["token_embd.weight"].nbytes if is_looked_up else 0
        if (experts := self.experts) is not None:
            routed = sum(t.nbytes for name, t in self.tensors.items() if _EXPERTS in name)
            unread += routed * (experts.num - experts.per_token) // experts.num
        return self.nbytes - unread

    @cached_property
    def vocabulary(self) -> GgufVocabulary:
        of = {name.removeprefix("tokenizer.ggml."): value for name, value in self.keys.items()}
        model, tokens = of.get("model"), of.get("tokens") or (None,)
        if not isinstance(model, str) or type(tokens) is not tuple or type(tokens[0]) is not str:
            self._fail("it has no tokenizer, so it writes no text")

        def token_id(name: str, default: int | None) -> int | None:
            known = (of.get(f"{name}_token_id"), default)
            return next((i for i in known if type(i) is int and 0 <= i < len(tokens)), None)

        known = _DEFAULTS.get(model, GgufVocabulary(model, None, None, False, False))
        adds_bos = known.add_bos or (known.tokenizer == "BPE" and of.get("pre") in _ADDING_BOS)
        return GgufVocabulary(
            tokenizer=known.tokenizer,
            bos=token_id("bos", known.bos),
            eos=token_id("eos", known.eos),
            add_bos=model == "gemma4" or bool(of.get("add_bos_token", adds_bos)),
            add_eos=bool(of.get("add_eos_token", known.add_eos)),
            tokens=tokens,
        )

    def require_keys(self) -> None:
        """Raise ModelError if the file is no language model, or if it lacks a key that llama.cpp
        needs to load it."""
        kind = str(self.keys.get("general.type", "model"))
        if self.architecture == "clip" or kind not in ("model", ""):
            kind = _OTHER_KINDS.get("mmproj" if self.architecture == "clip" else kind, kind)
            raise ModelError(f"{self.path} is {kind}, not a model that drafts or writes text")
        names = [*_REQUIRED, *(["feed_forward_length"] if _FFN_UP in self.tensors else [])]
        keys = [f"{self.architecture}.{name}" for name in names]
        keys += ["tokenizer.ggml.merges"] if self.vocabulary.tokenizer == "BPE" else []
        if not any(key.endswith(_EPSILONS) for key in self.keys):
            keys.append(f"{self.architecture}{_EPSILONS[0]}")
        if missing := [key for key in keys if key not in self.keys]:
            self._fail(f"it has no {missing[0]}, so llama.cpp does not load it")

    def num_tokens(self, text: str) -> int:
        """The fewest tokens that a text can have: its bytes divided by the longest token's."""
        return -(-len(text.encode()) // self._longest_token)

    @cached_property
    def _longest_token(self) -> int:
        return max(len(token.encode()) for token in self.vocabulary.tokens) or 1

    def _heads(self, name: str, default: int) -> tuple[int, ...]:
        """A key's value for each layer; the file has one number for all layers or one per layer."""
        value = self.keys.get(f"{self.architecture}.{name}")
        if not isinstance(value, tuple):
            return (self.number(name, default),) * self.num_layers or (0,)
        if len(value) != self.num_layers or not all(type(n) is int and n >= 0 for n in value):
            self._fail(f"its {self.architecture}.{name} is not a number per layer")
        return value or (0,)

    def _fail(self, text: str) -> NoReturn:
        raise ModelError(f"{self.path}: {text}; {_REDOWNLOAD}")


class GgufDifference(NamedTuple):
    """A difference between a target and a draft model."""

    field: str
    of_target: object
    of_draft: object
    is_refused: bool  # llama-server starts anyway, but drafts nothing
    reason: str


_Rule = tuple[str, object, object, bool, str]  # as in GgufDifference; the fourth: is it refused


def differences(target: GgufFile, draft: GgufFile) -> Iterator[GgufDifference]:
    """The differences that llama.cpp checks for, and those in special ids; ModelError.

    A head's shapes are compared, and its tokens: those of a head are copied from its target.
    """
    ours, theirs = target.vocabulary, draft.vocabulary
    sizes = len(ours.tokens), len(theirs.tokens)
    is_too_far = abs(sizes[0] - sizes[1]) > MAX_VOCAB_DIFFERENCE
    compared = range(FIRST_COMPARED_ID, min(sizes))
    different = [i for i in compared if ours.tokens[i] != theirs.tokens[i]]
    first = different[0] if different else 0
    tokens = (repr(ours.tokens[first]), repr(theirs.tokens[first])) if different else ("", "")
    rules: tuple[_Rule, ...] = (
        ("tokenizer", ours.tokenizer, theirs.tokenizer, True, "another kind"),
        ("add_bos_token", ours.add_bos, theirs.add_bos, True, "only one adds it to prompts"),
        ("add_eos_token", ours.add_eos, theirs.add_eos, True, "only one adds it to prompts"),
        ("bos_token_id", ours.bos, theirs.bos, ours.add_bos, "another token"),
        ("eos_token_id", ours.eos, theirs.eos, ours.add_eos, "another token"),
        ("vocab_size", *sizes, is_too_far, f"may differ by {MAX_VOCAB_DIFFERENCE} tokens"),
        ("tokens", *tokens, True, f"ids with other tokens: {len(different):,}, first {first}"),
    )
    if heads := tuple(_head_rules(target, draft)):
        rules = (
            *heads,
            *(rule for rule in rules if rule[0] in ("tokenizer", "vocab_size", "tokens")),
        )
    for rule in rules:
        if rule[1] != rule[2]:
            yield GgufDifference(*rule)


def _head_rules(target: GgufFile, draft: GgufFile) -> Iterator[_Rule]:
    """What a head must share with its target; empty for a draft model.

    Source: src/models/eagle3.cpp, dflash.cpp and gemma4-assistant.cpp; common/speculative.cpp.
    """
    kind, made_for, width = draft.architecture, target.architecture, "embedding_length"
    if draft.is_assistant:
        made_for = kind.removesuffix(_ASSISTANT)
        width += "_out"
    elif draft.is_mtp_head:
        made_for = kind
    elif kind == "eagle3":
        width = "target_hidden_size"
    elif kind != "dflash":
        return
    yield ("architecture", target.architecture, made_for, True, "a head for another model")
    size = target.number("embedding_length"), draft.number(width)
    yield ("hidden_size", *size, True, "a head for another model")
    layers = draft.keys.get(f"{kind}.target_layers") or (0,)
    if not isinstance(layers, tuple) or not all(type(layer) is int for layer in layers):
        draft._fail(f"its {kind}.target_layers is not a list of layers")
    most = min(max(layers), target.num_layers)
    yield ("target_layers", most, max(layers), True, "it reads layers that the target lacks")


def gguf_of(spec: ModelSpec) -> GgufFile:
    """The header of a model that is a GGUF file, cached until the file changes; ModelError."""
    path = Path(spec.location)
    try:
        status = path.stat()
    except OSError:
        return read_gguf(path)  # raises with the reason
    return _cached_gguf(path, status.st_size, status.st_mtime_ns)


@cache
def _cached_gguf(path: Path, size: int, mtime_ns: int) -> GgufFile:  # noqa: ARG001
    return read_gguf(path)


def read_gguf(path: Path) -> GgufFile:
    """The header of a file, or of all shards if it is the first of several. ModelError if a file
    cannot be read, or if llama.cpp would not load it as a language model."""
    files = [_read_file(path)]
    if match := _SHARD.fullmatch(path.name):
        part, count = int(match[2]), int(match[3])
        if not 1 <= part <= max(count, 1):
            raise ModelError(f"{path} is part {part} of {count} by its name; rename the file")
        names = [f"{match[1]}-{i:05}-of-{match[3]}.gguf" for i in range(1, count + 1)]
        if part != 1:
            raise ModelError(f"{path} is part {part} of several; name the first, {names[0]}")
        files += [_read_file(path.with_name(name)) for name in names[1:]]
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    hashes = [file.header_sha256 for file in files]
    file = replace(
        files[0],
        tensors=tensors,
        nbytes=sum(file.nbytes for file in files),
        header_sha256=hashes[0] if len(files) == 1 else _sha256("".join(hashes).encode()),
    )
    file.require_keys()
    return file


def _read_file(path: Path) -> GgufFile:
    try:
        if not path.is_file():
            raise ModelError(f"{path} is not a file; name a GGUF file")
        with path.open("rb") as opened:
            return _Header(path, opened, opened.seek(0, 2)).read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}; name a GGUF file") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Header:
    """Reads a header in order; every count is checked against the remaining bytes before use."""

    def __init__(self, path: Path, opened: BinaryIO, size: int) -> None:
        self._path, self._opened, self._size = path, opened, size
        self._end = min(size, _LARGEST_HEADER)
        opened.seek(0)

    def read(self) -> GgufFile:
        if (magic := self._opened.read(4)) != b"GGUF":
            self._fail(f"is not a GGUF file: it begins with {magic!r}; name a GGUF file")
        version = self._number("I")
        if version not in (2, 3):
            text = f"has version {version} of GGUF" if version < 2**16 else "is big-endian"
            self._fail(f"{text}; little-endian versions 2 and 3 are read: convert it again")
        num_tensors, num_keys = self._count("tensors", least=24), self._count("keys", least=13)
        keys = {}
        for _ in range(num_keys):
            name = self._string()
            keys[name] = self._value(self._number("I"), name)
        tensors = dict(self._tensor() for _ in range(num_tensors))
        alignment = keys.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 2**20:
            self._fail(f"has a general.alignment of {str(alignment)[:40]}; {_REDOWNLOAD}")
        end = self._opened.tell()
        begin = -(-end // alignment) * alignment
        ends = (begin + tensor.begin + tensor.nbytes for tensor in tensors.values())
        if (missing := max(ends, default=0) - self._size) > 0:
            self._fail(f"ends {missing:,} bytes before its tensors do; {_REDOWNLOAD}")
        self._opened.seek(0)
        return GgufFile(
            path=self._path,
            keys=keys,
            tensors=tensors,
            nbytes=max(self._size - begin, 0),
            header_sha256=_sha256(self._opened.read(end)),
        )

    def _tensor(self) -> tuple[str, TensorHeader]:
        name = self._string()
        num_dims = self._number("I")
        if num_dims > 8:
            self._fail(f"has a tensor {name[:80]} of {num_dims} dimensions; {_REDOWNLOAD}")
        shape = tuple(self._number("Q") for _ in range(num_dims))
        number, offset = self._number("I"), self._number("Q")
        dtype, elements, nbytes = _TYPES.get(number, (f"type {number}", 1, 0))
        nbytes *= -(-math.prod(shape) // elements)
        return name, TensorHeader(dtype, shape, self._path, offset, nbytes)

    def _value(self, kind: int, name: str) -> Any:
        """A key's value; None for an array of too many numbers, which is skipped."""
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        of = self._number("I") if kind == _ARRAY else kind
        if kind == _ARRAY and of == _STRING:
            return tuple(self._string() for _ in range(self._count(name[:80], least=8)))
        if of not in _NUMBERS:
            self._fail(f"has the unknown type {of} at {name[:80]}; {_REDOWNLOAD}")
        size = struct.calcsize(_NUMBERS[of])
        count = self._count(name[:80], least=size)
        if count > _MOST_NUMBERS:
            self._opened.seek(count * size, 1)
            return None
        return struct.unpack(f"<{count}{_NUMBERS[of]}", self._take(count * size))

    def _count(self, text: str, least: int) -> int:
        """The count of items that take at least `least` bytes each."""
        count: int = self._number("Q")
        if count * least > self._end - self._opened.tell():
            self._fail(f"would have {count:,} {text}, more than its bytes can hold; {_REDOWNLOAD}")
        return count

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "backslashreplace")

    def _number(self, letter: str) -> Any:
        (value,) = struct.unpack(f"<{letter}", self._take(struct.calcsize(f"<{letter}")))
        return value

    def _take(self, count: int) -> bytes:
        if count > self._end - self._opened.tell():
            self._fail(f"ends within its header, or a length in it is wrong; {_REDOWNLOAD}")
        return self._opened.read(count)

    def _fail(self, text: str) -> NoReturn:
        raise ModelError(f"{self._path} {text}")
