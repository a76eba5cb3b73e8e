"""Work for shares whose module logs when it is imported, as torchao does."""

import logging

from specbench.bench.shares import Share
from specbench.bench.watch import Watch

logging.getLogger("torchao").warning("no kernel for this device")


def nothing(_share: Share, _watch: Watch) -> dict[int, int]:
    return {}
