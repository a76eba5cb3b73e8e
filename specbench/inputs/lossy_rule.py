"""Reads `lossy:` of a drafter: a rule, with its parameters where they are not its own."""

from specbench.inputs.strict_yaml import Value, number, one_of
from specbench.records import LossyRule
from specbench.records.lossy import RULES

_KEYS = ("rule", *dict.fromkeys(p for parameters in RULES.values() for p in parameters))


def read_lossy(value: Value) -> LossyRule:
    """`typical`, or `{rule: typical, alpha: 0.5}` for other parameters than the rule's own."""
    is_name = not value.is_mapping
    rule = value if is_name else value.section(allowed=_KEYS).must("rule", lambda v: v)
    name = one_of(tuple(RULES))(rule)
    own = RULES[name]
    given = {} if is_name else value.section(allowed=("rule", *own)).entries
    for parameter, default in own.items():
        if default is None and parameter not in given:
            wanted = f"{{rule: {name}, {parameter}: 0.5}}"
            value.fail(f"the rule {name} needs its `{parameter}`, such as {wanted}")
    read = number(above=0, most=1)
    chosen = {p: read(given[p]) if p in given else d for p, d in own.items()}
    return LossyRule(name=name, parameters={p: v for p, v in chosen.items() if v is not None})
