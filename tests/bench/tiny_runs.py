"""Runs of the bench on a real, tiny pair in its own folder."""

from collections.abc import Sequence
from pathlib import Path

from specbench.bench.benchmark import run_benchmark
from specbench.bench.planning import plan_run
from specbench.inputs.config import load_pairings
from specbench.settings import RunSettings
from tests.bench.fake_runs import write_prompts
from tests.bench.fakes import RecordingWatch
from tests.settings.flat_settings import changed, settings_of
from tests.tiny_pair import write_pair

PROMPTS = (["Hello you", "And then?"], "Name a colour")


def write_tiny(folder: Path, prompts: Sequence[str | list[str]] = PROMPTS) -> Path:
    """The folder, with a tiny pair, its pairings.yaml and its prompts."""
    write_pair(folder)
    write_prompts(folder / "talk.jsonl", prompts)
    return folder


def settings_for(folder: Path, **changes) -> RunSettings:
    base = settings_of(
        command="sweep-k",
        pairings=("tiny/draft", "tiny/ngram"),
        workloads=(str(folder / "talk.jsonl"),),
        num_speculative_tokens=(1, 4),
        max_new_tokens=8,
        device="cpu",
        threads=1,
    )
    return changed(base, **changes)


def run_on(folder: Path, settings: RunSettings, root: Path, watch=None, resume=None, cluster=None):
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    plan = plan_run(settings, pairings)
    return run_benchmark(plan, root, watch or RecordingWatch(), resume=resume, cluster=cluster)
