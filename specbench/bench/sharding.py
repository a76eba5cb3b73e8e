"""Work shared out over processes of this machine; their answers come together in one order."""

import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

from specbench.bench.progress import RemoteReporter, Reporter, ReporterCall
from specbench.errors import DeviceError, SpecbenchError
from specbench.models import library_log


class Shard(NamedTuple):
    """Every `of`-th piece of work, from number `first` on."""

    first: int
    of: int

    def has(self, piece: int) -> bool:
        return piece % self.of == self.first


ALL = Shard(0, 1)
Found = Mapping[Any, Any]  # by keys that say the order
Work = Callable[[Shard, Reporter], Found]


def run_sharded(work: Work, num_processes: int, reporter: Reporter) -> list[Any]:
    """What `work` finds, in the order of its keys. With several processes it is pickled.

    Each starts without what this one has loaded. One that refuses ends all, and so does whatever
    ends this function. What several tell is told once.
    """
    if num_processes == 1:
        return _in_order([work(ALL, reporter)])
    context, finds, told = get_context("spawn"), [], set()
    with ExitStack() as ending:
        processes = {}
        for first in range(num_processes):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (pickle.dumps(work), Shard(first, num_processes), theirs)
            process = context.Process(target=_process, args=arguments, daemon=True)
            process.start()
            ending.callback(process.join)
            ending.callback(process.kill)
            theirs.close()
            processes[mine] = process
        while processes:
            for one in wait(list(processes)):
                assert isinstance(one, Connection)
                try:
                    message = one.recv()
                except EOFError:
                    processes[one].join()
                    raise DeviceError(
                        f"a process ended with code {processes[one].exitcode} before it was done; "
                        "with --threads 1 there is one alone"
                    ) from None
                if isinstance(message, SpecbenchError):
                    raise message
                if not isinstance(message, ReporterCall):
                    finds.append(message)
                    del processes[one]
                elif message not in told:  # the same may strike all of them
                    told.add(message)
                    getattr(reporter, message.method)(*message.arguments)
    return _in_order(finds)


def _in_order(finds: Sequence[Found]) -> list[Any]:
    together = {key: found for some in finds for key, found in some.items()}
    return [together[key] for key in sorted(together)]


def _process(pickled: bytes, shard: Shard, to: Connection) -> None:
    library_log.silence()  # before the work's modules import what talks
    work: Work = pickle.loads(pickled)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C comes to all; the parent ends the others
    try:
        to.send(work(shard, cast("Reporter", RemoteReporter(to.send))))
    except SpecbenchError as error:
        to.send(error)
