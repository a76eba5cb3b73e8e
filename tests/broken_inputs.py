"""Broken pairings and workload files, each with the place and the words its error must have.

A test writes `files` into an empty working folder. Where `workload` is None, reading
pairings.yaml must fail; else `--workload` with that name or file must.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenInput:
    """What is wrong, the files that have it, and what the error says."""

    name: str
    files: Mapping[str, bytes]
    place: str  # how the error begins
    says: str
    workload: str | None = None


def _pairings(name: str, line: int, says: str, text: str | bytes) -> BrokenInput:
    content = text if isinstance(text, bytes) else dedent(text).lstrip("\n").encode()
    return BrokenInput(
        name=name,
        files={"pairings.yaml": content},
        place=f"pairings.yaml:{line}: ",
        says=says,
    )


def _drafter(name: str, line: int, says: str, text: str) -> BrokenInput:
    """`text` is the body of the drafter `small`; its first line is line 6."""
    head = "targets:\n  big:\n    model: owner/big\n    drafters:\n      small:\n"
    body = "".join(f"        {row}\n" for row in dedent(text).strip().splitlines())
    return _pairings(name, line, says, (head + body).encode())


def _target(name: str, line: int, says: str, text: str) -> BrokenInput:
    """`text` is what the target `big` has beside its drafter; its first line is line 3."""
    rows = dedent(text).strip().splitlines()
    body = "".join(f"    {row}\n" for row in rows)
    tail = "    drafters:\n      copy:\n        method: ngram\n"
    return _pairings(name, line, says, ("targets:\n  big:\n" + body + tail).encode())


def _lines(name: str, line: int, says: str, text: str | bytes) -> BrokenInput:
    content = text if isinstance(text, bytes) else text.encode()
    return BrokenInput(
        name=name,
        files={"mine.jsonl": content},
        place=f"mine.jsonl:{line}: ",
        says=says,
        workload="./mine.jsonl",
    )


_PROMPT = b'{"id": "a", "turns": ["Hello"]}\n'
_CARD = {
    "name": "mine",
    "description": "Two words",
    "licence": "Apache-2.0",
    "sha256": hashlib.sha256(_PROMPT).hexdigest(),
    "max_new_tokens": 64,
    "prompts": 1,
}


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


def _own(name: str, says: str, entry: Mapping[str, object]) -> BrokenInput:
    content = json.dumps(entry).encode() + b"\n"
    card = _card_with(sha256=hashlib.sha256(content).hexdigest())
    return BrokenInput(
        name=name,
        files={"workloads/mine.jsonl": content, "workloads/mine.yaml": card.encode()},
        place="workloads/mine.jsonl:1: ",
        says=says,
        workload="mine",
    )


BROKEN_PAIRINGS = [
    _pairings("an empty file", 1, "the file is empty", ""),
    _pairings("only a comment", 1, "the file is empty", "# nothing\n"),
    _pairings("a list at the top", 1, "a mapping (key: value) is needed, not a list", "- a\n"),
    _pairings("plain text", 1, "a mapping (key: value) is needed, not text", "pairings\n"),
    _pairings("no targets", 1, "the key `targets` is missing", "default: demo\n"),
    _pairings("no target", 1, "targets: is empty; at least one", "targets: {}\n"),
    _pairings(
        "an unknown key at the top",
        1,
        "target: unknown key, did you mean 'targets'?; allowed: default, defaults, targets",
        "target: {}\n",
    ),
    _pairings("a tab as indentation", 2, "cannot start any token", "targets:\n\tbig: {}\n"),
    _pairings("an open bracket", 2, "expected the node content", "targets: {big: {\n"),
    _pairings("an open quote", 2, "unexpected end of stream", 'targets: "big\n'),
    _pairings("two documents", 2, "but found another document", "targets: {}\n---\na: 1\n"),
    _pairings("not UTF-8", 2, "not UTF-8 text", b"targets:\n  b\xfcro: {}\n"),
    _pairings("a NUL byte", 2, "control character 0x0", b"targets:\n  big\0: {}\n"),
    _pairings("an escape beyond Unicode", 1, "not YAML", 'targets: {"\\Uffffffff": {}}\n'),
    _pairings("half a surrogate pair", 1, "control characters", 'targets: {"\\ud800": {}}\n'),
    _pairings("a huge file", 1, "larger than", b"# padding\n" * 30_000),
    _pairings("deep nesting", 1, "nested deeper than 20 levels", "targets: " + "[" * 50_000),
    _pairings("an anchor", 1, "anchors (&) and aliases (*)", "targets: &all {}\n"),
    _pairings("an alias", 2, "anchors (&) and aliases (*)", "targets: {}\ndefaults: *all\n"),
    _pairings(
        "a billion laughs",
        1,
        "anchors (&) and aliases (*)",
        """
        a: &a [lol, lol]
        b: &b [*a, *a]
        targets: [*b, *b]
        """,
    ),
    _pairings(
        "a tag that builds an object",
        1,
        "tags such as 'tag:yaml.org,2002:python/object/apply:os.system'",
        "targets: !!python/object/apply:os.system [echo]\n",
    ),
    _pairings("a merge key", 2, "not a merge key", "targets:\n  <<: {}\n"),
    _pairings("a list as a key", 2, "a key of targets: text is needed", "targets:\n  ? [a]\n"),
    _pairings(
        "a name that YAML takes for a truth value",
        2,
        "not true or false ('no'); in quotes it is text",
        "targets:\n  no: {}\n",
    ),
    _pairings("a name with a slash", 2, "a name is letters, digits", "targets:\n  a/b: {}\n"),
    _pairings(
        "the same target twice",
        6,
        "targets.big: given twice, first on line 2",
        """
        targets:
          big:
            model: owner/big
            drafters:
              copy: {method: ngram}
          big:
            model: owner/other
        """,
    ),
    _pairings(
        "a default that is not there",
        1,
        "did you mean 'big/copy'?",
        """
        default: [big, big/cop]
        targets:
          big: {model: owner/big, drafters: {copy: {method: ngram}}}
        """,
    ),
    _pairings(
        "an empty default",
        1,
        "default: names nothing",
        """
        default: []
        targets:
          big: {model: owner/big, drafters: {copy: {method: ngram}}}
        """,
    ),
    _pairings(
        "an unknown default setting",
        2,
        "defaults.temperature: unknown key; allowed: dtype, device_map, num_speculative_tokens",
        "defaults:\n  temperature: 1\ntargets: {}\n",
    ),
    _pairings("a target without a body", 2, "not nothing", "targets:\n  big:\n"),
    _target("a target without a model", 2, "targets.big: the key `model` is missing", "note: x"),
    _pairings(
        "a target without drafters",
        2,
        "targets.big: the key `drafters` is missing",
        "targets:\n  big:\n    model: owner/big\n",
    ),
    _target("a misspelt key", 3, "did you mean 'model'?; allowed: model, revision", "modle: o/b"),
    _target("a key given twice", 4, "first on line 3", "model: owner/a\nmodel: owner/b"),
    _target("a number as a model", 3, "text is needed, not a whole number ('7')", "model: 7"),
    _target("an empty model", 3, "targets.big.model: is empty", 'model: " "'),
    _target("a model that is nothing", 3, "text is needed, not nothing", "model:"),
    _target("a folder that is not there", 3, "no folder ./weights/big", "model: ./weights/big"),
    _target("a name too long", 3, "cannot be read: File name", "model: ./" + "x" * 5000),
    _target("a home folder that is not there", 3, "no folder ~/no/such", "model: ~/no/such"),
    _target("a folder without a model", 3, "has no config.json", "model: ./"),
    _target("a path without ./", 3, "not a Hugging Face id", "model: weights/llama/8b"),
    _target("a revision that is a number", 4, "in quotes it is text", "model: o/b\nrevision: 12"),
    _target("an unknown dtype", 4, "did you mean 'bfloat16'?", "model: o/b\ndtype: bfloat"),
    _target("a dtype that is a list", 4, "text is needed, not a list", "model: o/b\ndtype: [x]"),
    _target("an unknown device", 4, "allowed: auto, balanced", "model: o/b\ndevice_map: gpu"),
    _target("an unknown quantization", 4, "allowed: int8, int4", "model: o/b\nquantization: fp3"),
    _target(
        "text where true or false belongs",
        4,
        "true or false is needed, not text",
        "model: o/b\ntrust_remote_code: maybe",
    ),
    _target("negative memory", 4, "a number above 0 is needed", "model: o/b\nneeds_gib: -1"),
    _target("memory that is not a number", 4, "not .nan", "model: o/b\nneeds_gib: .nan"),
    _target("infinite memory", 4, "not 1.0e+999", "model: o/b\nneeds_gib: 1.0e+999"),
    _target("memory with a unit", 4, "not text ('15 GiB')", "model: o/b\nneeds_gib: 15 GiB"),
    _target("no such workloads", 4, "no folder prompts", "model: o/b\nworkloads: prompts"),
    _pairings(
        "a drafter called none",
        5,
        "the name of the K = 0 baseline",
        """
        targets:
          big:
            model: owner/big
            drafters:
              none: {method: ngram}
        """,
    ),
    _drafter("a drafter without a method", 5, "the key `method` is missing", "model: o/s"),
    _drafter("an unknown method", 6, "did you mean 'draft_model'?", "method: draft-model"),
    _drafter("a draft model without a model", 5, "`model` is missing", "method: draft_model"),
    _drafter("a model that no one reads", 7, "takes no model", "method: ngram\nmodel: o/s"),
    _drafter("K = 0", 7, "a whole number from 1 to 64", "method: ngram\nnum_speculative_tokens: 0"),
    _drafter("a huge K", 7, "from 1 to 64", "method: ngram\nnum_speculative_tokens: " + "9" * 6000),
    _drafter("half a token", 7, "not a number", "method: ngram\nnum_speculative_tokens: 2.5"),
    _drafter("K in words", 7, "not text", "method: ngram\nnum_speculative_tokens: four"),
    _drafter(
        "an unknown parameter",
        7,
        "allowed: max_ngram, min_ngram",
        "method: ngram\nparameters: {max_gram: 3}",
    ),
    _drafter(
        "a parameter out of range",
        8,
        "is 0; a whole number from 1 to 32 is allowed",
        "method: ngram\nparameters:\n  min_ngram: 0",
    ),
    _drafter(
        "parameters that are a list", 7, "not a list", "method: ngram\nparameters: [max_ngram]"
    ),
    _drafter(
        "a parameter that is a list",
        7,
        "is (1,); a whole number from 1 to 32 is allowed",
        "method: ngram\nparameters: {max_ngram: [1]}",
    ),
]

BROKEN_WORKLOADS = [
    _lines("an empty file", 1, "the file holds no prompts", ""),
    _lines("only blank lines", 1, "the file holds no prompts", "\n\n \n"),
    _lines("not JSON", 2, "not JSON: ", '{"prompt": "a"}\nhello\n'),
    _lines("a line cut off", 1, "not JSON: ", '{"prompt": "a\n'),
    _lines("a JSON list", 1, "a JSON list begins here", '[{"prompt": "a"}]\n'),
    _lines("a bare string", 1, "an object is needed, not text", '"hello"\n'),
    _lines("no known key", 1, "none of the keys messages", '{"question": "a"}\n'),
    _lines("an empty object", 1, "it has: none", "{}\n"),
    _lines("an empty prompt", 2, "prompt: is empty", '{"prompt": "a"}\n{"prompt": " "}\n'),
    _lines("a prompt that is a number", 1, "text is needed, not a number", '{"prompt": 3}\n'),
    _lines("no turns", 1, "not an empty list", '{"turns": []}\n'),
    _lines("turns that are text", 1, "turns: a list of at least one", '{"turns": "a"}\n'),
    _lines("an empty second turn", 1, "turns: is empty", '{"turns": ["a", ""]}\n'),
    _lines(
        "an unknown role",
        1,
        "unknown role 'wizard' of a message; allowed: system, user",
        '{"messages": [{"role": "wizard", "content": "a"}]}\n',
    ),
    _lines("a message without a role", 1, "unknown role None", '{"messages": [{"a": "b"}]}\n'),
    _lines("messages that are text", 1, "not a list of something", '{"messages": ["a"]}\n'),
    _lines(
        "content in parts",
        1,
        "text is needed, not a list",
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}\n',
    ),
    _lines(
        "nothing to answer",
        1,
        "no user message to answer",
        '{"conversations": [{"from": "gpt", "value": "a"}]}\n',
    ),
    _lines(
        "only a system prompt",
        1,
        "no user message to answer",
        '{"messages": [{"role": "system", "content": "a"}]}\n',
    ),
    _lines("tools that are text", 1, "tools: a list", '{"prompt": "a", "tools": "t"}\n'),
    _lines("tools in a list", 1, "a list of objects", '{"prompt": "a", "tools": ["t"]}\n'),
    _lines("template_args", 1, "an object is needed", '{"prompt": "a", "template_args": [1]}\n'),
    _lines("a prediction", 1, "list of at least one item is", '{"prompt": "a", "prediction": 1}\n'),
    _lines("an empty prediction", 1, "is empty", '{"prompt": "a", "prediction": " "}\n'),
    _lines(
        "a prediction too many",
        1,
        "2 texts for 1 turns; one a turn is needed",
        '{"prompt": "a", "prediction": ["b", "c"]}\n',
    ),
    _lines(
        "an id twice",
        3,
        "the id '1' is already on line 1",
        '{"id": 1, "prompt": "a"}\n\n{"question_id": "1", "prompt": "b"}\n',
    ),
    _lines("an id that is a list", 1, "id: text or a whole", '{"id": [1], "prompt": "a"}\n'),
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
    _card("a card without licence", 1, "`licence` is missing", _card_with(licence=None)),
    _card("a card with an unknown key", 7, "unknown key, did you", _card_with(licence_url="MIT")),
    _card("another name", 1, "'yours' is not the file's name, 'mine'", _card_with(name="yours")),
    _card("a changed file", 4, "mine.jsonl has changed", _card_with(sha256="f" * 64)),
    _card("half a checksum", 4, "64 digits", _card_with(sha256="abc")),
    _card("another count", 6, "mine.jsonl has 1 prompts", _card_with(prompts=2)),
    _card("a length of nothing", 5, "from 1 to 131072", _card_with(max_new_tokens=0)),
    _card("a card that is empty", 1, "the file is empty", ""),
    _own("a misspelt key", "'sytem', did you mean 'system'?", {"prompt": "a", "sytem": "b"}),
    _own("two prompts in one", "gives turns and prompt", {"prompt": "a", "turns": ["b"]}),
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
        says="or give a JSONL file",
        workload="mien",
    ),
]
