"""Who decodes for a run: this process (this_process.py), or servers that it asks."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from specbench.bench.deadline import Deadline
from specbench.bench.depth import headers_on_this_machine
from specbench.bench.plan import TargetPlan
from specbench.bench.watch import Watch
from specbench.files.head_files import HeadFiles
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import Pairing, Target
from specbench.probes.environment import describe_environment
from specbench.probes.nvml import open_probe
from specbench.probes.probe import NoProbe
from specbench.records import Environment
from specbench.runs import Ledger
from specbench.settings import SERVED, RunSettings

GPU, CPU, SERVER = "cuda:0", "cpu", "server"


class Backend(Protocol):
    """What a run's plan needs to know of who decodes."""

    def read_head(self, spec: ModelSpec) -> HeadFiles[Any]:
        """A head's config and shapes; ModelError."""
        ...

    def dtype_of(self, target: Target) -> str:
        """The dtype that the target will be decoded in."""
        ...

    def environment(self, command: Sequence[str]) -> Environment:
        """The machine, and what of it a run was started on."""
        ...


@runtime_checkable
class LocalBackend(Backend, Protocol):
    """One whose engines are in this process."""

    def measure(self, plan: TargetPlan, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        """Measure everything that a plan's engines in this process have to do."""
        ...


def open_backend(settings: RunSettings, pairings: Sequence[Pairing], watch: Watch) -> Backend:
    """This process; where only servers decode, one that needs no torch."""
    if set(settings.load.engines) <= set(SERVED):
        return ServerBackend(settings)
    from specbench.bench.this_process import ThisProcess  # noqa: PLC0415 - imports torch

    return ThisProcess(settings, pairings, watch)


class ServerBackend:
    """Servers decode; this process asks them and imports no torch."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    def dtype_of(self, target: Target) -> str:
        """As asked for; else the server picks it."""
        return self._settings.machine.dtype or target.model.dtype

    def read_head(self, spec: ModelSpec) -> HeadFiles[Any]:
        return headers_on_this_machine(spec)

    def environment(self, command: Sequence[str]) -> Environment:
        """This machine's, where servers are started; running ones may be anywhere."""
        if self._settings.servers.base_urls:
            return describe_environment(
                SERVER, None, command, NoProbe("none (servers were running already)")
            )
        probe = open_probe(GPU)
        device = CPU if isinstance(probe, NoProbe) else GPU
        return describe_environment(device, self._settings.machine.threads, command, probe)
