"""A report of 100,000 requests, copies of few: its time, and the small size of its page."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.records import BlockRecord
from specbench.report.document import build_document
from specbench.report.html import to_html
from specbench.runs import SCHEMA_VERSION, StoredRun, create_run, load_run
from specbench.runs.codec import encode_line
from tests.report.stored_runs import Wish, stored_run

pytestmark = pytest.mark.long
MAX_BYTES = 20_000_000
MAX_GROWTH = 2.6  # twice the requests; quadratic work would take four times as long


LARGE = Wish(ks=(0, 1, 2, 3, 4), workloads=("code", "creative"), num_prompts=10)


def large_run(num_requests: int, wish: Wish = LARGE) -> StoredRun:
    """At least this many requests, including winners that were measured again."""
    small = stored_run(wish)
    num_stored = sum(len(block.requests) for block in small.blocks)
    copies = -(-num_requests // num_stored)
    blocks = [_copied(block, copy) for copy in range(copies) for block in small.blocks]
    return replace(small, blocks=tuple(blocks))


def keep_large(root: Path, run_id: str, stored: StoredRun) -> Path:
    """Store it without waiting for the disk after each line; its folder."""
    run = replace(stored.run, run_id=run_id, schema_version=SCHEMA_VERSION)
    with create_run(root, run) as store:
        store.finish()
    records = root / run_id / "records.jsonl"
    done = records.read_bytes()
    lines = (encode_line(record) for record in (*stored.memory, *stored.forwards, *stored.blocks))
    records.write_bytes(b"".join(lines) + done)
    return root / run_id


def _copied(block: BlockRecord, copy: int) -> BlockRecord:
    prompt = f"{block.prompt_id}-{copy}"
    return replace(
        block,
        block_id=f"{block.block_id}-{copy}",
        prompt_id=prompt,
        requests=tuple(replace(request, prompt_id=prompt) for request in block.requests),
    )


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


def test_the_page_of_a_large_run_is_small(tmp_path: Path) -> None:
    _, num_bytes = reported(tmp_path, 100_000)
    assert num_bytes < MAX_BYTES


def test_time_grows_with_the_number_of_requests(tmp_path: Path) -> None:
    reported(tmp_path, 100)  # work done once per process
    once, _ = reported(tmp_path, 20_000)
    twice, _ = reported(tmp_path, 40_000)
    assert twice < MAX_GROWTH * once
