"""One speculative cell and its baseline; other cells are these with fields replaced."""

from dataclasses import replace

from specbench.records import CellKey

KEY = CellKey(
    pairing="demo/draft",
    target="demo",
    drafter="draft",
    workload="code",
    engine="builtin",
    method="draft_model",
    num_speculative_tokens=4,
    concurrency=1,
    temperature=0.0,
    dtype="float32",
)
BASE_KEY = replace(KEY, pairing="demo", drafter="none", method="none", num_speculative_tokens=0)
