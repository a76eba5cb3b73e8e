"""MODEL_CARD.md from the recorded facts; no number in it is typed by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """\
# The embedded pair

Three small Llama models with one tokenizer, trained from scratch on text written by a generator in
this repository, and three heads that draft for the target. They exist so that specbench runs in an
empty folder, on a CPU, without a download.

- The text is synthetic and **easier than real text**. Acceptance is therefore higher than with real
  models on real text. Use the pair to learn what the numbers mean, not to predict your own.
- On a CPU the speedup comes from the **overhead of a layer**: the target has {target_layers}
  layers and the draft {draft_layers}, of equal width. It does not come from memory bandwidth,
  which is where it comes from with large models on a GPU.
- Shipped in bfloat16, run in float32 on a CPU. Trained on rows of at most 512 tokens (most are
  below 250), although the configuration allows 1024 positions. English only, five kinds of text;
  other text is outside what the models know.
- `poor` is a draft that should not be used: see the recipe below. It is here so that a measured
  "do not speculate" can be seen.

This page is written by `python -m tools.demo.card` from what it measured.
"""

_CHOICES = """\
## Choices that bear on acceptance

- The generator decides how predictable a register is: chat has about 100 topics whose steps come in
  a few wordings; code has 40 written functions, 8 list operations with 12 predicates, 17 unit
  conversions and classes with free field lists; qa is a finite table of facts; edit copies the
  prompt with one change; creative draws every word list from the theme of the story and carries
  names, pronouns, things, places and a number from its first sentences to its last.
- The text was not tuned towards a result: it was written before any acceptance was measured and
  not changed afterwards. Where the order of the registers differs from the literature's, it stays.
- The target's training was lengthened from 1700 to 2100 steps at step 800 for what a reader saw in
  its answers, before any acceptance was measured.
- What the target does badly: it often swaps the names of people in stories, so a story does not
  keep its hero; edits that change a name often put in a wrong one; small sums and opposites are
  sometimes wrong. The generator's text has that structure; the target has learned part of it, so
  creative is probably easier to draft than it would be for a target that follows names.
- Held out: 1 in 25 first prompts, and 1 in 25 pairs of topic and phrasing. Topics themselves are
  not held out, so answers draw on facts and steps that were seen in training.
- One conversation a row, never packed: packed rows teach a small model to ignore its prompt.
- The target is deep and narrow (an unusual shape) because depth is what costs time on a CPU.
- `draft` starts from the target's embeddings and first two layers and is trained on the target's
  whole distribution (distillation), over conversations that the target was not trained on. A draft
  trained by somebody else, on other text, would be accepted less often.
- `poor` looks cheap and is not: a thirteenth of the target's parameters, but a quarter of its
  layers, and so about a quarter of its time a token on a CPU. It was trained for {poor_steps}
  steps on the same corpus, without the target; the number of steps was chosen to make a draft that
  is right now and then. With a single layer a bad guess would cost next to nothing.
"""

_LEGEND = """
ppl: perplexity of written held-out answers. entropy: of the target at temperature 1 on its own
text, nats a token. greedy: share of positions where draft and target have the same first choice,
on the target's greedy text. alpha: mean of the sum over x of min(p(x), q(x)) on the target's text
at temperature 1. tokens: mean length of a greedy answer. All are teacher-forced: properties of the
models, not measured speed.
"""


_HEADS = """
Held out, kept at position i: share of places of the target's greedy answers, to prompts that were
not trained on, where the head's first i tokens of a chain are the target's own. The last column is
the mean length of a chain at that, one more token included. Heads learned from the part of the
corpus that `draft` was trained on and the target was not; on other text they would be accepted
less often. Each head's `training.json` has the whole of it. What was `specbench train` is
`python -m tools.training` now.
"""


def model_card(facts: Mapping[str, Any], heads: Mapping[str, Any]) -> str:
    """The whole page as Markdown; `heads` are by name what their training.json says."""
    models = facts["models"]
    parts = [
        _INTRODUCTION.format(
            target_layers=models["target"]["layers"], draft_layers=models["draft"]["layers"]
        ),
        _models(models),
        _registers(facts["registers"]),
        _CHOICES.format(poor_steps=facts["training"]["poor"]["schedule"]["steps"]),
        _training(facts),
        _heads(heads),
        _samples(facts["registers"]),
    ]
    return "\n".join(parts)


def _models(models: Mapping[str, Any]) -> str:
    rows = [
        [
            f"`{name}`",
            str(model["layers"]),
            str(model["width"]),
            f"{model['parameters']:,}",
            f"`{model['sha256'][:16]}...`",
        ]
        for name, model in models.items()
    ]
    return "## Models\n\n" + _table(
        ["model", "layers", "width", "parameters", "SHA-256 of the weights"], rows
    )


def _registers(registers: Mapping[str, Any]) -> str:
    rows = []
    for name, facts in registers.items():
        perplexity = facts["held_out_perplexity"]
        rows.append(
            [
                name,
                *(f"{perplexity[model]:.2f}" for model in ("target", "draft", "poor")),
                f"{facts['target_entropy_nats']:.3f}",
                *(f"{facts['greedy_agreement'][model]:.3f}" for model in ("draft", "poor")),
                *(f"{facts['alpha_temperature_1'][model]:.3f}" for model in ("draft", "poor")),
                f"{facts['mean_answer_tokens']:.0f}",
            ]
        )
    header = [
        "register", "ppl target", "ppl draft", "ppl poor", "entropy", "greedy draft", "greedy poor",
        "alpha draft", "alpha poor", "tokens",
    ]  # fmt: skip
    parse_rate = registers["code"]["code_parse_rate"]
    loops = max(facts["greedy_repeating"] for facts in registers.values())
    hardest = sorted(registers, key=lambda name: registers[name]["alpha_temperature_1"]["draft"])
    unended = max(facts["greedy_unended"] for facts in registers.values())
    return (
        "## Measured on held-out prompts\n\n" + _table(header, rows) + f"{_LEGEND}\n"
        f"By the good draft's alpha, hardest first: {', '.join(hardest)}.\n"
        "Chat and qa ask for a topic or a fact that a small draft does not hold;\n"
        "that is our reading, not a test.\n\n"
        f"Code answers that are valid Python: {parse_rate:.0%}. Greedy answers with a run of 8\n"
        f"tokens more than three times: at most {loops:.0%} in any register. Greedy answers\n"
        f"without an end after 192 tokens: at most {unended:.0%}.\n"
    )


def _training(facts: Mapping[str, Any]) -> str:
    lines = [
        "## How it was trained\n",
        "- `python -m tools.demo.train --out DIR`",
        f"- seed {facts['seed']}, made on top of commit `{facts['commit']}`",
        f"- corpus fingerprint `{facts['corpus_sha256']}`",
        f"- {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}",
        f"- {facts['machine']}, {facts['cpu']}; two processes of one thread each, float32",
        "- the machine was shared with other work, so the minutes are an upper bound",
    ]
    for name, part in facts["training"].items():
        progress, schedule = part["progress"], part["schedule"]
        losses = ", ".join(f"{loss:.3f}" for loss in progress["losses"])
        lines.append(
            f"- `{name}`: {schedule['steps']} steps, {progress['tokens']:,} tokens with padding, "
            f"{progress['wall_s'] / 60:.0f} minutes, learning rate {schedule['muon_lr']} (Muon) "
            f"and {schedule['adamw_lr']} (AdamW). Loss for each 100 steps: {losses}"
        )
    return "\n".join(lines) + "\n"


def _heads(heads: Mapping[str, Any]) -> str:
    rows = []
    for name, head in heads.items():
        held_out = head["held_out"]
        rows.append(
            [
                f"`{name}`",
                f"{head['head']['parameters']:,}",
                f"{head['head']['bytes'] / 1e6:.1f} MB",
                f"{head['training']['steps']:,}",
                f"{head['training']['seconds'] / 60:.0f}",
                ", ".join(f"{share:.3f}" for share in held_out["acceptance_per_position"]),
                f"{held_out['mean_length_of_the_chain']:.2f}",
            ]
        )
    header = [
        "head",
        "parameters",
        "file",
        "steps",
        "minutes",
        "kept at position 1, 2 ..",
        "length",
    ]
    made = "\n".join(_head_lines(name, head) for name, head in heads.items())
    return f"## Heads\n\n{_table(header, rows)}{_HEADS}\n{made}\n"


def _head_lines(name: str, head: Mapping[str, Any]) -> str:
    texts, held_out = head["texts"], head["held_out"]
    temperatures = " and ".join(f"{temperature:g}" for temperature in texts["temperatures"])
    commit = head["commit"]
    made_on = "a commit that was not recorded"
    if commit is not None:
        made_on = f"commit `{commit.removesuffix('-dirty')}`"
        if commit.endswith("-dirty"):
            made_on += " **with changes that were not committed**; that code is in no commit"
    return "\n".join(
        [
            f"- `{name}`: `{' '.join(head['command'])}`",
            f"  - learned from the target's own answers at temperature {temperatures} to prompts "
            f"of {', '.join(texts['sources'])}: {texts['count'] - texts['held_out']:,} texts; "
            f"{texts['held_out']} held out, {held_out['contexts']:,} places",
            f"  - {head['head']['stored_as']}, SHA-256 of the weights "
            f"`{head['head']['sha256'][:16]}...`; made on {made_on}",
        ]
    )


def _samples(registers: Mapping[str, Any]) -> str:
    lines = ["## Answers of the target to held-out prompts\n"]
    for name, facts in registers.items():
        for sample in facts["samples"]:
            lines.append(f"**{name}, temperature {sample['temperature']}**\n")
            lines.append(_quoted(sample["prompt"]) + "\n")
            lines.append(_indented(sample["answer"]) + "\n")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
