"""Opens the server of a session: starts one, or connects to one that is already running."""

import os
import re
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from specbench.bench.plan import TargetPlan
from specbench.bench.served.deployments import exported, known_version, require_module
from specbench.bench.served.running import ExternalServers, ServerHandle
from specbench.bench.served.sessions import Session, context_needed, cycle_of, served_cells
from specbench.engines.deployment import Export
from specbench.engines.served_engine import StartOptions, find_served
from specbench.errors import UsageError
from specbench.files.model import require_complete
from specbench.files.model_spec import ModelSpec
from specbench.inputs.address import Address
from specbench.inputs.pairing import Pairing
from specbench.servers.client import Client
from specbench.servers.facts import ModelNames
from specbench.servers.process import LOOPBACK, free_port, started

ARGS, PORT = "{args}", "{port}"
_PLACEHOLDER = re.compile(r"\{\w+\}")  # the braces of JSON have quotes within


class Host(Protocol):
    """Opens a server for a session, and closes it afterwards."""

    def open(self, session: Session) -> AbstractAsyncContextManager[ServerHandle]: ...


class _ServerStart(NamedTuple):
    exported: Export
    port: int
    environment: Mapping[str, str]  # added to this process's
    command: list[str]


class ManagedServers:
    """Starts a server for every session, on this machine's loopback."""

    def __init__(self, plan: TargetPlan, engine: str, folder: Path = Path()) -> None:
        self._plan, self._name, self._engine = plan, engine, find_served(engine)
        self._folder = folder / "servers"
        self._options = plan.settings.servers

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

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """Start a server; UsageError if it has no command, ServerError if it does not start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        start = self._start_of(session, self._folder)
        log = self._folder / f"{session.place.replace('|', '-')}.log"
        began_s = time.monotonic()
        address = Address(root=f"http://{LOOPBACK}:{start.port}")
        with started(
            start.command,
            environment=start.environment,
            log=log,
            log_format=self._engine.LOG,
        ) as process:
            async with Client(address) as client:
                await process.wait_until_healthy(
                    client, self._engine.PROPERTIES.health, self._options.start_timeout_s
                )
                facts = await self._engine.facts(client, ModelNames.of(self._plan.target, None))
                read = self._engine.PROPERTIES.read_command
                more = read(start.command) if read and self._options.launch is None else {}
                version = facts.version or known_version(self._name, self._plan.settings)
                facts = replace(facts, version=version or "", settings={**facts.settings, **more})
                yield ServerHandle(
                    engine=self._name,
                    clients=(client,),
                    facts=facts,
                    command=tuple(start.command),
                    acceptance_rule=start.exported.acceptance_rule,
                    start_s=time.monotonic() - began_s,
                    log=f"{self._folder.name}/{log.name}",
                    process=process,
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
        variables = {*self._engine.PROPERTIES.simulated_by}
        if inherited := variables & {*os.environ} - {*export.environment}:
            raise UsageError(
                f"{min(inherited)} is set here, and {self._name} would simulate acceptance; unset "
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

    def _models(self, session: Session) -> list[ModelSpec]:
        """The target's model and, with speculation, the drafter's if it has one."""
        pairing = self._pairing(session)
        models = (pairing.target.model, pairing.drafter.model if session.draft.k else None)
        return [model for model in models if model is not None]


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
