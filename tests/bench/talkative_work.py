"""Work for shares whose module logs when it is imported, as torchao does."""

import logging

from specbench.bench.sharding import Shard
from specbench.bench.units import Reporter

logging.getLogger("torchao").warning("no kernel for this device")


def nothing(_shard: Shard, _watch: Reporter) -> dict[int, int]:
    return {}
