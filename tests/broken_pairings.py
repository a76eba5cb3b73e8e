"""Broken pairings files, each with the place and the values its error must name."""

from textwrap import dedent

from specbench.errors import ConfigError
from tests.broken_inputs import BrokenInput


def _pairings(name: str, line: int, names: str, text: str | bytes, key: str = "") -> BrokenInput:
    content = text if isinstance(text, bytes) else dedent(text).lstrip("\n").encode()
    return BrokenInput(
        name=name,
        files={"pairings.yaml": content},
        error=ConfigError,
        place=f"pairings.yaml:{line}: {key}",
        names=names,
    )


def _drafter(name: str, line: int, names: str, text: str) -> BrokenInput:
    """`text` is the body of the drafter `small`; its first line is line 6."""
    head = "targets:\n  big:\n    model: owner/big\n    drafters:\n      small:\n"
    body = "".join(f"        {row}\n" for row in dedent(text).strip().splitlines())
    return _pairings(name, line, names, (head + body).encode(), key="targets.big.drafters.small")


def _target(name: str, line: int, names: str, text: str) -> BrokenInput:
    """`text` is what the target `big` has in addition to its drafter; its first line is line 3."""
    rows = dedent(text).strip().splitlines()
    body = "".join(f"    {row}\n" for row in rows)
    tail = "    drafters:\n      copy:\n        method: ngram\n"
    return _pairings(
        name, line, names, ("targets:\n  big:\n" + body + tail).encode(), key="targets.big"
    )


_ORIGIN = "method: ngram\nsource: https://example.org/heads{}"

BROKEN_PAIRINGS = [
    _pairings("an empty file", 1, "empty", ""),
    _pairings("only a comment", 1, "empty", "# nothing\n"),
    _pairings("a list at the top", 1, "mapping.*list", "- a\n"),
    _pairings("plain text", 1, "mapping.*'pairings'", "pairings\n"),
    _pairings("no targets", 1, "`targets`", "default: demo\n"),
    _pairings("no target", 1, "targets.*empty", "targets: {}\n"),
    _pairings(
        "an unknown key at the top",
        1,
        "target:.*'targets'.*default, defaults, targets",
        "target: {}\n",
    ),
    _pairings("a tab as indentation", 2, r"'\\t'", "targets:\n\tbig: {}\n"),
    _pairings("an open bracket", 2, "<stream end>", "targets: {big: {\n"),
    _pairings("an open quote", 2, "end of stream", 'targets: "big\n'),
    _pairings("two documents", 2, "another document", "targets: {}\n---\na: 1\n"),
    _pairings("not UTF-8", 2, "UTF-8", b"targets:\n  b\xfcro: {}\n"),
    _pairings("a NUL byte", 2, "0x00", b"targets:\n  big\0: {}\n"),
    _pairings("an escape beyond Unicode", 1, "YAML", 'targets: {"\\Uffffffff": {}}\n'),
    _pairings(
        "half a surrogate pair", 1, "a key of targets.*surrogate", 'targets: {"\\ud800": {}}\n'
    ),
    _pairings("a huge file", 1, "256000 bytes", b"# padding\n" * 30_000),
    _pairings("deep nesting", 1, "20 levels", "targets: " + "[" * 50_000),
    _pairings("an anchor", 1, r"\(&\).*\(\*\)", "targets: &all {}\n"),
    _pairings("an alias", 2, r"\(&\).*\(\*\)", "targets: {}\ndefaults: *all\n"),
    _pairings(
        "a billion laughs",
        1,
        r"\(&\).*\(\*\)",
        """
        a: &a [lol, lol]
        b: &b [*a, *a]
        targets: [*b, *b]
        """,
    ),
    _pairings(
        "a tag that builds an object",
        1,
        "'tag:yaml.org,2002:python/object/apply:os.system'",
        "targets: !!python/object/apply:os.system [echo]\n",
    ),
    _pairings("a merge key", 2, r"a key of targets.*merge key \('<<'\)", "targets:\n  <<: {}\n"),
    _pairings("a list as a key", 2, "a key of targets.*list", "targets:\n  ? [a]\n"),
    _pairings(
        "a name that YAML takes for a truth value",
        2,
        r"a key of targets.*true or false \('no'\).*'no'",
        "targets:\n  no: {}\n",
    ),
    _pairings(
        "a name with a slash", 2, "targets.a/b.*letters, digits and . _ -", "targets:\n  a/b: {}\n"
    ),
    _pairings(
        "the same target twice",
        6,
        "targets.big.*line 2",
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
        "default:.*'big/cop'.*'big/copy'",
        """
        default: [big, big/cop]
        targets:
          big: {model: owner/big, drafters: {copy: {method: ngram}}}
        """,
    ),
    _pairings(
        "an empty default",
        1,
        "default:.*empty",
        """
        default: []
        targets:
          big: {model: owner/big, drafters: {copy: {method: ngram}}}
        """,
    ),
    _pairings(
        "an unknown default setting",
        2,
        "defaults.temperature.*dtype, device_map, num_speculative_tokens",
        "defaults:\n  temperature: 1\ntargets: {}\n",
    ),
    _pairings("a target without a body", 2, "targets.big.*mapping.*nothing", "targets:\n  big:\n"),
    _target("a target without a model", 2, "`model`", "note: x"),
    _pairings(
        "a target without drafters",
        2,
        "targets.big.*`drafters`",
        "targets:\n  big:\n    model: owner/big\n",
    ),
    _target("a misspelt key", 3, "modle.*'model'.*model, revision", "modle: o/b"),
    _target("a key given twice", 4, "model.*line 3", "model: owner/a\nmodel: owner/b"),
    _target("a number as a model", 3, r"model.*text.*whole number \('7'\)", "model: 7"),
    _target("an empty model", 3, "model.*empty", 'model: " "'),
    _target("a model that is nothing", 3, "model.*text.*nothing", "model:"),
    _target("a folder that is not there", 3, "model.*./weights/big", "model: ./weights/big"),
    _target("a name too long", 3, "model.*'./xxx.*File name too long", "model: ./" + "x" * 5000),
    _target("a home folder that is not there", 3, "model.*~/no/such", "model: ~/no/such"),
    _target("a folder without a model", 3, "model.*./.*config.json", "model: ./"),
    _target(
        "a path without ./", 3, "model.*'weights/llama/8b'.*owner/name", "model: weights/llama/8b"
    ),
    _target(
        "the cache's name of a model", 3, "model.*'models--o--b'.*owner/name", "model: models--o--b"
    ),
    _target("an id that no hub takes", 3, "model.*'o/a..b'.*owner/name", "model: o/a..b"),
    _target("an address of a repository", 3, "model.*'o/b.git'.*owner/name", "model: o/b.git"),
    _target("an id too long", 3, "model.*'o/bbb.*owner/name", "model: o/" + "b" * 97),
    _target("a revision that is a number", 4, "revision.*text.*'12'", "model: o/b\nrevision: 12"),
    _target(
        "an unknown dtype",
        4,
        "dtype.*'bfloat'.*'bfloat16'.*auto, float32",
        "model: o/b\ndtype: bfloat",
    ),
    _target("a dtype that is a list", 4, "dtype.*text.*list", "model: o/b\ndtype: [x]"),
    _target("a dtype that is a mapping", 4, "dtype.*text.*mapping", "model: o/b\ndtype: {x: y}"),
    _target(
        "an unknown device", 4, "device_map.*'gpu'.*auto, balanced", "model: o/b\ndevice_map: gpu"
    ),
    _target(
        "an unknown quantization",
        4,
        "quantization.*'fp3'.*int8, int4",
        "model: o/b\nquantization: fp3",
    ),
    _target(
        "text where true or false belongs",
        4,
        "trust_remote_code.*true or false.*'maybe'",
        "model: o/b\ntrust_remote_code: maybe",
    ),
    _target("negative memory", 4, "weights_gib.*above 0.*-1", "model: o/b\nweights_gib: -1"),
    _target(
        "memory that is not a number",
        4,
        "weights_gib.*above 0.*.nan",
        "model: o/b\nweights_gib: .nan",
    ),
    _target(
        "infinite memory",
        4,
        r"weights_gib.*above 0.*1.0e\+999",
        "model: o/b\nweights_gib: 1.0e+999",
    ),
    _target(
        "memory with a unit", 4, "weights_gib.*above 0.*'15 GiB'", "model: o/b\nweights_gib: 15 GiB"
    ),
    _target("no such workloads", 4, "workloads.*folder prompts", "model: o/b\nworkloads: prompts"),
    _pairings(
        "a drafter called none",
        5,
        "targets.big.drafters.none.*K=0",
        """
        targets:
          big:
            model: owner/big
            drafters:
              none: {method: ngram}
        """,
    ),
    _drafter("a drafter without a method", 5, "`method`", "model: o/s"),
    _drafter(
        "an unknown method",
        6,
        "method.*'draft-model'.*'draft_model'.*dflash2, draft_model",
        "method: draft-model",
    ),
    _drafter("a draft model without a model", 5, "`model`", "method: draft_model"),
    _drafter("a model that no one reads", 7, "model.*ngram", "method: ngram\nmodel: o/s"),
    _drafter(
        "K = 0", 7, "num_speculative_tokens.*1 to 64.*0", "method: ngram\nnum_speculative_tokens: 0"
    ),
    _drafter("a lookup that is never sure", 7, "p_min.*ngram.*tree", "method: ngram\np_min: 0.5"),
    _drafter("p_min above 1", 8, "p_min.*up to 1.*2", "method: mtp\nmodel: o/s\np_min: 2"),
    _drafter(
        "a huge K",
        7,
        "num_speculative_tokens.*1 to 64.*999",
        "method: ngram\nnum_speculative_tokens: " + "9" * 6000,
    ),
    _drafter("a source without a day", 5, "`checked`", _ORIGIN.format("")),
    _drafter("a day without a source", 5, "`source`", 'method: ngram\nchecked: "2026-11-23"'),
    _drafter(
        "a day that is none",
        8,
        "checked.*'2026-13-01'.*2026-11-23",
        _ORIGIN.format('\nchecked: "2026-13-01"'),
    ),
    _drafter(
        "a day without quotes",
        8,
        r"checked.*text.*date \('2026-11-23'\)",
        _ORIGIN.format("\nchecked: 2026-11-23"),
    ),
    _drafter(
        "a source that is no page",
        7,
        "source.*'a friend'.*https://",
        "method: ngram\nsource: a friend",
    ),
    _drafter(
        "half a token",
        7,
        "num_speculative_tokens.*1 to 64.*'2.5'",
        "method: ngram\nnum_speculative_tokens: 2.5",
    ),
    _drafter(
        "K in words",
        7,
        "num_speculative_tokens.*1 to 64.*'four'",
        "method: ngram\nnum_speculative_tokens: four",
    ),
    _drafter(
        "an unknown parameter",
        7,
        "parameters.max_gram.*'max_ngram'.*max_ngram, min_ngram",
        "method: ngram\nparameters: {max_gram: 3}",
    ),
    _drafter(
        "a parameter out of range",
        8,
        "parameters.min_ngram.*0.*1 to 32",
        "method: ngram\nparameters:\n  min_ngram: 0",
    ),
    _drafter(
        "parameters that are a list",
        7,
        "parameters.*mapping.*list",
        "method: ngram\nparameters: [max_ngram]",
    ),
    _drafter(
        "a parameter that is a list",
        7,
        r"parameters.max_ngram.*\(1,\).*1 to 32",
        "method: ngram\nparameters: {max_ngram: [1]}",
    ),
]
