"""A whole `specbench run` of a hybrid target: planned, measured, stored, reported and gated."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.hybrids.checks import with_noise
from tests.hybrids.models import tiny_hybrid
from tests.tiny_models import VOCAB_SIZE
from tests.tiny_pair import WORKLOAD, make_tokenizer

PAIRINGS = """\
targets:
  hybrid:
    model: ./target
    drafters:
      draft: {method: draft_model, model: ./draft}
      ngram: {method: ngram}
"""
COUNTS = ("--fail-on", "mean_acceptance_length:1%")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a hybrid target, a hybrid draft that is often right, and prompts."""
    folder = tmp_path_factory.mktemp("hybrid")
    shape = {"vocab_size": VOCAB_SIZE, "eos_token_id": 0, "max_position_embeddings": 256}
    target, draft = (tiny_hybrid("LFM2", **shape) for _ in range(2))
    for name, model in (("target", target), ("draft", with_noise(draft))):
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    (folder / "prompts.jsonl").write_text("".join(WORKLOAD.format(i=i) for i in range(6)))
    (folder / "pairings.yaml").write_text(PAIRINGS)
    return folder


def measured(place: Path, *size: str) -> dict[str, Any]:
    """The document of a run."""
    short = ("--num-prompts", "5", "--max-new-tokens", "6")
    ran = specbench("run", *size, "-w", "prompts.jsonl", *SMALL, *short, "--json", cwd=place)
    assert ran.code in (0, 3), ran.err
    document: dict[str, Any] = json.loads(ran.out)
    return document


@pytest.mark.parametrize(
    "size",
    [
        ("hybrid/draft", "-k", "0,2", "--concurrency", "2"),
        pytest.param(
            ("hybrid/draft", "hybrid/ngram", "-k", "0,2,auto", "--concurrency", "1,2"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_hybrid_is_measured_reported_and_gated(place: Path, size: tuple[str, ...]) -> None:
    first, second = measured(place, *size), measured(place, *size)

    report = specbench("report", first["run_id"], cwd=place)
    assert report.code == 0, report.err
    assert first["run_id"] in report.out
    gated = specbench("check", first["run_id"], second["run_id"], *COUNTS, "--json", cwd=place)
    assert gated.code == 0, gated.out + gated.err
    lengths = [j for j in json.loads(gated.out)["judgments"] if j["metric"] == "output_tokens"]
    assert {judgment["verdict"] for judgment in lengths} == {"pass"}
