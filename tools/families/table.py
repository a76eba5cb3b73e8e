"""The page docs/families.md: what becomes of each family on several versions of transformers."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tools.families.proof import IDENTICAL, NOT_BUILT, REFUSED, Verdict

Column = Mapping[str, Verdict]  # by family, on one version of transformers

ABSENT: Final = "not there"
_HEAD = """# Families of models

Every decoder in transformers' registry, as a tiny model with random weights in float32. Generated
by `python -m tools.families`; `make test-models` holds it on both versions.

- **identical**: greedy text over slots is that of transformers' own `generate`, with three ragged
  prompts together, without drafts, with wrong drafts, with right ones and with a tree of them
  (recurrent layers can only check chains); windows and chunks are crossed. Multimodal models run
  their text part alone. Beside it stands which forward ran: transformers' code over our slots
  (stock) or our own (fused).
- **refused**: loading says why, in these words, and the rest of a run continues.
- **not built**: its default config does not become a tiny model here; nothing is known.

What differs between the two versions has a line each.

"""


def render(columns: Mapping[str, Column]) -> str:
    """The page; `columns` are by version."""
    lines = [f"| version | {IDENTICAL} | {REFUSED} | {NOT_BUILT} |", "| --- | --- | --- | --- |"]
    for version, column in columns.items():
        num = Counter(verdict.state for verdict in column.values())
        lines.append(f"| {version} | {num[IDENTICAL]} | {num[REFUSED]} | {num[NOT_BUILT]} |")
    lines += ["", "| family | transformers | state | why |", "| --- | --- | --- | --- |"]
    for family in sorted({family for column in columns.values() for family in column}):
        for versions, verdict in _grouped(family, columns):
            lines.append(f"| {family} | {versions} | {verdict.state} | {verdict.why} |")
    return _HEAD + "\n".join(lines) + "\n"


def _grouped(family: str, columns: Mapping[str, Column]) -> list[tuple[str, Verdict]]:
    """The verdicts on a family with the versions that share each."""
    shared: dict[Verdict, list[str]] = {}
    for version, column in columns.items():
        verdict = column.get(family, Verdict(ABSENT))
        shared.setdefault(verdict.shown, []).append(version)
    return [(", ".join(versions), verdict) for verdict, versions in shared.items()]
