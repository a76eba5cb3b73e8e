"""Runs on disk: `reports/<run_id>/` with run.json, records.jsonl and a lock.

run.json is written once, before the first measurement. records.jsonl only grows: one line per
record, each on disk before `append` returns. One writer at a time; the kernel drops its
lock when it dies, so a killed run can be resumed immediately. Open `store.py` first; `reader.py`
reads a run back.
"""

from specbench.runs.codec import SCHEMA_VERSION, StoredRecord, StoredRun
from specbench.runs.reader import (
    LATEST,
    list_runs,
    load_run,
    no_collection,
    read_runs,
    resume_command,
    runs_of,
)
from specbench.runs.store import RunStore, create_run, dated_later, new_run_id, resume_run
