"""`--ray [ADDRESS]` and `--gpus-per-task N`: the nodes that a run is spread over."""

import re
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import UsageError
from specbench.settings import RunSettings

if TYPE_CHECKING:
    from specbench.bench.cluster import Cluster

_ADDRESS = re.compile(r"auto|local|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


class Nodes(NamedTuple):
    """Where the cluster is, and how many GPUs a cell has; None: as there are."""

    address: str
    gpus_per_cell: int | None

    @classmethod
    def asked(cls, ray: str | None, gpus_per_cell: int | None) -> "Nodes | None":
        """As it was typed; UsageError."""
        if ray is None:
            if gpus_per_cell is not None:
                raise UsageError("--gpus-per-task shares out the nodes of a cluster: add --ray")
            return None
        if _ADDRESS.fullmatch(ray) is None:
            raise UsageError(f"--ray {ray!r}: allowed are auto, local and host:port")
        return cls(ray, gpus_per_cell)

    @property
    def words(self) -> tuple[str, ...]:
        """As they are typed."""
        shared = () if self.gpus_per_cell is None else ("--gpus-per-task", str(self.gpus_per_cell))
        return ("--ray", self.address, *shared)

    def connected(self, settings: RunSettings) -> "AbstractContextManager[Cluster]":
        """UsageError where there is no Ray, or no such cluster."""
        try:
            from specbench.bench.on_ray import ray_cluster
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise UsageError("--ray needs Ray: python -m pip install ray") from error
        return ray_cluster(self.address, self.gpus_per_cell, settings.machine)
