"""`lossy:` of a drafter is read as strictly as everything else."""

from pathlib import Path

import pytest

from specbench.errors import ConfigError
from specbench.inputs.config import load_pairings
from specbench.records import LossyRule

FILE = """\
targets:
  big:
    model: owner/big
    drafters:
      copy:
        method: ngram
        lossy: {}
"""


def rule_of(folder: Path, text: str) -> LossyRule | None:
    path = folder / "pairings.yaml"
    path.write_text(FILE.format(text))
    return load_pairings(path).all[0].drafter.lossy


@pytest.mark.parametrize(
    ("text", "name", "parameters", "expected"),
    [
        ("typical", "typical", {"threshold": 0.09, "alpha": 0.3}, "typical"),
        ("{rule: typical}", "typical", {"threshold": 0.09, "alpha": 0.3}, "typical"),
        (
            "{rule: typical, alpha: 0.5}",
            "typical",
            {"threshold": 0.09, "alpha": 0.5},
            "typical alpha=0.5",
        ),
        (
            "{threshold: 0.2, rule: typical, alpha: 1}",
            "typical",
            {"threshold": 0.2, "alpha": 1.0},
            "typical threshold=0.2 alpha=1",
        ),
        (
            "{rule: threshold, single: 0.4}",
            "threshold",
            {"single": 0.4},
            "threshold single=0.4",
        ),
    ],
)
def test_a_lossy_rule_has_defaults_and_shows_changed_parameters(
    text: str, name: str, parameters: dict[str, float], expected: str, tmp_path: Path
) -> None:
    rule = rule_of(tmp_path, text)
    assert rule == LossyRule(name=name, parameters=parameters)
    assert str(rule) == expected


def test_a_drafter_without_the_lossy_key_is_lossless(tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_text(FILE.replace("        lossy: {}\n", ""))
    assert load_pairings(path).all[0].drafter.lossy is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("typicl", "unknown 'typicl', did you mean 'typical'?; allowed: typical, threshold"),
        ("true", "expected text, not true or false"),
        ("threshold", "the rule threshold needs its `single`, such as {rule: threshold, single"),
        ("{alpha: 0.3}", "the key `rule` is missing"),
        ("{rule: typical, single: 0.3}", "lossy.single: unknown key; allowed: rule, threshold"),
        ("{rule: typical, alfa: 0.3}", "lossy.alfa: unknown key, did you mean 'alpha'?"),
        ("{rule: typical, alpha: 0}", "lossy.alpha: expected a number above 0 and up to 1, not 0"),
        ("{rule: typical, alpha: 1.5}", "expected a number above 0 and up to 1, not 1.5"),
        ("{rule: typical, threshold: high}", "up to 1, not text ('high')"),
        ("{rule: typical, threshold: .nan}", "up to 1, not .nan"),
        ("[typical]", "expected text, not a list"),
        ("{}", "the key `rule` is missing"),
    ],
)
def test_an_error_has_its_line_and_what_is_allowed(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        rule_of(tmp_path, text)
    assert "pairings.yaml:7: targets.big.drafters.copy.lossy" in str(wrong.value)
    assert says in str(wrong.value)


def test_a_lossy_drafter_runs_only_if_named(tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_text(FILE.format("typical") + "      exact:\n        method: ngram\n")
    pairings = load_pairings(path)
    assert [p.name for p in pairings.all] == ["big/copy", "big/exact"]
    assert [p.name for p in pairings.select(["big"])] == ["big/exact"]
    assert [p.name for p in pairings.select()] == ["big/exact"]
    assert [p.name for p in pairings.select(["big/copy"])] == ["big/copy"]
    assert [p.name for p in pairings.select(["big", "big/copy"])] == ["big/exact", "big/copy"]
