"""GGUF headers: their values, llama.cpp's defaults for missing keys, and broken files."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import ModelError
from specbench.files.config import Experts
from specbench.files.gguf import GgufDifference, differences, gguf_of, read_gguf
from specbench.files.model_spec import ModelSpec
from tests.gguf_files import HIDDEN, KV_BYTES, TOKENS, write_gguf

EMBEDDING = "token_embd.weight"


def test_sizes_are_those_of_the_keys_and_tensors(tmp_path: Path) -> None:
    tensors = {EMBEDDING: (32, 300), "output.weight": (32, 600)}
    file = read_gguf(write_gguf(tmp_path / "a.gguf", tensors=tensors))
    assert (file.architecture, file.num_layers, file.num_heads) == ("llama", 2, 4)
    assert (file.kv_heads, file.kv_bytes_per_token) == ((2, 2), KV_BYTES)
    assert (file.quantization, file.nbytes, file.read_bytes) == ("Q8_0", 900 * 34, 600 * 34)
    assert read_gguf(write_gguf(tmp_path / "tied.gguf")).read_bytes == 300 * 34


def test_a_token_reads_the_experts_that_it_uses(tmp_path: Path) -> None:
    tensors = {EMBEDDING: (32, 300), "blk.0.ffn_up_exps.weight": (32, 32, 8)}
    counts: dict[str, Any] = {"llama__expert_count": 8, "llama__expert_used_count": 2}
    file = read_gguf(write_gguf(tmp_path / "a.gguf", tensors=tensors, **counts))
    assert (file.nbytes, file.read_bytes) == ((300 + 8 * 32) * 34, (300 + 2 * 32) * 34)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    spec = ModelSpec(source="./a.gguf", folder=path)
    assert gguf_of(spec) is gguf_of(spec)
    write_gguf(path, TOKENS[:-1])
    assert gguf_of(spec).vocabulary.tokens == TOKENS[:-1]


HEADS, LENGTHS = "llama__attention__head_count_kv", "llama__attention__{}_length"
CACHES: tuple[tuple[dict[str, Any], int], ...] = (
    ({HEADS: [2, 0]}, KV_BYTES // 2),
    ({HEADS: None}, 2 * KV_BYTES),
    ({LENGTHS.format("key"): 16, LENGTHS.format("value"): 24}, 320),
)


@pytest.mark.parametrize(("changes", "per_token"), CACHES)
def test_the_kv_cache_follows_the_keys(tmp_path: Path, changes: Any, per_token: int) -> None:
    file = read_gguf(write_gguf(tmp_path / "a.gguf", **changes))
    assert file.kv_bytes_per_token == per_token


@pytest.mark.parametrize(
    ("model", "pre", "kind", "added"),
    [
        ("llama", None, "SPM", (True, False)),
        ("gpt2", "qwen2", "BPE", (False, False)),
        ("gpt2", "llama-bpe", "BPE", (True, False)),
        ("t5", None, "UGM", (False, True)),
        ("of-the-future", None, "of-the-future", (False, False)),
    ],
)
def test_missing_gguf_token_flags_follow_the_tokenizer_type(
    tmp_path: Path, model: str, pre: str | None, kind: str, added: object
) -> None:
    keys: Any = {"tokenizer__ggml__model": model, "tokenizer__ggml__pre": pre}
    vocabulary = read_gguf(write_gguf(tmp_path / "a.gguf", **keys)).vocabulary
    assert (vocabulary.tokenizer, (vocabulary.add_bos, vocabulary.add_eos)) == (kind, added)
    assert (vocabulary.bos, vocabulary.eos, len(vocabulary.tokens)) == (1, 2, len(TOKENS))


def test_the_shards_of_a_model_are_read_together(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", split__count=2)
    second = tmp_path / "m-00002-of-00002.gguf"
    with pytest.raises(ModelError, match=second.name):
        read_gguf(first)
    write_gguf(second, split__count=2, tensors={"blk.0.attn_q.weight": (32, 32)})
    whole = read_gguf(first)
    assert (len(whole.tensors), whole.nbytes) == (2, 332 * 34)
    hashes = {whole.header_sha256}
    write_gguf(second, split__count=2, tensors={"blk.0.attn_k.weight": (32, 32)})
    hashes.add(read_gguf(first).header_sha256)
    assert len(hashes) == 2


@pytest.mark.parametrize("part", ["00002-of-00000", "00000-of-00000", "00003-of-00002"])
def test_a_part_that_cannot_be_is_refused(tmp_path: Path, part: str) -> None:
    path = write_gguf(tmp_path / f"m-{part}.gguf")
    with pytest.raises(ModelError, match=rf"{part}.*by its name; rename"):
        read_gguf(path)


def test_the_hash_of_a_header_does_not_depend_on_weights_or_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    content = path.read_bytes()
    other = tmp_path / "b.gguf"
    other.write_bytes(content[:-1] + b"x")
    assert read_gguf(other).header_sha256 == read_gguf(path).header_sha256
    changed = write_gguf(tmp_path / "c.gguf", llama__context_length=8192)
    assert read_gguf(changed).header_sha256 != read_gguf(path).header_sha256


def test_a_name_too_long_for_a_file_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"xxx\.gguf.*File name too long"):
        read_gguf(Path("x" * 300 + ".gguf"))


def put(after: str, distance: int, number: int, letter: str) -> Any:
    def change(content: bytearray) -> None:
        begin = content.index(after.encode()) + len(after) + distance
        struct.pack_into(f"<{letter}", content, begin, number)

    return change


def cut(length: int) -> Any:
    return lambda content: content.__delitem__(slice(length, None))


LIST = "tokenizer.ggml.tokens"
BROKEN = {
    "empty": (cut(0), "is not a GGUF file"),
    "cut in the keys": (cut(200), "ends within its header"),
    "cut in the tensors": (cut(-1), "ends 1 bytes before its tensors"),
    "version 1": (put("", 4, 1, "I"), "version 1"),
    "big-endian": (put("", 4, 3 << 24, "I"), "big-endian"),
    "tensors": (put("", 8, 2**60, "Q"), "would have 1,152,921,504,606,846,976 tensors"),
    "a name's length": (put("", 24, 2**63, "Q"), "a length in it is wrong"),
    "tokens": (put(LIST, 8, 2**40, "Q"), "would have .* tokenizer.ggml.tokens"),
    "a type": (put(LIST, 0, 99, "I"), "unknown type 99"),
    "nested arrays": (put(LIST, 4, 9, "I"), "unknown type 9"),
    "layers": (put("llama.block_count", 4, 2**31, "I"), "2,147,483,648 layers"),
    "dimensions": (put(EMBEDDING, 0, 2**31, "I"), "2147483648 dimensions"),
    "a shape": (put(EMBEDDING, 4, 2**63, "Q"), "before its tensors"),
}


@pytest.mark.parametrize(("change", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_allocates_nothing(tmp_path: Path, change: Any, expected: str) -> None:
    content = bytearray(write_gguf(path := tmp_path / "a.gguf").read_bytes())
    change(content)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=rf"a\.gguf:? .*{expected}"):
            assert read_gguf(path).kv_heads
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


WRONG: dict[str, Any] = {"llama__attention__head_count_kv": [2], "llama__embedding_length": "wide"}
WRONG |= {"tokenizer__ggml__tokens": [], "tokenizer__ggml__model": None}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_a_gguf_key_of_another_type_is_an_error(tmp_path: Path, name: str, value: Any) -> None:
    path = write_gguf(tmp_path / "a.gguf", **{name: value})
    with pytest.raises(ModelError, match=r"a\.gguf: its? "):
        assert read_gguf(path).kv_bytes_per_token


NEEDED = ("llama__context_length", "llama__attention__head_count", "tokenizer__ggml__merges")
NEEDED += ("llama__attention__layer_norm_rms_epsilon", "llama__feed_forward_length")


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_gguf_key_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    tensors = {"token_embd.weight": (32, 300), "blk.0.ffn_up.weight": (32, 64)}
    keys: dict[str, Any] = {"llama__feed_forward_length": 64}
    read_gguf(write_gguf(tmp_path / "a.gguf", tensors=tensors, **keys))
    path = write_gguf(tmp_path / "b.gguf", tensors=tensors, **keys | {name: None})
    with pytest.raises(ModelError, match=name.replace("__", r"\.")):
        read_gguf(path)


def test_the_token_count_of_a_gguf_text_is_a_lower_bound(tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "a.gguf"))  # the longest: t299
    assert [file.num_tokens(text) for text in ("", "a", "abcde", "\u00e9" * 4)] == [0, 1, 2, 2]


def test_expert_counts_are_read_from_a_gguf_file(tmp_path: Path) -> None:
    counts: dict[str, Any] = {"llama__expert_count": 64, "llama__expert_used_count": 6}
    write_gguf(tmp_path / "mixture.gguf", **counts)
    write_gguf(tmp_path / "dense.gguf")
    assert read_gguf(tmp_path / "mixture.gguf").experts == Experts(num=64, per_token=6)
    assert read_gguf(tmp_path / "dense.gguf").experts is None


def test_gguf_files_are_compared_in_what_their_tokenizers_add(tmp_path: Path) -> None:
    """The ids of tokens that the target does not add may differ."""
    prefix = "tokenizer__ggml__"
    adding: Any = {f"{prefix}add_{name}_token": True for name in ("bos", "eos")}
    adding |= {f"{prefix}bos_token_id": 3, f"{prefix}eos_token_id": 4}
    plain = read_gguf(write_gguf(tmp_path / "plain.gguf"))
    other = read_gguf(write_gguf(tmp_path / "other.gguf", **adding))
    assert [found[:4] for found in differences(plain, other)] == [
        ("add_bos_token", False, True, True),
        ("add_eos_token", False, True, True),
        ("bos_token_id", 1, 3, False),
        ("eos_token_id", 2, 4, False),
    ]
    assert [found[:4] for found in differences(other, plain)] == [
        ("add_bos_token", True, False, True),
        ("add_eos_token", True, False, True),
        ("bos_token_id", 3, 1, True),
        ("eos_token_id", 4, 2, True),
    ]


def head_of_layers(folder: Path, layers: Any) -> list[GgufDifference]:
    """What an EAGLE-3 head that reads these layers lacks in a target of 2 layers."""
    keys: Any = {"general__architecture": "eagle3", "eagle3__target_hidden_size": HIDDEN}
    head = write_gguf(folder / "head.gguf", **keys, eagle3__target_layers=layers)
    return list(differences(read_gguf(write_gguf(folder / "t.gguf")), read_gguf(head)))


@pytest.mark.parametrize("layers", [None, [], [0, 1, 1], [2, 0]])
def test_a_head_reads_layers_up_to_the_targets_last_output(tmp_path: Path, layers: Any) -> None:
    assert head_of_layers(tmp_path, layers) == []


def test_a_head_of_a_deeper_target_is_refused(tmp_path: Path) -> None:
    (found,) = head_of_layers(tmp_path, [3, 1])
    assert found[:4] == ("target_layers", 2, 3, True)


@pytest.mark.parametrize("layers", [1, "1", ["1"], [True, False]], ids=str)
def test_target_layers_that_are_no_list_of_whole_numbers_are_an_error(
    tmp_path: Path, layers: Any
) -> None:
    with pytest.raises(ModelError, match=r"head\.gguf: its eagle3\.target_layers"):
        head_of_layers(tmp_path, layers)
