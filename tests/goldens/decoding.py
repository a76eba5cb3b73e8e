"""Outputs of the built-in decoder: token ids and counts of rounds, for every drafting method.

Models run in float64, because in float32 a near-tie of logits is decided by the processor's
instruction set. Draws are float32 as in every run: a tie there needs two of some thousand numbers
equal to 1e-7. Drafters are those of the demo models; P-EAGLE, MTP, DFlash, DSpark and assistants
have no head there, so theirs are random, of a random target of 7 tokens.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml

from specbench.demo import MODELS, WORKLOADS
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, Work
from specbench.engines.kernel_choices import KernelChoices
from specbench.engines.model_pool import ModelPool
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import DrafterSpec
from specbench.inputs.workloads import load_workload
from specbench.methods import find_method
from specbench.models.loading import load_model
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Request, Result, Sampling
from specbench.settings import DecoderSettings
from tests.decoding.lossless import SAMPLED_PROMPT, sampled_model, texts_of
from tests.drafters.variants import VARIANTS
from tests.other_tokenizers import revocabularied, write_pieces
from tests.tiny_models import files_of, write_head
from tests.tiny_pair import make_tokenizer

# Entries of pairings.yaml in addition to those of the variants.
_LOSSY = {
    "medusa-typical": {"method": "medusa", "lossy": "typical"},
    "draft_model-threshold": {
        "method": "draft_model",
        "lossy": {"rule": "threshold", "single": 0.3},
    },
}
_ENTRIES: dict[str, dict[str, Any]] = {
    **{
        variant.name.replace(", ", "-").replace(" ", "-"): {
            "method": variant.method,
            "parameters": json.loads(json.dumps(variant.parameters)),
        }
        for variant in VARIANTS
    },
    **_LOSSY,
}
CASES = [("none", 0), *((name, k) for name in _ENTRIES for k in range(1, 9))]
_MAX_NEW_TOKENS = 10
_SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.7)}
_NUM_PROMPTS = {1: 2, 4: 4}  # by concurrency
_PROMPTS = ("edit-011", "qa-001", "code-004", "chat-010")  # the second ends early


class Subject(NamedTuple):
    """A loaded target and its prompts."""

    engine: BuiltinEngine
    prompts: Sequence[tuple[int, ...]]


class Decoding:
    """Decodes with the models and drafters that it writes or finds among the demo's."""

    def __init__(self, folder: Path) -> None:
        sampled_model(seed=0, num_layers=2).save_pretrained(folder / "tiny")
        make_tokenizer().save_pretrained(folder / "tiny")
        _write_other_draft(folder / "other")
        targets: dict[str, dict[str, Any]] = {
            "demo": {"model": "demo:target", "dtype": "float64", "drafters": {}},
            "tiny": {"model": "./tiny", "dtype": "float64", "drafters": {}},
        }
        for name, entry in _ENTRIES.items():
            method, target = find_method(entry["method"]), "demo"
            model = {}
            if (MODELS / method.name).exists():
                model = {"model": f"demo:{method.name}"}
            elif method.is_head:
                write_head(folder / name, method.name, files_of(folder / "tiny"))
                model, target = {"model": f"./{name}"}, "tiny"
            elif method.model == "required":
                model = {"model": "./other" if method.retokenizes else "demo:draft"}
            targets[target]["drafters"][name] = {**entry, **model}
        (folder / "pairings.yaml").write_text(yaml.safe_dump({"targets": targets}))
        self._pairings = load_pairings(folder / "pairings.yaml")
        self._subjects = cache(self._load)
        self._added: list[DrafterSpec] = []

    @patch.object(KernelChoices, "_attend", lambda *_: None)  # torch's, and not the fastest here
    def facts(self, name: str, k: int) -> dict[str, str]:
        """Ids and counts of every pass of one drafter at one K."""
        pairing = next((p for p in self._pairings.all if p.drafter.name == name), None)
        subject = self._subjects(pairing.target.name if pairing else "demo")
        facts = {}
        for label, sampling in _SAMPLINGS.items():
            for concurrency, num_prompts in _NUM_PROMPTS.items():
                work = subject.engine.baseline
                if pairing:
                    work = Work(drafter=name, method=pairing.drafter.method, k=k)
                    self._add(subject.engine, pairing.drafter)
                requests = [
                    Request(
                        prompt_ids=prompt,
                        max_new_tokens=_MAX_NEW_TOKENS,
                        sampling=sampling,
                        seed=seed,
                        prediction_ids=_prediction(subject.engine, prompt),
                    )
                    for seed, prompt in enumerate(subject.prompts[:num_prompts])
                ]
                try:
                    served = subject.engine.serve(requests, work, Load(concurrency=concurrency))
                    fact = _in_one_line(served.results, k)
                except UsageError as error:
                    fact = f"refused: {type(error).__name__}"
                facts[f"{label}, concurrency {concurrency}"] = fact
        return facts

    def _add(self, engine: BuiltinEngine, drafter: DrafterSpec) -> None:
        """Add it once, or before every pass if it has no model: it may learn from answers."""
        if drafter not in self._added or drafter.model is None:
            engine.remove_drafter(drafter.name)
            engine.add_drafter(drafter)
            self._added.append(drafter)

    def _load(self, name: str) -> Subject:
        decoder = DecoderSettings(kernels="torch")  # not the faster ones here
        pool = ModelPool(torch.device("cpu"))
        engine = BuiltinEngine(self._pairings.target(name), pool, decoder)
        if name == "tiny":
            return Subject(engine, [SAMPLED_PROMPT[i:] for i in range(4)])
        prompts = []
        for prompt_id in _PROMPTS:
            workload = load_workload(prompt_id.partition("-")[0], folder=WORKLOADS)
            (prompt,) = (prompt for prompt in workload.prompts if prompt.id == prompt_id)
            prompts.append(engine.tokenizer.prompt_ids(prompt.turns[0]))
        return Subject(engine, prompts)


def _in_one_line(results: Sequence[Result], k: int) -> str:
    """A hash of all ids, the first eight, and how many rounds accepted a draft at 1 .. K."""
    ids = texts_of(results)
    logs = [result.rounds for result in results if result.rounds]
    accepted = [n for log in logs for n in log.num_accepted]
    checks = [result.answer_check for result in results if result.answer_check]
    counts = {
        "ids": [hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12], *ids[0][:8]],
        "tokens": [len(answer) for answer in ids],
        "rounds": [len(log) for log in logs],
        "drafted": [sum(n for log in logs for n in log.num_drafted)],
        "accepted": [sum(n >= place for n in accepted) for place in range(1, k + 1)],
        "predicted": [n for check in checks for n in (check.num_drafted, check.num_accepted)],
    }
    return ", ".join(f"{name} {' '.join(map(str, of))}" for name, of in counts.items() if of)


@cache
def _prediction(engine: BuiltinEngine, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The target's greedy answer with one token changed, for methods that copy from one."""
    request = Request(
        prompt_ids=prompt, max_new_tokens=_MAX_NEW_TOKENS, sampling=Sampling(), seed=0
    )
    answer = engine.generate(request, engine.baseline).output_ids
    return (*answer[:8], 0, *answer[9:])


def _write_other_draft(folder: Path) -> None:
    """The demo draft under the ids of another tokenizer that has the words of the prompts."""
    texts = tuple(
        message.content
        for name in ("chat", "code", "edit", "qa")
        for prompt in load_workload(name, folder=WORKLOADS).prompts
        for message in prompt.turns[0]
    )
    target = ChatTokenizer(str(MODELS / "target"), revision=None, trust_remote_code=False)
    pieces = write_pieces(folder, 900, texts)
    draft = load_model(model_spec("demo:draft"), torch.device("cpu")).model
    revocabularied(draft, target, pieces).save_pretrained(folder)


def all_facts(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Outputs by drafter, then by K, sampling and concurrency."""
    decoding, facts = Decoding(folder), defaultdict(dict)
    for name, k in CASES:
        facts[name][f"K={k}"] = decoding.facts(name, k)
    return facts
