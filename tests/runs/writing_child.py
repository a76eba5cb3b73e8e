"""Appends blocks to a run until it is killed; prints each id once append has returned.

Usage: writing_child.py ROOT RUN_ID FIRST_NUMBER
"""

import sys
from itertools import count
from pathlib import Path

from specbench.runs import resume_run
from tests.runs.stored_examples import block

root, run_id, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with resume_run(root, run_id) as writer:
    for number in count(first):
        writer.append(block(f"b{number}", num_rounds=2_000))
        print(f"b{number}", flush=True)
