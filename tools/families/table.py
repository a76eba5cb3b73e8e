"""The page docs/families.md: the outcome of each family on several versions of transformers."""

from collections import Counter
from collections.abc import Mapping
from textwrap import fill
from typing import Final

from tools.families.proof import IDENTICAL, NOT_BUILT, REFUSED, Verdict

Column = Mapping[str, Verdict]  # by family, on one version of transformers

ABSENT: Final = "not there"
_HEAD = """# Model families

Look up here whether the built-in decoder runs your model's family. For a model that you have:

<!-- not run: needs a model -->
```sh
specbench pair ./models/mine --dry-run
```

`python -m tools.families` wrote this page. It tried every decoder in transformers' registry, as a
tiny model with random weights in float32. `make test-models` repeats it on both versions.

| state | meaning |
| --- | --- |
| identical | greedy output equals that of transformers' own `generate` |
| refused | loading gives the reason, in these words, and the rest of a run continues |
| not built | its default config cannot be made tiny here, so nothing is known |

"Identical" was tested with three prompts of different lengths in a batch, beyond windows and
chunks. There were runs without drafts, with wrong drafts, with right ones, and with a tree of them.
Recurrent layers verify chains only. Multimodal models run their text part only. *Stock* is
transformers' code with our KV cache, and *fused* is our own forward.

"""


def render(columns: Mapping[str, Column]) -> str:
    """The page; `columns` are by version, the newest last."""
    lines = [f"| version | {IDENTICAL} | {REFUSED} | {NOT_BUILT} |", "| --- | --- | --- | --- |"]
    for version, column in columns.items():
        num = Counter(verdict.state for verdict in column.values())
        lines.append(f"| {version} | {num[IDENTICAL]} | {num[REFUSED]} | {num[NOT_BUILT]} |")
    newest, column = list(columns.items())[-1]
    for state in (IDENTICAL, REFUSED, NOT_BUILT):
        names = sorted(family for family, verdict in column.items() if verdict.state == state)
        text = fill(", ".join(names), 100, break_on_hyphens=False)
        lines += ["", f"## {state.capitalize()} on {newest}", "", text]
    lines += ["", "## Every family, with reasons", ""]
    lines += ["| family | transformers | state | why |", "| --- | --- | --- | --- |"]
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
