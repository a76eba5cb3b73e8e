"""Heads as other libraries write them have the outputs of these libraries' own forwards.

Shape suffixes: K drafts, W tokens of a head's vocabulary, V the target's vocabulary.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.drafters.dflash import DFlashHead
from specbench.drafters.dflash2 import DFlash2Head
from specbench.drafters.eagle import EagleHead
from specbench.drafters.eagle3 import Eagle3Head, ParallelHead
from specbench.drafters.medusa import MedusaHeads
from specbench.drafters.mtp import MtpHead
from specbench.drafters.registry import build_drafter
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import check_drafter
from specbench.forward.runner import Runner, StockRunner
from specbench.inputs.pairing import DrafterSpec
from specbench.methods import kind_of
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from tests.decoding.lossless import parts_of
from tests.drafters.feature_cases import run_rounds
from tests.foreign_heads.environments import PYTHON
from tests.tiny_models import files_of

pytestmark = pytest.mark.models

HERE = Path(__file__).parent
WRITTEN = {
    "modelopt": (
        *("eagle3", "eagle3_deep", "eagle3_ids", "eagle3_yarn"),
        *("dflash", "dflash_window", "dflash_causal", "medusa"),
    ),
    "specforge": ("eagle3", "eagle3_ids", "peagle", "dflash", "dflash_mixed"),
    "speculators": (
        *("eagle3", "eagle3_last_output", "eagle3_window", "eagle3_mixed"),
        *("peagle", "peagle_window"),
        *("dflash", "dflash_last_output", "dflash_window", "dflash_mixed", "dflash_from_anchor"),
        *("dflash2", "dflash2_mixed", "dflash2_causal"),
        *("mtp_qwen3", "mtp_qwen3_5_text", "mtp_qwen3_next"),
    ),
    "z_lab": ("dflash2", "dflash2_window", "dflash2_scales"),
}
HEADS = [(library, name) for library, names in WRITTEN.items() for name in names]
SPAN = 64


@dataclass(frozen=True, kw_only=True)
class WrittenHead:
    """A head in its folder, the target that it was made for, and the library's logits."""

    folder: Path
    target: Runner
    checkpoint: Checkpoint
    tokens: list[int]
    facts: Mapping[str, Any]
    logits: Mapping[int, Tensor]  # [K, W] by the tokens that the target has read

    @property
    def method(self) -> str:
        return str(self.facts["method"])


@cache
def written_by(library: str) -> Path:
    """The folder of all heads that a library's script writes, made once per process."""
    out = PYTHON.parents[2] / "heads" / os.environ.get("PYTEST_XDIST_WORKER", "alone") / library
    shutil.rmtree(out, ignore_errors=True)
    script = HERE / f"write_{library}.py"
    quiet = {"TORCHDYNAMO_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    subprocess.run([PYTHON, script, out], check=True, env={**os.environ, **quiet})
    return out


@cache
def target_of(library: str) -> Runner:
    model = AutoModelForCausalLM.from_pretrained(written_by(library) / "target")
    return StockRunner(model.eval())


def opened(library: str, name: str) -> WrittenHead:
    folder = written_by(library) / name
    with safe_open(folder / "proof.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["facts"])
        logits = {int(key): file.get_tensor(key) for key in file.keys() if key != "tokens"}  # noqa: SIM118
        tokens = file.get_tensor("tokens").tolist()
    return WrittenHead(
        folder=folder,
        target=target_of(library),
        checkpoint=read_checkpoint(str(folder)),
        tokens=tokens,
        facts=facts,
        logits=logits,
    )


@pytest.mark.parametrize(("library", "name"), [head for head in HEADS if "yarn" not in head[1]])
def test_logits_are_those_of_the_librarys_own_forward(library: str, name: str) -> None:
    written = opened(library, name)
    say, ids_W = SAID[written.method](written), torch.tensor(written.facts["ids"])
    others_V = torch.ones(written.target.vocab_size, dtype=torch.bool).index_fill(0, ids_W, False)
    largest = 0.0
    assert written.logits
    for n, expected_KW in written.logits.items():
        logits_KV = say(n, len(expected_KW))
        assert bool((logits_KV[:, others_V] == -torch.inf).all())
        deviation = (logits_KV[:, ids_W] - expected_KW).abs().max() / expected_KW.std()
        largest = max(largest, float(deviation))
        assert largest < 1e-4, f"after {n} tokens"
    print(f"{library} {name}: {len(written.logits)} places, off by {largest:.1e} deviations")


@pytest.mark.parametrize(("library", "name"), HEADS)
def test_foreign_heads_are_recognized_and_fit_their_target(library: str, name: str) -> None:
    written = opened(library, name)
    files, spec = files_of(written.folder), ModelSpec(source=name, folder=written.folder)
    target = files_of(written_by(library) / "target")

    checked = check_drafter(target, DrafterSpec(name="head", method=written.method, model=spec))

    assert kind_of(files).method == written.method
    assert checked.level != "refused", [finding.text for finding in checked.of_level("refused")]


@pytest.mark.parametrize(("library", "name"), HEADS)
def test_a_foreign_head_drafts_without_changing_the_text(library: str, name: str) -> None:
    written = opened(library, name)
    prompts, rounds = [tuple(written.tokens[:9]), tuple(written.tokens[3:17])], [3, 3, 1, 3, 3]
    texts = {}
    for k in (0, 1):
        drafter = build_drafter(
            written.method, parts_of(written.target, None, written.checkpoint), {}
        )
        texts[k] = run_rounds(written.target, drafter, prompts, [k * each for each in rounds])

    for plain, drafted in zip(texts[0], texts[1], strict=True):
        assert drafted[: len(plain)] == plain


Say = Callable[[int, int], Tensor]


def features_of(written: WrittenHead, features: tuple[int, ...], n: int) -> tuple[Tensor, ...]:
    """The target's hidden states at the first n tokens [1, n, F] each."""
    written.target.allocate(1, SPAN)
    places_1T = torch.arange(n)[None]
    tokens_1T = torch.tensor([written.tokens[:n]])
    return written.target.forward(tokens_1T, places_1T, SPAN, features=features).features


def after_reading(written: WrittenHead, head: Any, n: int) -> Tensor:
    """An EAGLE-like head's state [1, 1, F] after the target's first n tokens."""
    head.layers.allocate(1, SPAN)
    states = head.fuse(features_of(written, head.features, n))
    tokens_1T = torch.tensor([written.tokens[1 : n + 1]])
    states_1TF: Tensor = head.step(tokens_1T, states, torch.arange(n)[None], SPAN)
    return states_1TF[:, -1:]


def chain(written: WrittenHead, head: Any) -> Say:
    """Each draft after the true tokens before it, from the head's own states."""

    @torch.no_grad()
    def logits_at(n: int, k: int) -> Tensor:
        states = after_reading(written, head, n)
        all_logits = [head.logits(states)[0, 0]]
        for depth in range(1, k):
            at_11 = torch.tensor([[n + depth - 1]])
            token_11 = torch.tensor([[written.tokens[n + depth]]])
            states = head.step(token_11, states, at_11, SPAN, depth=depth)
            all_logits.append(head.logits(states)[0, 0])
        return torch.stack(all_logits)

    return logits_at


def masked(written: WrittenHead) -> Say:
    head = ParallelHead(written.checkpoint, written.target)

    @torch.no_grad()
    def logits_at(n: int, k: int) -> Tensor:
        states = after_reading(written, head, n)
        if k > 1:
            places = torch.arange(n, n + k - 1)[None]
            after = head.step(*head.masks(places), places, SPAN, depth=1)
            states = torch.cat([states, after], 1)
        return head.logits(states)[0]

    return logits_at


def block(written: WrittenHead) -> Say:
    is_second = written.method == "dflash2"
    head = (DFlash2Head if is_second else DFlashHead)(written.checkpoint, written.target)

    @torch.no_grad()
    def logits_at(n: int, k: int) -> Tensor:
        head.layers.allocate(1, SPAN)
        head.add_context(features_of(written, head.features, n), torch.arange(n)[None], SPAN, 0)
        places = torch.arange(n, n + head.block_length(k))[None]
        tokens_1K = torch.tensor([written.tokens[n : n + k]])
        if not isinstance(head, DFlash2Head):
            return head.logits(tokens_1K[:, :1], places, SPAN, 0)[0]
        candidates = head.candidates(tokens_1K[:, :1], places, SPAN, 0)
        in_turn = (head.logits_after(candidates, i, tokens_1K[:, i : i + 1]) for i in range(k))
        return torch.cat(tuple(in_turn), 1)[0]

    return logits_at


def at_once(written: WrittenHead) -> Say:
    head = MedusaHeads(written.checkpoint, written.target)
    features = (written.target.num_layers,)

    @torch.no_grad()
    def logits_at(n: int, k: int) -> Tensor:
        (states,) = features_of(written, features, n)
        return head.logits(states[:, -1], k)[:, 0]

    return logits_at


SAID: Mapping[str, Callable[[WrittenHead], Say]] = {
    "eagle": lambda written: chain(written, EagleHead(written.checkpoint, written.target)),
    "eagle3": lambda written: chain(written, Eagle3Head(written.checkpoint, written.target)),
    "mtp": lambda written: chain(written, MtpHead(written.checkpoint, written.target)),
    "peagle": masked,
    "dflash": block,
    "dflash2": block,
    "medusa": at_once,
}
