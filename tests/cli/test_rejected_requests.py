"""A run whose server rejected all requests is resumed with another form of them."""

from pathlib import Path

import pytest

from specbench.errors import ExitCode
from specbench.runs import load_run
from tests.bench.fake_runs import write_prompts
from tests.bench.served.running import running
from tests.cli.calls import specbench
from tests.tiny_pair import write_pair

SERVED = ("sweep-k", "tiny/draft", "--engine", "vllm", "--max-new-tokens", "16")
RESUME = ("sweep-k", "--resume", "latest")


@pytest.fixture
def start(tmp_path: Path) -> tuple[str, ...]:
    """The words of a run of one prompt in two cycles, without addresses."""
    write_pair(tmp_path)
    prompts = write_prompts(tmp_path / "short.jsonl", ["Say hello"])
    return (*SERVED, "-w", prompts, "--restart-cycles", "2", "--warmup", "1")


def test_a_run_whose_requests_were_rejected_resumes_without_the_field(tmp_path, start):
    with running(0, 2) as servers:
        for server in servers:
            server.engine.rejected = ("seed",)
        urls = [word for server in servers for word in ("--base-url", server.url)]
        failed = specbench(*start, *urls, cwd=tmp_path)
        assert failed.code == ExitCode.INCOMPLETE
        assert "--omit-fields seed" in failed.err
        run_id = load_run("latest", tmp_path / "reports", also_empty=True).run.run_id
        again = specbench(*RESUME, cwd=tmp_path)  # nothing has changed
        assert again.code == ExitCode.INCOMPLETE

        resumed = specbench(*RESUME, "--omit-fields", "seed", cwd=tmp_path)
        assert resumed.is_complete, resumed.err
        stored = load_run("latest", tmp_path / "reports")
        assert (stored.run.run_id, stored.run.settings.servers.omit_fields) == (run_id, ("seed",))
        assert all("seed" not in body for s in servers for body in s.measured)
        assert specbench(*RESUME, cwd=tmp_path).is_complete  # with the options of the run
        other = specbench(*RESUME, "--omit-fields", "top_k", cwd=tmp_path)
    assert other.code == ExitCode.USER_ERROR  # its figures have one form of requests
    assert "--omit-fields" in other.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--omit-fields", "temperature"), "return_token_ids"),
        (("--omit-fields", "top_k", "--top-k", "5"), "--top-k"),
        (("--served-model-name", "m"), "--base-url"),
    ],
)
def test_options_of_requests_that_cannot_hold_are_refused(tmp_path, start, words, named):
    refused = specbench(*start, *words, cwd=tmp_path)
    assert refused.code == ExitCode.USER_ERROR
    assert named in refused.err
