"""The pair's own workloads: held-out prompts under the names of the real ones."""

import hashlib
import json
from pathlib import Path

import yaml

from tools.demo.corpus import REGISTERS, sample
from tools.demo.corpus.conversation import CorpusConversation

PROMPTS = 40
MAX_NEW_TOKENS = 128
_DESCRIPTIONS = {
    "chat": "Advice, explanations, comparisons and ideas for the embedded pair.",
    "code": "Small Python functions and classes for the embedded pair.",
    "creative": "Stories and poems for the embedded pair.",
    "qa": "Questions of fact with short answers for the embedded pair.",
    "edit": "A text or a function to change in a small way, for the embedded pair.",
    "mixed": "Code and chat in turn, for an adaptive K: the draft guesses code well, chat less so.",
}
_MIXED = {"easy": "code", "hard": "chat"}  # the registers of `mixed`, by category


def write_workloads(folder: Path, *, seed: int, trained_per_register: int) -> None:
    """Write `<name>.jsonl` and `.yaml`; the models were trained on none of the prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {register: _chosen(register, seed, trained_per_register) for register in REGISTERS}
    rows = {
        register: [_row(conversation.category, conversation) for conversation in conversations]
        for register, conversations in chosen.items()
    }
    in_turn = zip(*(chosen[register][: PROMPTS // 2] for register in _MIXED.values()), strict=True)
    rows["mixed"] = [_row(*row) for pair in in_turn for row in zip(_MIXED, pair, strict=True)]
    for name, of_name in rows.items():
        _write(folder, name, of_name)


def _write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    lines = [
        json.dumps({"id": f"{name}-{number:03d}", **row}, ensure_ascii=False)
        for number, row in enumerate(rows, 1)
    ]
    content = ("\n".join(lines) + "\n").encode()
    (folder / f"{name}.jsonl").write_bytes(content)
    about = {
        "name": name,
        "description": _DESCRIPTIONS[name],
        "license": "Apache-2.0",
        "sha256": hashlib.sha256(content).hexdigest(),
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompts": len(rows),
    }
    text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def _chosen(register: str, seed: int, trained: int) -> list[CorpusConversation]:
    """Half are unseen wordings, half unseen pairs of topic and phrasing; first prompts differ."""
    drawn = [sample(register, index, seed) for index in range(trained)]
    seen = {c.turns[0][0] for c in drawn if not c.is_held_out}
    by_prompt: dict[str, CorpusConversation] = {}
    by_combination: dict[str, CorpusConversation] = {}
    for conversation in drawn:
        prompt = conversation.turns[0][0]
        if conversation.is_held_out and prompt not in seen:
            kind = by_prompt if conversation.is_prompt_held_out else by_combination
            kind.setdefault(prompt, conversation)
    half = PROMPTS // 2
    pairs = zip(list(by_prompt.values())[:half], list(by_combination.values())[:half], strict=True)
    return [conversation for pair in pairs for conversation in pair]


def _row(category: str, conversation: CorpusConversation) -> dict[str, object]:
    row: dict[str, object] = {"category": category}
    if conversation.system is not None:
        row["system"] = conversation.system
    return {**row, "turns": [user for user, _ in conversation.turns]}
