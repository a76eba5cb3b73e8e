"""Broken pairings files, each with the place and the words its error must have."""

from textwrap import dedent

from tests.broken_inputs import BrokenInput


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
    """`text` is what the target `big` has in addition to its drafter; its first line is line 3."""
    rows = dedent(text).strip().splitlines()
    body = "".join(f"    {row}\n" for row in rows)
    tail = "    drafters:\n      copy:\n        method: ngram\n"
    return _pairings(name, line, says, ("targets:\n  big:\n" + body + tail).encode())


_ORIGIN = "method: ngram\nsource: https://example.org/heads{}"

BROKEN_PAIRINGS = [
    _pairings("an empty file", 1, "the file is empty", ""),
    _pairings("only a comment", 1, "the file is empty", "# nothing\n"),
    _pairings("a list at the top", 1, "expected a mapping (key: value), not a list", "- a\n"),
    _pairings("plain text", 1, "expected a mapping (key: value), not text", "pairings\n"),
    _pairings("no targets", 1, "the key `targets` is missing", "default: demo\n"),
    _pairings("no target", 1, "targets: is empty; add at least one", "targets: {}\n"),
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
    _pairings("a list as a key", 2, "a key of targets: expected text", "targets:\n  ? [a]\n"),
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
        "default: is empty",
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
    _target("a number as a model", 3, "expected text, not a whole number ('7')", "model: 7"),
    _target("an empty model", 3, "targets.big.model: is empty", 'model: " "'),
    _target("a model that is nothing", 3, "expected text, not nothing", "model:"),
    _target("a folder that is not there", 3, "no folder ./weights/big", "model: ./weights/big"),
    _target("a name too long", 3, "cannot be read: File name", "model: ./" + "x" * 5000),
    _target("a home folder that is not there", 3, "no folder ~/no/such", "model: ~/no/such"),
    _target("a folder without a model", 3, "has no config.json", "model: ./"),
    _target("a path without ./", 3, "not a Hugging Face id", "model: weights/llama/8b"),
    _target("the cache's name of a model", 3, "not a Hugging Face id", "model: models--o--b"),
    _target("an id that no hub takes", 3, "not a Hugging Face id", "model: o/a..b"),
    _target("an address of a repository", 3, "not a Hugging Face id", "model: o/b.git"),
    _target("an id too long", 3, "not a Hugging Face id", "model: o/" + "b" * 97),
    _target("a revision that is a number", 4, "in quotes it is text", "model: o/b\nrevision: 12"),
    _target("an unknown dtype", 4, "did you mean 'bfloat16'?", "model: o/b\ndtype: bfloat"),
    _target("a dtype that is a list", 4, "expected text, not a list", "model: o/b\ndtype: [x]"),
    _target("a dtype that is a mapping", 4, "not a mapping", "model: o/b\ndtype: {x: y}"),
    _target("an unknown device", 4, "allowed: auto, balanced", "model: o/b\ndevice_map: gpu"),
    _target("an unknown quantization", 4, "allowed: int8, int4", "model: o/b\nquantization: fp3"),
    _target(
        "text where true or false belongs",
        4,
        "expected true or false, not text",
        "model: o/b\ntrust_remote_code: maybe",
    ),
    _target("negative memory", 4, "expected a number above 0", "model: o/b\nweights_gib: -1"),
    _target("memory that is not a number", 4, "not .nan", "model: o/b\nweights_gib: .nan"),
    _target("infinite memory", 4, "not 1.0e+999", "model: o/b\nweights_gib: 1.0e+999"),
    _target("memory with a unit", 4, "not text ('15 GiB')", "model: o/b\nweights_gib: 15 GiB"),
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
    _drafter("a source without a day", 5, "`checked` is missing", _ORIGIN.format("")),
    _drafter(
        "a day without a source", 5, "`source` is missing", 'method: ngram\nchecked: "2026-11-23"'
    ),
    _drafter("a day that is none", 8, "is not a day", _ORIGIN.format('\nchecked: "2026-13-01"')),
    _drafter("a day without quotes", 8, "expected text", _ORIGIN.format("\nchecked: 2026-11-23")),
    _drafter(
        "a source that is no page",
        7,
        "'a friend' is not an address",
        "method: ngram\nsource: a friend",
    ),
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
        "is 0; expected a whole number from 1 to 32",
        "method: ngram\nparameters:\n  min_ngram: 0",
    ),
    _drafter(
        "parameters that are a list", 7, "not a list", "method: ngram\nparameters: [max_ngram]"
    ),
    _drafter(
        "a parameter that is a list",
        7,
        "is (1,); expected a whole number from 1 to 32",
        "method: ngram\nparameters: {max_ngram: [1]}",
    ),
]
