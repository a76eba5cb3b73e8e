"""Help as plain text: options under the heading of their group, then an example."""

import re
from typing import Any

from typer.core import TyperCommand

EXAMPLES = {
    "run": "specbench run demo/draft --workload code",
    "sweep-k": "specbench sweep-k demo/draft --workload code -k 0..8 --time-budget 3m",
    "pair": "specbench pair ./models/target --draft ./models/draft --draft ngram",
    "verify": "specbench verify demo/draft",
    "inspect": 'specbench inspect demo/draft --prompt "Write a function that adds two numbers"',
    "train": "specbench train eagle --target demo:target -o ./head --time-budget 5m",
    "report": "specbench report latest",
    "recommend": "specbench recommend latest",
    "export": "specbench export demo/draft --engine vllm",
    "import": "specbench import results.json --pairing llama-3.1-8b/eagle3",
    "history": "specbench history",
    "check": "specbench check baseline.json latest",
    "baseline": "specbench baseline latest --output baseline.json",
    "list": "specbench list pairings",
    "doctor": "specbench doctor demo/draft",
    "init": "specbench init --target demo:target --draft demo:draft",
}

NEXT = """\
specbench {version}: does speculative decoding pay off for your model, GPU and text?

Three things to do next:
  specbench sweep-k demo/draft --time-budget 2m
      try it: the embedded pair needs no download
  specbench pair MODEL --draft DRAFT --dry-run
      does your draft fit your model and this memory? (folders or hub ids)
  specbench run --target MODEL --draft DRAFT
      measure them, with a verdict for chat, code and creative writing

specbench --help lists every command."""


# Types as typer writes them.
_KIND = re.compile(r" <(?:list\[)?(int|float|path|Path|str)(?: range)?\]?>$")
_METAVARS = {"int": "N", "float": "X", "path": "PATH", "Path": "PATH", "str": "TEXT"}


# Options that had other names before 0.1.0, each with the names that took its place.
_RENAMED = {
    "--acceptance": ("--simulate-acceptance",),
    "--budget": ("--time-budget",),
    "--catalogue": ("--published",),
    "--context": ("--prompt-tokens", "--plan-context"),
    "--costs": ("--step-times",),
    "--cycles": ("--restart-cycles",),
    "--drafts": ("--draft",),
    "--exhaustive": ("--validate-forecast",),
    "--force": ("--skip-memory-check",),
    "--forward": ("--model-impl",),
    "--gpus-per-cell": ("--gpus-per-task",),
    "--graph": ("--cuda-graph",),
    "--in": ("--search-dir",),
    "--kernels": ("--attention-backend",),
    "--launch": ("--engine-command",),
    "--measure": ("--measure-top",),
    "--out": ("--runs-dir", "--output"),
    "--pairings": ("--config",),
    "--precision": ("--margin-of-error", "--detect"),
    "--prefix-cache": ("--enable-prefix-caching",),
    "--prompts": ("--num-prompts", "--workload"),
    "--runs": ("--runs-dir",),
    "--samples": ("--best-of",),
    "--start-timeout": ("--startup-timeout",),
    "--to": ("--output",),
    "--tokens": ("--num-tokens",),
    "--write": ("--output",),
}


class Grouped(TyperCommand):
    """A command whose help lists options by group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The new name is suggested for an option that was renamed."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # NoSuchOption, which typer does not export
            names = _RENAMED.get(getattr(error, "option_name", ""), ())
            if names and hasattr(error, "possibilities"):
                options = {name for parameter in self.params for name in parameter.opts}
                error.possibilities = [name for name in names if name in options]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then each group, then what belongs to no group."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                names, words = record
                panels.setdefault(panel_of(parameter), []).append((with_metavar(names), words))
        rest = panels.pop("Options", [])
        for heading, records in (*panels.items(), ("Options", rest)):
            with formatter.section(heading):
                formatter.write_dl(records)


def with_metavar(names: str) -> str:
    """An option's names with what it takes as people write it: N, not <int range>.

    An argument has a name already, so its type is left out.
    """
    kind = _KIND.search(names)
    if kind is None:
        return names
    return names[: kind.start()] + (f" {_METAVARS[kind[1]]}" if names.startswith("-") else "")


def panel_of(parameter: Any) -> str:
    """The heading under which an option stands."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"
