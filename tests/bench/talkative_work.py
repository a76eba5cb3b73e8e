"""Work for shares whose module logs when it is imported, as torchao does."""

import logging

from specbench.bench.progress import Reporter
from specbench.bench.sharding import Shard

logging.getLogger("torchao").warning("no kernel for this device")


def nothing(_shard: Shard, _watch: Reporter) -> dict[int, int]:
    return {}
