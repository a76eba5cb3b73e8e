"""Decodes a pair in a separate process and prints by how much the process grew.

    python -m tests.fit.memory_child PAIRINGS_YAML CONTEXT K

The first number is the growth with only the target, the second with its drafter as well.
"""

import json
import sys
from pathlib import Path

import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.config import load_pairings
from specbench.probes.host import process_used_bytes
from specbench.records import Request, Sampling
from specbench.shipped import shipped

NUM_NEW = 8


def decode(engine: BuiltinEngine, work: Work, context: int) -> None:
    prompt_ids = tuple(3 + i % 200 for i in range(context - NUM_NEW))
    request = Request(prompt_ids=prompt_ids, max_new_tokens=NUM_NEW, sampling=Sampling(), seed=0)
    engine.generate(request, work)


def peak_of(engine: BuiltinEngine, work: Work, context: int) -> int:
    """Bytes of this process while it decodes, after all lasting allocations.

    This is the kernel's own peak: a sampling thread may be too slow on a busy machine.
    """
    decode(engine, work, context)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    decode(engine, work, context)
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1])


def main(pairings: Path, context: int, k: int) -> None:
    torch.set_num_threads(1)
    # The code and kernels that a first forward of any model brings in are not part of a plan.
    demo = load_pairings(shipped("pairings.yaml")).target("demo")
    other = BuiltinEngine(demo, ModelPool(torch.device("cpu")))
    decode(other, other.baseline, 100)
    del other
    (target,) = load_pairings(pairings).targets
    (drafter,) = target.drafters
    imported = process_used_bytes()
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    alone = peak_of(engine, engine.baseline, context)
    engine.add_drafter(drafter)
    work = Work(drafter=drafter.name, method=drafter.method, k=k)
    pair = peak_of(engine, work, context)
    print(json.dumps([alone - imported, pair - imported]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
