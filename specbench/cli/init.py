"""`specbench init`: the three files of a project that measures its own pair."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.adhoc_pairing import AdhocPairing
from specbench.errors import UsageError
from specbench.settings import RunSettings
from specbench.whole_file import write_errors_named, write_new

PAIRINGS, PROMPTS, WORKFLOW = "pairings.yaml", "prompts.jsonl", ".github/workflows/specbench.yml"
_DEMO = AdhocPairing(target="demo:target", drafts=["demo:draft", "ngram"])

_HEAD = """\
# What specbench measures here. A target is the model whose text you want; a drafter guesses its
# tokens. `specbench run {pairing}` measures one pairing, `specbench run {target}` all drafters.
# Every entry may also have `dtype`, `revision`, `device_map`,
# `quantization` (int8, int4, fp8) and `note`; a drafter also `num_speculative_tokens`, its K.
# `specbench list methods` shows the methods, `specbench list parameters` their parameters.
#
# `model` is a folder (relative to this file), a Hugging Face id, or demo:NAME.
"""
# Examples, to be replaced with real prompts in the same form.
_PROMPTS = (
    "Summarize in one sentence why unit tests should not depend on the clock.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Rewrite as a polite email: the report is late, send it today.",
    "List three things to check before a database migration.",
    "Explain to a new colleague what a load balancer does.",
    "Translate into German: The meeting has moved to Thursday at ten.",
    "Write a SQL query that counts the orders of each customer in the last 30 days.",
    "Name three causes of a slow web page, the most frequent first.",
    "Write a commit message for a change that retries failed uploads twice.",
    "Explain the difference between a process and a thread in two sentences.",
)
_WORKFLOW = """\
# Measures {pairing} for every pull request and fails if speculative decoding got worse.
# Make the baseline once on the same kind of runner and commit it as ci/baseline.json:
#   for i in 1 2 3 4 5; do specbench run {pairing} -w ./{prompts} --threads 1; done
# Keep --threads the same below: seconds at different numbers of threads are not compared.
#   specbench baseline reports/*/ --output ci/baseline.json
# GitHub reads this file only in the root of a repository, and the runner needs the models at the
# paths in {pairings}.
name: specbench
on: [pull_request]
env:
  # Source of specbench: a checkout or a wheel in this repository, or git+https://...
  # (the project of this name on the public index is unrelated).
  SPECBENCH: ./vendor/specbench
jobs:
  gate:
    runs-on: ubuntu-latest  # a runner that has the GPU you serve with also judges seconds
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.12"}}
      - run: pip install "$SPECBENCH"
      - name: Measure
        run: |
          # Exit code 3 means undecided, which is fine here: `check` judges below.
          for i in 1 2 3; do
            specbench run {pairing} -w ./{prompts} --threads 1 || [ $? -eq 3 ]
          done
          specbench baseline reports/*/ --output candidate.json
      - name: Judge
        run: >
          specbench check ci/baseline.json candidate.json
          --fail-on "mean_acceptance_length:2%"
          --junit gate.xml
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gate
          path: |
            gate.xml
            candidate.json
            reports
"""


def init(
    pair: AdhocPairing,
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to write to; files there are kept.", show_default="this folder"
        ),
    ] = Path(),
) -> None:
    """Write a pairings.yaml, prompts and a CI workflow to begin with."""
    from specbench.fit.pairings_file import pairings_text

    named = pair if pair.target is not None or pair.drafts else replace(_DEMO, p_min=pair.p_min)
    pairings = named.pairings(RunSettings.unset(), ())
    target = pairings[0].target
    head = _HEAD.format(pairing=pairings[0].name, target=target.name)
    prompts = (json.dumps({"id": f"p{n}", "turns": [text]}) for n, text in enumerate(_PROMPTS, 1))
    texts = {
        PAIRINGS: head + pairings_text(target, [pairing.drafter for pairing in pairings], folder),
        PROMPTS: "".join(f"{prompt}\n" for prompt in prompts),
        WORKFLOW: _WORKFLOW.format(pairing=pairings[0].name, prompts=PROMPTS, pairings=PAIRINGS),
    }
    if taken := [name for name in texts if (folder / name).exists()]:
        raise UsageError(
            f"{', '.join(str(folder / name) for name in taken)}: exists, and is kept; name "
            "another folder, as in `specbench init DIRECTORY`"
        )
    for name, text in texts.items():
        file = folder / name
        with write_errors_named(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_new(file, text)
        typer.echo(f"written: {file}")
    typer.echo(f"For CI, set SPECBENCH in {folder / WORKFLOW} to a checkout, wheel or git URL.")
    typer.echo(f"\nNext: put your own prompts into {folder / PROMPTS}, then")
    if folder.resolve() != Path.cwd():
        typer.echo(f"  cd {shlex.quote(str(folder))}")
    typer.echo(f"  specbench run {pairings[0].name} -w ./{PROMPTS}")
