"""Broken workload files, each with the place and the values its error must name."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Mapping

from specbench.errors import WorkloadError
from tests.broken_inputs import BrokenInput

_PROMPT = b'{"id": "a", "turns": ["Hello"]}\n'
_CARD = {
    "name": "mine",
    "description": "Two words",
    "license": "Apache-2.0",
    "sha256": hashlib.sha256(_PROMPT).hexdigest(),
    "max_new_tokens": 64,
    "prompts": 1,
}


def _lines(name: str, line: int, names: str, text: str | bytes) -> BrokenInput:
    content = text if isinstance(text, bytes) else text.encode()
    return BrokenInput(
        name=name,
        files={"mine.jsonl": content},
        error=WorkloadError,
        place=f"mine.jsonl:{line}: ",
        names=names,
        workload="./mine.jsonl",
    )


def _named(file: str, names: str, content: bytes) -> BrokenInput:
    return BrokenInput(
        name=f"a file of another kind, {file}",
        files={file: content},
        error=WorkloadError,
        place=f"{file}:1: ",
        names=names,
        workload=f"./{file}",
    )


def _card(name: str, line: int, names: str, text: str) -> BrokenInput:
    return BrokenInput(
        name=name,
        files={"workloads/mine.jsonl": _PROMPT, "workloads/mine.yaml": text.encode()},
        error=WorkloadError,
        place=f"workloads/mine.yaml:{line}: ",
        names=names,
        workload="mine",
    )


def _card_with(**changed: str | int | None) -> str:
    card = {**_CARD, **changed}
    return "".join(f"{key}: {value}\n" for key, value in card.items() if value is not None)


def _wrong(name: str, names: str, entry: Mapping[str, object]) -> BrokenInput:
    content = json.dumps(entry).encode() + b"\n"
    card = _card_with(sha256=hashlib.sha256(content).hexdigest())
    return BrokenInput(
        name=name,
        files={"workloads/mine.jsonl": content, "workloads/mine.yaml": card.encode()},
        error=WorkloadError,
        place="workloads/mine.jsonl:1: ",
        names=names,
        workload="mine",
    )


_PLACEHOLDER = json.dumps(
    {"question_id": "q", "turns": ["a", "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"]}
)
_EMBEDDING = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a"}})

BROKEN_WORKLOADS = [
    _lines("an empty file", 1, "prompts", ""),
    _lines("only blank lines", 1, "prompts", "\n\n \n"),
    _lines("not JSON", 2, "JSON.*column 1;", '{"prompt": "a"}\nhello\n'),
    _lines(
        "a line cut off",
        1,
        "JSON.*column 14;",
        '{"prompt": "a\n',
    ),
    _lines("an empty JSON array", 1, "prompts", "[ ]\n"),
    _lines("an array cut off", 2, r"item 2.*\]", '[{"prompt": "a"},\n{"pr'),
    _lines("an array without its end", 1, r"item 1.*\]", '[{"prompt": "a"}'),
    _lines("a comma too many", 1, "item 2.*JSON.*column 1;", '[{"prompt": "a"},]'),
    _lines("more after an array", 1, "array", '[{"prompt": "a"}]\n[]'),
    _lines("an array of texts", 1, "item 1.*object.*text", '["a"]'),
    _lines(
        "an item that is wrong",
        3,
        "item 2.*prompt.*empty",
        '[{"prompt": "a"},\n\n{"prompt": ""}]',
    ),
    _lines(
        "an object over lines", 1, "JSON.*one object per line, or one array", '{\n"prompt": "a"}'
    ),
    _lines("a bare string", 1, "object.*text", '"hello"\n'),
    _lines(
        "no known key",
        1,
        "story, meta.id, meta.lang; .*--prompt-field",
        '{"story": "a", "meta": {"id": 1, "lang": "en"}}\n',
    ),
    _lines("a mistyped key", 1, "it has: id, promt; 'promt', did", '{"id": 1, "promt": "a"}'),
    _lines(
        "a question with choices",
        1,
        "question, choices, answer; .*--prompt-field",
        '{"question": "a", "choices": 1, "answer": "b"}',
    ),
    _lines("a placeholder", 1, "turns.*placeholder.*SPEED-Bench", _PLACEHOLDER),
    _lines("an embedding request", 1, "'/v1/embeddings'.*/chat/completions", _EMBEDDING),
    _lines(
        "a batch of nothing",
        1,
        "custom_id, body.model; .*--prompt-field",
        '{"custom_id": "a", "body": {"model": "m"}}',
    ),
    _named("prompts.csv", r"--prompt-field.*read_csv\('prompts.csv'\)", b"question,answer\na,b\n"),
    _named(
        "prompts.tsv",
        r"--prompt-field.*read_csv\('prompts.tsv', sep='\\t'\)",
        b"question\tanswer\na\tb\n",
    ),
    _named(
        "prompts.txt",
        r"cat prompts.txt \| jq -Rc '\{prompt: .\}' > prompts.jsonl",
        b"What is one and one?\n",
    ),
    _named(
        "prompts.txt.gz",
        r"gunzip -c prompts.txt.gz \| jq -Rc '\{prompt: .\}' > prompts.jsonl",
        gzip.compress(b"One and one?\n"),
    ),
    _named("test.bin", r"--prompt-field.*read_parquet\('test.bin'\)", b"PAR1\x15\x04"),
    _named("mine.jsonl", r"read_parquet\('mine.jsonl'\).to_json\('mine-2.jsonl'", b"PAR1\x15\x04"),
    _named("mine.json", r"read_feather\('mine.json'\).to_json\('mine.jsonl'", b"ARROW1\0\0"),
    *(
        _named(
            f"{encoding}.jsonl",
            f"{named}.*iconv -f {named} -t UTF-8 > {encoding}-2.jsonl",
            '{"prompt": "a"}\n'.encode(encoding),
        )
        for encoding, named in {
            "utf-16": "UTF-16",
            "utf-16-le": "UTF-16LE",
            "utf-16-be": "UTF-16BE",
            "utf-32": "UTF-32",
        }.items()
    ),
    _named(
        "wide.jsonl.gz",
        r"gunzip -c wide.jsonl.gz \| iconv -f UTF-16 .* > wide.jsonl",
        gzip.compress('[{"prompt": "a"}]'.encode("utf-16")),
    ),
    _named("mine.jsonl.bz2", "bzip2.*bunzip2 -k mine.jsonl.bz2", bz2.compress(_PROMPT)),
    _named("mine.jsonl.xz", "xz.*xz -dk mine.jsonl.xz", lzma.compress(_PROMPT)),
    _named("mine.jsonl.zst", "zstd.*zstd -d mine.jsonl.zst", b"\x28\xb5\x2f\xfd\x04\0"),
    _named("mine.zip", "zip.*unzip mine.zip", b"PK\x03\x04\x14\0"),
    _lines("an empty object", 1, "none; .*--prompt-field", "{}\n"),
    _lines("an empty prompt", 2, "prompt.*empty", '{"prompt": "a"}\n{"prompt": " "}\n'),
    _lines("a prompt that is a number", 1, "prompt.*text.*number", '{"prompt": 3}\n'),
    _lines("no turns", 1, "turns.*list.*empty list", '{"turns": []}\n'),
    _lines("turns that are text", 1, "turns.*list.*text", '{"turns": "a"}\n'),
    _lines("an empty second turn", 1, "turns.*empty", '{"turns": ["a", ""]}\n'),
    _lines(
        "an unknown role",
        1,
        "'wizard'.*system, developer, user",
        '{"messages": [{"role": "wizard", "content": "a"}]}\n',
    ),
    _lines(
        "a message without a role",
        1,
        "None.*system, developer, user",
        '{"messages": [{"a": "b"}]}\n',
    ),
    _lines("messages that are text", 1, "messages.*list of objects", '{"messages": ["a"]}\n'),
    _lines(
        "an image in parts",
        1,
        "'image_url'.*text",
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}\n',
    ),
    _lines(
        "only conversations without a question",
        1,
        r"mine.jsonl: 2 of 2 rows.*conversations.*\(2\)",
        '{"conversations": [{"from": "gpt", "value": "a"}]}\n' * 2,
    ),
    _lines(
        "only a system prompt",
        1,
        "messages.*user",
        '{"messages": [{"role": "system", "content": "a"}]}\n',
    ),
    _lines(
        "tools that are text", 1, "tools.*list of objects.*text", '{"prompt": "a", "tools": "t"}\n'
    ),
    _lines("tools in a list", 1, "tools.*list of objects", '{"prompt": "a", "tools": ["t"]}\n'),
    _lines(
        "template_args", 1, "template_args.*object.*list", '{"prompt": "a", "template_args": [1]}\n'
    ),
    _lines(
        "a replay of questions",
        1,
        "replay.*messages or conversations",
        '{"turns": ["a", "b"], "replay": true}\n',
    ),
    _lines(
        "a prediction",
        1,
        "prediction.*list.*number",
        '{"prompt": "a", "prediction": 1}\n',
    ),
    _lines("an empty prediction", 1, "prediction.*empty", '{"prompt": "a", "prediction": " "}\n'),
    _lines(
        "a prediction too many",
        1,
        "prediction.*2 texts.*1 turns",
        '{"prompt": "a", "prediction": ["b", "c"]}\n',
    ),
    _lines(
        "an id twice",
        3,
        "'1'.*line 1",
        '{"id": 1, "prompt": "a"}\n\n{"question_id": "1", "prompt": "b"}\n',
    ),
    _lines(
        "an id that is a list", 1, "id:.*text.*whole number.*list", '{"id": [1], "prompt": "a"}\n'
    ),
    _lines("a key twice", 1, "'prompt'.*twice", '{"prompt": "a", "prompt": "b"}\n'),
    _lines("NaN", 1, "NaN", '{"prompt": "a", "x": NaN}\n'),
    _lines("infinity", 1, "1e999", '{"prompt": "a", "x": 1e999}\n'),
    _lines("a huge whole number", 1, "JSON", f'{{"prompt": "a", "x": 1{"0" * 5000}}}'),
    _lines("deep nesting", 1, "nested", '{"prompt": ' + "[" * 200_000 + "\n"),
    _lines("a NUL byte", 1, "JSON.*column 14;", b'{"prompt": "a\0b"}\n'),
    _lines(
        "not UTF-8",
        2,
        r"UTF-8.*byte 13 is 0xff.*iconv -f WINDOWS-1252 -t UTF-8 > mine-2.jsonl",
        b'{"prompt": "a"}\n{"prompt": "\xff"}\n',
    ),
    _lines("half a surrogate pair", 1, "surrogate", '{"prompt": "\\ud83d"}\n'),
    _lines("a gzip file cut off", 1, "gzip.*cut off", gzip.compress(_PROMPT)[:-12]),
    _lines("a gzip file cut off at its head", 1, "gzip.*cut off", b"\x1f\x8b\x08"),
    _lines("a damaged gzip file", 1, "gzip.*damaged", gzip.compress(_PROMPT)[:10] + b"\xff" * 40),
    _card("a card without license", 1, "`license`", _card_with(license=None)),
    _card(
        "a card with an unknown key",
        7,
        "license_url.*'license'.*name, description, license",
        _card_with(license_url="MIT"),
    ),
    _card("another name", 1, "name:.*'yours'.*'mine'", _card_with(name="yours")),
    _card("a changed file", 4, "sha256.*mine.jsonl.*d39869ac", _card_with(sha256="f" * 64)),
    _card("half a checksum", 4, "sha256.*64 digits", _card_with(sha256="abc")),
    _card("another count", 6, "prompts.*mine.jsonl.*1", _card_with(prompts=2)),
    _card("a length of nothing", 5, "max_new_tokens.*1 to 131072.*0", _card_with(max_new_tokens=0)),
    _card("a card that is empty", 1, "empty", ""),
    _wrong("a misspelt key", "'sytem'.*'system'.*id, question_id", {"prompt": "a", "sytem": "b"}),
    _wrong("a conversation of nothing", "conversations.*list.*empty list", {"conversations": []}),
    _wrong("two prompts in one", "turns.*prompt", {"prompt": "a", "turns": ["b"]}),
    BrokenInput(
        name="a workload without its card",
        files={"workloads/mine.jsonl": _PROMPT},
        error=WorkloadError,
        place="workloads/mine.yaml: ",
        names="No such file",
        workload="mine",
    ),
    BrokenInput(
        name="a file that is not there",
        files={},
        error=WorkloadError,
        place="nothing.jsonl: ",
        names="No such file",
        workload="./nothing.jsonl",
    ),
    BrokenInput(
        name="a folder in place of a file",
        files={"some.d/prompts.jsonl": _PROMPT},
        error=WorkloadError,
        place="some.d: ",
        names="directory",
        workload="./some.d",
    ),
    BrokenInput(
        name="an unknown name",
        files={"workloads/mine.jsonl": _PROMPT, "workloads/mine.yaml": _card_with().encode()},
        error=WorkloadError,
        place="no workload 'mien'",
        names="'mine'.*chat, code.*./prompts.jsonl",
        workload="mien",
    ),
]
