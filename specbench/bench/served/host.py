"""Opens the server of a session: starts one, or connects to one that is already running."""

import os
import re
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from specbench.bench.plan import TargetPlan
from specbench.bench.served.deployments import exported, known_version, require_module
from specbench.bench.served.running import ExternalServers, ServerHandle, mean_drafts
from specbench.bench.served.sessions import Session, context_needed, cycle_of, served_cells
from specbench.engines.deployment import Export
from specbench.engines.served_engine import StartOptions, find_served
from specbench.errors import ServerError, SpecbenchError, UsageError
from specbench.files.model import require_complete
from specbench.files.model_spec import ModelSpec
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing
from specbench.metrics.server_facts import DRAFT_FIELDS
from specbench.records import DraftConfig, Fixed
from specbench.servers.client import Client
from specbench.servers.facts import ModelNames
from specbench.servers.process import LOOPBACK, ServerProcess, free_port, started

ARGS, PORT = "{args}", "{port}"
_PLACEHOLDER = re.compile(r"\{\w+\}")  # the braces of JSON have quotes within


_BesidesK = tuple[DraftConfig, float, str | None]  # with temperature and variant


class Host(Protocol):
    """Opens a server for a session, and closes it afterwards."""

    def open(self, session: Session) -> AbstractAsyncContextManager[ServerHandle]: ...

    def sharing(self, sessions: Sequence[Session]) -> AbstractContextManager[None]:
        """Meanwhile these sessions may use one server one after the other if only K differs.

        ServerError if it does not end.
        """
        ...

    def stop_shared(self) -> None:
        """Stop the server that is shared; the next session starts another. ServerError."""
        ...


class _ServerStart(NamedTuple):
    exported: Export
    port: int
    environment: Mapping[str, str]  # added to this process's
    command: list[str]


class _Server(NamedTuple):
    start: _ServerStart
    process: ServerProcess
    log: Path

    @property
    def is_over(self) -> bool:
        try:
            self.process.require_running(0.0)
        except ServerError:
            return True
        return False


class ManagedServers:
    """Starts a server for every session, or one for several, on this machine's loopback."""

    def __init__(self, plan: TargetPlan, engine: str, folder: Path = Path()) -> None:
        self._plan, self._name, self._engine = plan, engine, find_served(engine)
        self._folder = folder / "servers"
        self._options = plan.settings.servers
        self._sharing: Sequence[Session] = ()
        self._shared = ExitStack()  # stops the server that is shared
        self._kept: tuple[_BesidesK, _Server] | None = None

    def require_startable(self) -> None:
        """Raise UsageError or ModelError if a session's server could not be started.

        The program or the Python module is missing, a model is incomplete, or the command's
        template is invalid.
        """
        with TemporaryDirectory(prefix="specbench-") as folder:
            for session in cycle_of(served_cells(self._plan, self._name), 0):
                program = self._start_of(session, Path(folder)).command[0]
                if shutil.which(program) is None:
                    option = "--engine-python"
                    if self._options.launch is not None:
                        option = "--engine-command"
                    elif self._options.engine_python is None:
                        option = f"--engine {self._name}"
                    raise UsageError(
                        f"{option}: the program {program} was not found; give the Python of "
                        "the engine's environment or the server's program (--engine-python), a "
                        "command that starts it (--engine-command), or the address of a running "
                        "server (--base-url)"
                    )
                if (module := self._engine.PROPERTIES.module) is not None:
                    if self._options.engine_python is not None and self._options.launch is None:
                        require_module(self._options.engine_python, module)
                    if "dummy" not in " ".join(self._options.engine_args):  # --load-format
                        for model in self._models(session):
                            require_complete(model)

    @contextmanager
    def sharing(self, sessions: Sequence[Session]) -> Iterator[None]:
        # A cache of prefixes would be cold at the first K of a server only.
        self._sharing = () if self._options.prefix_cache else sessions
        try:
            yield
        finally:
            self._sharing = ()
            self.stop_shared()

    def stop_shared(self) -> None:
        self._kept = None
        self._shared.close()

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """Start a server, or use one that is shared; UsageError if it has no command, ServerError
        if it does not start."""
        before, began_s = self._kept, time.monotonic()
        server = await self._shared_by(session)
        async with AsyncExitStack() as stack:
            if server is None:
                fields = {}
                server = stack.enter_context(self._started(session))
            else:
                fields = self._engine.PROPERTIES.fields_of_draft(session.draft)
            running = await stack.enter_async_context(self._connected(server, fields))
            is_new = before is None or before[1] is not server
            yield replace(running, start_s=time.monotonic() - began_s if is_new else None)

    async def _shared_by(self, session: Session) -> _Server | None:
        """The running server whose requests can have the session's K; None: it needs its own.

        It was started at the largest K. A request for one draft token must give one, and another
        more.
        """
        fields_of = self._engine.PROPERTIES.fields_of_draft
        alike = [
            other
            for other in self._sharing
            if _besides_k(other) == _besides_k(session) and fields_of(other.draft)
        ]
        if len({other.draft for other in alike}) < 2:
            self.stop_shared()
            return None
        if self._kept is None or self._kept[0] != _besides_k(session) or self._kept[1].is_over:
            self.stop_shared()
            largest = max(alike, key=lambda other: other.draft.k)
            cells = tuple(cell for other in alike for cell in other.cells)  # for its context
            largest = replace(largest, cells=cells)
            try:
                server = self._shared.enter_context(self._started(largest))
                drafts = [
                    await self._mean_drafts(server, replace(largest.draft, length=Fixed(k)))
                    for k in (1, largest.draft.k)
                ]
            except (SpecbenchError, OSError):
                drafts = [0.0]  # each K shows by itself what is wrong
            if drafts[0] != 1 or drafts[1] <= 1:
                self._sharing = [other for other in self._sharing if other not in alike]
                self.stop_shared()
                return None
            self._kept = _besides_k(session), server
        return self._kept[1]

    async def _mean_drafts(self, server: _Server, draft: DraftConfig) -> float:
        fields = self._engine.PROPERTIES.fields_of_draft(draft)
        async with self._connected(server, fields) as running:
            return await mean_drafts(running, draft.k)

    @contextmanager
    def _started(self, session: Session) -> Iterator[_Server]:
        self._folder.mkdir(parents=True, exist_ok=True)
        start = self._start_of(session, self._folder)
        log = self._folder / f"{session.place.replace('|', '-')}.log"
        with started(
            start.command,
            environment=start.environment,
            log=log,
            log_format=self._engine.LOG,
        ) as process:
            yield _Server(start, process, log)

    @asynccontextmanager
    async def _connected(
        self, server: _Server, fields: Mapping[str, Any]
    ) -> AsyncIterator[ServerHandle]:
        start, process, log = server
        address = Address(root=f"http://{LOOPBACK}:{start.port}")
        async with Client(address) as client:
            await process.wait_until_healthy(
                client, self._engine.PROPERTIES.health, self._options.start_timeout_s
            )
            facts = await self._engine.facts(client, ModelNames.of(self._plan.target, None))
            read = self._engine.PROPERTIES.read_command
            more = read(start.command) if read and self._options.launch is None else {}
            if fields:
                more[DRAFT_FIELDS] = ", ".join(f"{name} {value}" for name, value in fields.items())
            version = facts.version or known_version(self._name, self._plan.settings)
            facts = replace(facts, version=version or "", settings={**facts.settings, **more})
            yield ServerHandle(
                engine=self._name,
                clients=(client,),
                facts=facts,
                command=tuple(start.command),
                acceptance_rule=start.exported.acceptance_rule,
                log=f"{self._folder.name}/{log.name}",
                process=process,
                fields=fields,
            )

    def _start_of(self, session: Session, folder: Path) -> _ServerStart:
        """The command of a session's server; the files it refers to are written to the folder."""
        export = exported(
            self._name,
            self._pairing(session),
            session.draft.k,
            self._plan.settings,
            temperature=session.temperature,
            dtype=self._plan.settings.machine.dtype,
        )
        port, config = free_port(), None
        if export.config is not None:
            config = folder / export.config.name
            config.write_text(export.config.text, encoding="utf-8")
        settings = {*os.environ, *re.findall(r"\w+", self._options.launch or "")}
        variables = {*self._engine.PROPERTIES.simulated_by} - {*export.environment}
        if simulating := variables & settings:
            raise UsageError(
                f"{min(simulating)} is set here, and {self._name} would simulate acceptance; unset "
                "it, or use --simulate-acceptance, which marks the run"
            )
        if export.environment and self._options.launch is not None:
            raise UsageError(
                f"--engine-command might not pass on {', '.join(export.environment)}, which "
                "simulate acceptance; leave out --engine-command, or --simulate-acceptance"
            )
        launch = self._engine.launch(
            StartOptions(
                exported=export.command,
                config=config,
                folder=folder,
                models=tuple(model.folder for model in self._models(session) if model.folder),
                python=self._options.engine_python,
                host=LOOPBACK,
                port=port,
                max_concurrency=max(self._plan.settings.load.concurrency),
                context=context_needed(self._plan, session.cells),
                keeps_prefixes=self._options.prefix_cache,
                constrains_output=any(
                    prompt.settings.response_format is not None
                    for workload in self._plan.workloads
                    for prompt in workload.prompts
                ),
                seed=self._plan.settings.seed,
                arguments=(
                    *self._options.engine_args,
                    *(self._options.variants or {}).get(session.variant or "", ()),
                ),
            )
        )
        program, args = launch.command[: launch.num_program], launch.command[launch.num_program :]
        command = command_line(self._options.launch, program, args, port=port)
        return _ServerStart(export, port, {**launch.environment, **export.environment}, command)

    def _pairing(self, session: Session) -> Pairing:
        """The session's pairing; without speculation any pairing of the target."""
        pairings, drafter = self._plan.pairings, session.draft.drafter
        return next((p for p in pairings if p.drafter.name == drafter), pairings[0])

    def _models(self, session: Session) -> tuple[ModelSpec, ...]:
        """The target's model and, with speculation, the drafter's if it has one."""
        pairing = self._pairing(session)
        return pairing.models if session.draft.k else (pairing.target.model,)


def _besides_k(session: Session) -> _BesidesK:
    return replace(session.draft, length=Fixed(1)), session.temperature, session.variant


def host_of(plan: TargetPlan, engine: str, running: Sequence[Address], folder: Path) -> Host:
    """The running servers, or if there are none, servers to start with logs in the folder."""
    if running:
        served = plan.settings.servers.served_model_name
        return ExternalServers(engine, running, ModelNames.of(plan.target, served))
    return ManagedServers(plan, engine, folder)


def require_startable(plans: Iterable[TargetPlan]) -> None:
    """Raise UsageError or ModelError if a server of these plans could not be started here."""
    for plan in plans:
        for engine in plan.served:
            ManagedServers(plan, engine).require_startable()


def command_line(
    template: str | None, default: Sequence[str], args: Sequence[str], *, port: int
) -> list[str]:
    """The default with the flags at its end, or the template with the flags at {args}.

    Example of a template: `docker run --network host image {args}`, split as a shell would.
    UsageError if it cannot be parsed.
    """
    if template is None:
        return [*default, *args]
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UsageError(f"--engine-command {template}: {error}") from None
    if not words:
        raise UsageError("--engine-command is empty; expected a command that starts a server")
    command: list[str] = []
    for word in words if ARGS in words else [*words, ARGS]:
        unknown = set(_PLACEHOLDER.findall(word)) - {PORT}
        if unknown and word != ARGS:
            raise UsageError(
                f"--engine-command {template}: unknown placeholder {min(unknown)} in {word!r}; "
                f"write {PORT} anywhere, and {ARGS}, as a separate word, for all flags"
            )
        command += args if word == ARGS else [word.replace(PORT, str(port))]
    return command
