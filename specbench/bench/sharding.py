"""Divides work among processes of this machine, and joins their results in a fixed order."""

import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

from specbench.bench.units import RemoteReporter, Reporter, ReporterCall
from specbench.errors import DeviceError, SpecbenchError
from specbench.models import library_output


class Shard(NamedTuple):
    """The pieces of work with the numbers first, first + of, first + 2 * of, ..."""

    first: int
    of: int

    def has(self, piece: int) -> bool:
        return piece % self.of == self.first


ALL = Shard(0, 1)
Results = Mapping[Any, Any]  # by keys that define the order
Work = Callable[[Shard, Reporter], Results]


def run_sharded(work: Work, num_processes: int, reporter: Reporter) -> list[Any]:
    """The results of `work`, in the order of their keys. With several processes it is pickled.

    The processes are spawned, and end when this function ends or one of them raises an error.
    Equal reports of several processes are shown once.
    """
    if num_processes == 1:
        return _joined([work(ALL, reporter)])
    context, results, reported = get_context("spawn"), [], set()
    with ExitStack() as ending:
        processes = {}
        for first in range(num_processes):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (pickle.dumps(work), Shard(first, num_processes), sender)
            process = context.Process(target=_run_shard, args=arguments, daemon=True)
            process.start()
            ending.callback(process.join)
            ending.callback(process.kill)
            sender.close()
            processes[receiver] = process
        while processes:
            for ready in wait(list(processes)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except EOFError:
                    processes[ready].join()
                    code = processes[ready].exitcode
                    raise DeviceError(
                        f"a process ended with code {code} before it was done; --threads 1 uses "
                        "only one process"
                    ) from None
                if isinstance(message, SpecbenchError):
                    raise message
                if not isinstance(message, ReporterCall):
                    results.append(message)
                    del processes[ready]
                elif message not in reported:
                    reported.add(message)
                    getattr(reporter, message.method)(*message.arguments)
    return _joined(results)


def _joined(results: Sequence[Results]) -> list[Any]:
    joined = {key: result for of_shard in results for key, result in of_shard.items()}
    return [joined[key] for key in sorted(joined)]


def _run_shard(pickled: bytes, shard: Shard, to: Connection) -> None:
    library_output.silence()  # before the work imports libraries that log
    work: Work = pickle.loads(pickled)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    try:
        to.send(work(shard, cast("Reporter", RemoteReporter(to.send))))
    except SpecbenchError as error:
        to.send(error)
