"""Take a finished training into the package: `python -m tools.demo.card --trained DIR`.

Copies the models, writes the workloads, measures, and writes card.json and MODEL_CARD.md. Without
`--trained` the page alone is written, from card.json and the training.json of each head.
"""

import argparse
import hashlib
import json
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.demo import MODELS, ROOT, WORKLOADS
from tools.demo.card_text import model_card
from tools.demo.corpus import END, REGISTERS, SEED, corpus_sha256, held_out_conversations
from tools.demo.evaluation import (
    Answer,
    agreement,
    answers,
    entropy,
    most_repeated,
    parses,
    perplexity,
    prompt_ids,
)
from tools.demo.prompts import write_workloads
from tools.demo.train import PARTS

NAMES = ("target", "draft", "poor")
HEADS = ("eagle", "eagle3", "medusa")  # of `specbench train`, each with its training.json
_PROMPTS = 40  # of each workload, first turns only


@dataclass(frozen=True, kw_only=True)
class RegisterFacts:
    """What was measured on one register; text is the target's own, first turns only."""

    held_out_perplexity: dict[str, float]
    target_entropy_nats: float
    greedy_agreement: dict[str, float]
    alpha_temperature_1: dict[str, float]
    mean_answer_tokens: float
    greedy_unended: float  # share of greedy answers that reached 192 tokens without an end
    greedy_repeating: float  # share of greedy answers with a run of 8 tokens more than 3 times
    code_parse_rate: float | None
    samples: list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trained", type=Path, help="the --out of the training")
    trained = parser.parse_args().trained
    if trained is not None:
        _take(trained)
    facts = json.loads((ROOT / "card.json").read_text(encoding="utf-8"))
    (ROOT / "MODEL_CARD.md").write_text(model_card(facts, head_facts()), encoding="utf-8")


def _take(trained: Path) -> None:
    torch.set_num_threads(1)
    for name in NAMES:
        shutil.copytree(trained / name, MODELS / name, dirs_exist_ok=True)
        (MODELS / name / "model.safetensors").chmod(0o644)
    write_workloads(WORKLOADS, seed=SEED, trained_per_register=END)
    facts = {**_provenance(trained), "registers": _measure()}
    (ROOT / "card.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def head_facts() -> dict[str, Any]:
    """What each head's training.json says, with the size of its file."""
    found = {}
    for name in HEADS:
        told = json.loads((MODELS / name / "training.json").read_text(encoding="utf-8"))
        size = (MODELS / name / "model.safetensors").stat().st_size
        found[name] = {**told, "head": {**told["head"], "bytes": size}}
    return found


def load(name: str) -> LlamaForCausalLM:
    """One of the shipped models in float32, as it runs on a CPU."""
    return LlamaForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()


def weights_sha256(name: str) -> str:
    return hashlib.sha256((MODELS / name / "model.safetensors").read_bytes()).hexdigest()


def _provenance(trained: Path) -> dict[str, Any]:
    models = {}
    for name in NAMES:
        config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
        models[name] = {
            "sha256": weights_sha256(name),
            "parameters": sum(p.numel() for p in load(name).parameters()),
            "layers": config["num_hidden_layers"],
            "width": config["hidden_size"],
        }
    return {
        "commit": _git("rev-parse", "HEAD"),
        "corpus_sha256": corpus_sha256(SEED),
        "seed": SEED,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": _processor(),
        "models": models,
        "training": {
            part: json.loads((trained / f"{part}.json").read_text(encoding="utf-8"))
            for part in PARTS
        },
    }


def _git(*arguments: str) -> str | None:
    """The answer of git, or None outside a repository."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine()
    )


def _measure() -> dict[str, dict[str, Any]]:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    models = {name: load(name) for name in NAMES}
    return {
        register: asdict(_measure_register(register, tokenizer, models)) for register in REGISTERS
    }


def _measure_register(
    register: str, tokenizer: PreTrainedTokenizerFast, models: dict[str, LlamaForCausalLM]
) -> RegisterFacts:
    lines = (WORKLOADS / f"{register}.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines][:_PROMPTS]
    ids = [prompt_ids(tokenizer, p["turns"][0], p.get("system")) for p in prompts]
    target = models["target"]
    greedy, sampled = answers(target, ids, sampled=False), answers(target, ids, sampled=True)
    fits = {name: agreement(target, models[name], greedy, sampled) for name in ("draft", "poor")}
    texts = [tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in greedy]
    held_out = held_out_conversations(register, SEED, 100)
    return RegisterFacts(
        held_out_perplexity={
            n: round(perplexity(m, tokenizer, held_out), 4) for n, m in models.items()
        },
        target_entropy_nats=round(entropy(target, sampled), 4),
        greedy_agreement={name: round(fit.greedy, 4) for name, fit in fits.items()},
        alpha_temperature_1={name: round(fit.alpha, 4) for name, fit in fits.items()},
        mean_answer_tokens=sum(len(a.ids) for a in greedy) / len(greedy),
        greedy_unended=_share(a.ids[-1] != tokenizer.eos_token_id for a in greedy),
        greedy_repeating=_share(most_repeated(a.ids) > 3 for a in greedy),
        code_parse_rate=_share(map(parses, texts)) if register == "code" else None,
        samples=_samples(tokenizer, prompts, greedy[:3], sampled[:1]),
    )


def _share(flags: Any) -> float:
    found = [bool(flag) for flag in flags]
    return sum(found) / len(found)


def _samples(
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[dict[str, Any]],
    greedy: list[Answer],
    sampled: list[Answer],
) -> list[dict[str, str]]:
    return [
        {
            "temperature": temperature,
            "prompt": prompt["turns"][0],
            "answer": tokenizer.decode(answer.ids, skip_special_tokens=True),
        }
        for temperature, chosen in (("0", greedy), ("1", sampled))
        for prompt, answer in zip(prompts, chosen, strict=False)
    ]


if __name__ == "__main__":
    main()
