"""Broken workload files, each with the place and the words its error must have."""

import gzip
import hashlib
import json
from collections.abc import Mapping

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


def _lines(name: str, line: int, says: str, text: str | bytes) -> BrokenInput:
    content = text if isinstance(text, bytes) else text.encode()
    return BrokenInput(
        name=name,
        files={"mine.jsonl": content},
        place=f"mine.jsonl:{line}: ",
        says=says,
        workload="./mine.jsonl",
    )


def _named(file: str, says: str, content: bytes) -> BrokenInput:
    return BrokenInput(
        name=f"a file of another kind, {file}",
        files={file: content},
        place=f"{file}:1: ",
        says=says,
        workload=f"./{file}",
    )


def _card(name: str, line: int, says: str, text: str) -> BrokenInput:
    return BrokenInput(
        name=name,
        files={"workloads/mine.jsonl": _PROMPT, "workloads/mine.yaml": text.encode()},
        place=f"workloads/mine.yaml:{line}: ",
        says=says,
        workload="mine",
    )


def _card_with(**changed: str | int | None) -> str:
    card = {**_CARD, **changed}
    return "".join(f"{key}: {value}\n" for key, value in card.items() if value is not None)


def _wrong(name: str, says: str, entry: Mapping[str, object]) -> BrokenInput:
    content = json.dumps(entry).encode() + b"\n"
    card = _card_with(sha256=hashlib.sha256(content).hexdigest())
    return BrokenInput(
        name=name,
        files={"workloads/mine.jsonl": content, "workloads/mine.yaml": card.encode()},
        place="workloads/mine.jsonl:1: ",
        says=says,
        workload="mine",
    )


_PLACEHOLDER = json.dumps(
    {"question_id": "q", "turns": ["a", "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"]}
)
_EMBEDDING = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a"}})

BROKEN_WORKLOADS = [
    _lines("an empty file", 1, "the file has no prompts", ""),
    _lines("only blank lines", 1, "the file has no prompts", "\n\n \n"),
    _lines("not JSON", 2, "not JSON: ", '{"prompt": "a"}\nhello\n'),
    _lines(
        "a line cut off",
        1,
        "not JSON: Invalid control character at column 14;",
        '{"prompt": "a\n',
    ),
    _lines("an empty JSON array", 1, "the file has no prompts", "[ ]\n"),
    _lines("an array cut off", 2, "item 2: the JSON array is cut off", '[{"prompt": "a"},\n{"pr'),
    _lines("an array without its end", 1, "closing ] is missing", '[{"prompt": "a"}'),
    _lines("a comma too many", 1, "item 2: not JSON", '[{"prompt": "a"},]'),
    _lines("more after an array", 1, "something follows", '[{"prompt": "a"}]\n[]'),
    _lines("an array of texts", 1, "item 1: expected an object", '["a"]'),
    _lines(
        "an item that is wrong",
        3,
        "item 2: prompt: is empty",
        '[{"prompt": "a"},\n\n{"prompt": ""}]',
    ),
    _lines("an object over lines", 1, "one object per line, or one array", '{\n"prompt": "a"}'),
    _lines("a bare string", 1, "expected an object, not text", '"hello"\n'),
    _lines(
        "no known key",
        1,
        "it has: story, meta.id, meta.lang; name one of them with --prompt-field",
        '{"story": "a", "meta": {"id": 1, "lang": "en"}}\n',
    ),
    _lines("a mistyped key", 1, "it has: id, promt; 'promt', did", '{"id": 1, "promt": "a"}'),
    _lines(
        "a question with choices",
        1,
        "it has: question, ch",
        '{"question": "a", "choices": 1, "answer": "b"}',
    ),
    _lines("a placeholder", 1, "placeholder of SPEED-Bench", _PLACEHOLDER),
    _lines("an embedding request", 1, "'/v1/embeddings' does not ask for text", _EMBEDDING),
    _lines(
        "a batch of nothing",
        1,
        "it has: custom_id, body.model",
        '{"custom_id": "a", "body": {"model": "m"}}',
    ),
    _named("prompts.csv", "name the column with --prompt-field", b"question,answer\na,b\n"),
    _named("prompts.tsv", "read_csv('prompts.tsv', sep='\\t')", b"question\tanswer\na\tb\n"),
    _named("prompts.txt", "jq -Rc", b"What is one and one?\n"),
    _named("prompts.txt.gz", "jq -Rc '{prompt: .}' prompts.txt", gzip.compress(b"One and one?\n")),
    _named("test.bin", "pandas.read_parquet('test.bin')", b"PAR1\x15\x04"),
    _lines("an empty object", 1, "it has: none", "{}\n"),
    _lines("an empty prompt", 2, "prompt: is empty", '{"prompt": "a"}\n{"prompt": " "}\n'),
    _lines("a prompt that is a number", 1, "expected text, not a number", '{"prompt": 3}\n'),
    _lines("no turns", 1, "not an empty list", '{"turns": []}\n'),
    _lines("turns that are text", 1, "turns: expected a list of at least one", '{"turns": "a"}\n'),
    _lines("an empty second turn", 1, "turns: is empty", '{"turns": ["a", ""]}\n'),
    _lines(
        "an unknown role",
        1,
        "unknown role 'wizard' of a message; allowed: system, developer, user",
        '{"messages": [{"role": "wizard", "content": "a"}]}\n',
    ),
    _lines("a message without a role", 1, "unknown role None", '{"messages": [{"a": "b"}]}\n'),
    _lines("messages that are text", 1, "not a list of something", '{"messages": ["a"]}\n'),
    _lines(
        "an image in parts",
        1,
        "a part of type 'image_url' in a message; only text",
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}\n',
    ),
    _lines(
        "only conversations without a question",
        1,
        "no prompts; mine.jsonl: 2 of 2 rows skipped: conversations: no user message to answer (2)",
        '{"conversations": [{"from": "gpt", "value": "a"}]}\n' * 2,
    ),
    _lines(
        "only a system prompt",
        1,
        "no user message to answer",
        '{"messages": [{"role": "system", "content": "a"}]}\n',
    ),
    _lines("tools that are text", 1, "tools: expected a list", '{"prompt": "a", "tools": "t"}\n'),
    _lines("tools in a list", 1, "a list of objects", '{"prompt": "a", "tools": ["t"]}\n'),
    _lines("template_args", 1, "expected an object", '{"prompt": "a", "template_args": [1]}\n'),
    _lines(
        "a replay of questions", 1, "recorded answers", '{"turns": ["a", "b"], "replay": true}\n'
    ),
    _lines(
        "a prediction",
        1,
        "expected a list of at least one item",
        '{"prompt": "a", "prediction": 1}\n',
    ),
    _lines("an empty prediction", 1, "is empty", '{"prompt": "a", "prediction": " "}\n'),
    _lines(
        "a prediction too many",
        1,
        "2 texts for 1 turns; expected one per turn",
        '{"prompt": "a", "prediction": ["b", "c"]}\n',
    ),
    _lines(
        "an id twice",
        3,
        "a repeated id; '1' is already on line 1",
        '{"id": 1, "prompt": "a"}\n\n{"question_id": "1", "prompt": "b"}\n',
    ),
    _lines(
        "an id that is a list", 1, "id: expected text or a whole", '{"id": [1], "prompt": "a"}\n'
    ),
    _lines("a key twice", 1, "'prompt' is given twice", '{"prompt": "a", "prompt": "b"}\n'),
    _lines("NaN", 1, "NaN is not a number", '{"prompt": "a", "x": NaN}\n'),
    _lines("infinity", 1, "1e999 is not a number", '{"prompt": "a", "x": 1e999}\n'),
    _lines("a huge whole number", 1, "not usable JSON", f'{{"prompt": "a", "x": 1{"0" * 5000}}}'),
    _lines("deep nesting", 1, "nested too deeply", '{"prompt": ' + "[" * 200_000 + "\n"),
    _lines("a NUL byte", 1, "not JSON: ", b'{"prompt": "a\0b"}\n'),
    _lines("not UTF-8", 2, "not UTF-8 text", b'{"prompt": "a"}\n{"prompt": "\xff"}\n'),
    _lines("half a surrogate pair", 1, "half a surrogate pair", '{"prompt": "\\ud83d"}\n'),
    _lines("a gzip file cut off", 1, "cut off or damaged", gzip.compress(_PROMPT)[:-12]),
    _lines("a gzip file cut off at its head", 1, "cut off or damaged", b"\x1f\x8b\x08"),
    _lines("a damaged gzip file", 1, "damaged", gzip.compress(_PROMPT)[:10] + b"\xff" * 40),
    _card("a card without license", 1, "`license` is missing", _card_with(license=None)),
    _card("a card with an unknown key", 7, "unknown key, did you", _card_with(license_url="MIT")),
    _card("another name", 1, "'yours' is not the file's name, 'mine'", _card_with(name="yours")),
    _card("a changed file", 4, "mine.jsonl has changed", _card_with(sha256="f" * 64)),
    _card("half a checksum", 4, "64 digits", _card_with(sha256="abc")),
    _card("another count", 6, "mine.jsonl has 1 prompts", _card_with(prompts=2)),
    _card("a length of nothing", 5, "from 1 to 131072", _card_with(max_new_tokens=0)),
    _card("a card that is empty", 1, "the file is empty", ""),
    _wrong("a misspelt key", "'sytem', did you mean 'system'?", {"prompt": "a", "sytem": "b"}),
    _wrong("a conversation of nothing", "at least one item", {"conversations": []}),
    _wrong("two prompts in one", "gives turns and prompt", {"prompt": "a", "turns": ["b"]}),
    BrokenInput(
        name="a workload without its card",
        files={"workloads/mine.jsonl": _PROMPT},
        place="workloads/mine.yaml: ",
        says="cannot be read: No such file",
        workload="mine",
    ),
    BrokenInput(
        name="a file that is not there",
        files={},
        place="nothing.jsonl: ",
        says="cannot be read: No such file",
        workload="./nothing.jsonl",
    ),
    BrokenInput(
        name="a folder in place of a file",
        files={"some.d/prompts.jsonl": _PROMPT},
        place="some.d: ",
        says="cannot be read: Is a directory",
        workload="./some.d",
    ),
    BrokenInput(
        name="an unknown name",
        files={"workloads/mine.jsonl": _PROMPT, "workloads/mine.yaml": _card_with().encode()},
        place="no workload 'mien', did you mean 'mine'?",
        says="or give a JSONL or JSON file",
        workload="mien",
    ),
]
