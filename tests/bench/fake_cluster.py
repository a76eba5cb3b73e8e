"""A cluster of threads with the methods of RayCluster, some of whose workers die."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread

from specbench.bench.cluster import Message, NodeInfo, SendMessage, TaskEnded, TaskEvent, WorkerLost
from specbench.errors import DeviceLostError

# Transformers patches torch while it loads models; with threads the patches would stay.
_LOADING = Lock()


class Killed(BaseException):
    """Raised in a worker that is killed: nothing catches it."""


class FakeCluster:
    """Nodes with their slots; `cpus`: their number of CPUs, instead of this machine's.

    `deaths` has one entry for each worker that dies, in the order in which tasks after the surveys
    begin: after how many messages; None lives. A node of `leaves` disappears with its first worker.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        deaths: tuple[int | None, ...] = (),
        leaves: tuple[str, ...] = (),
        cpus: Mapping[str, str] | None = None,
    ) -> None:
        self._slots, self._leaves, self._cpus = dict(nodes), leaves, cpus or {}
        self._deaths = [None] * len(nodes) + list(deaths)
        self._numbers = count()
        self._events: SimpleQueue[TaskEvent | BaseException] = SimpleQueue()
        self._lock = Lock()
        self._busy = dict.fromkeys(nodes, 0)
        self.max_busy = dict.fromkeys(nodes, 0)
        self.begun: list[str] = []  # node of every task, the surveys' first
        self.messages: list[Message] = []

    def slots(self) -> Mapping[str, int]:
        return dict(self._slots)

    def start(self, node: str, task: Callable[[SendMessage], None]) -> int:
        number = next(self._numbers)
        self.begun.append(node)
        self._count(node, 1)
        Thread(target=self._run, args=(number, node, task), daemon=True).start()
        return number

    def next_event(self) -> TaskEvent:
        event = self._events.get(timeout=60)
        if isinstance(event, BaseException):
            raise event
        return event

    def _run(self, number: int, node: str, task: Callable[[SendMessage], None]) -> None:
        left = self._deaths[number] if number < len(self._deaths) else None

        def send(message: Message) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left = None if left is None else left - 1
            if isinstance(message, NodeInfo) and node in self._cpus:
                environment = replace(message.environment, cpu=self._cpus[node])
                message = NodeInfo(environment, message.plans)
            self.messages.append(message)
            self._events.put(TaskEvent(number, message))

        event: TaskEvent | BaseException = TaskEvent(number, TaskEnded())
        try:
            with _LOADING:
                task(send)
        except Killed:
            if node in self._leaves:
                self._slots.pop(node, None)
            event = TaskEvent(number, WorkerLost("killed by the test"))
        except DeviceLostError as error:
            event = TaskEvent(number, WorkerLost(str(error)))
        except BaseException as error:
            event = error
        self._count(node, -1)
        self._events.put(event)

    def _count(self, node: str, more: int) -> None:
        with self._lock:
            self._busy[node] += more
            self.max_busy[node] = max(self.max_busy[node], self._busy[node])
