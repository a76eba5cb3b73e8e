"""A report of 100,000 requests: how long it takes, and that its page stays small."""

import time
from pathlib import Path

import pytest

from specbench.report.document import build_document
from specbench.report.html import to_html
from specbench.runs import load_run
from tests.report.large_runs import keep_large, large_run

pytestmark = pytest.mark.long
MOST_BYTES = 20_000_000
MOST_GROWTH = 2.6  # twice the requests; quadratic work would take four times as long


def reported(root: Path, num_requests: int) -> tuple[float, int]:
    """CPU seconds from the files to the page, and the bytes of the page."""
    keep_large(root, f"run-{num_requests}", large_run(num_requests))
    began = time.process_time()
    stored = load_run(f"run-{num_requests}", root)
    loaded = time.process_time()
    document = build_document(stored)
    analysed = time.process_time()
    page = to_html([document]).encode()
    done = time.process_time()
    print(
        f"{num_requests:,} requests: {loaded - began:.1f} s to load, {analysed - loaded:.1f} s to "
        f"analyse, {done - analysed:.1f} s to draw, {len(page) / 1e6:.2f} MB"
    )
    return done - began, len(page)


def test_the_page_is_small(tmp_path: Path) -> None:
    _, num_bytes = reported(tmp_path, 100_000)
    assert num_bytes < MOST_BYTES


def test_time_grows_with_the_number_of_requests(tmp_path: Path) -> None:
    reported(tmp_path, 100)  # what is done once a process
    once, _ = reported(tmp_path, 20_000)
    twice, _ = reported(tmp_path, 40_000)
    assert twice < MOST_GROWTH * once
