"""A stored run with very many requests, made of a small one: the same rounds under new prompts."""

from dataclasses import replace
from pathlib import Path

from specbench.records import BlockRecord
from specbench.runs import SCHEMA_VERSION, StoredRun, create_run
from specbench.runs.codec import encode_line
from tests.report.stored_runs import Wish, stored_run

LARGE = Wish(ks=(0, 1, 2, 3, 4), workloads=("code", "creative"), num_prompts=10)


def large_run(num_requests: int, wish: Wish = LARGE) -> StoredRun:
    """At least so many requests, winners measured again among them."""
    small = stored_run(wish)
    own = sum(len(block.requests) for block in small.blocks)
    copies = -(-num_requests // own)
    blocks = [_copied(block, copy) for copy in range(copies) for block in small.blocks]
    return replace(small, blocks=tuple(blocks))


def keep_large(root: Path, run_id: str, stored: StoredRun) -> Path:
    """Write it, without waiting for the disk after each of its lines; its folder."""
    run = replace(stored.run, run_id=run_id, schema_version=SCHEMA_VERSION)
    with create_run(root, run) as store:
        store.finish()
    records = root / run_id / "records.jsonl"
    done = records.read_bytes()
    lines = (encode_line(one) for one in (*stored.memory, *stored.forwards, *stored.blocks))
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
