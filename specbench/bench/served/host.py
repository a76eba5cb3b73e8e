"""Where a session's server is: started for it, or running already."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from specbench.bench.plan import TargetPlan
from specbench.bench.served.deployments import exported
from specbench.bench.served.questions import context_needed
from specbench.bench.served.sessions import Session
from specbench.engines.served import ServerFacts, Start, find_served
from specbench.errors import UsageError
from specbench.export.deployment import Export
from specbench.inputs.address import Address
from specbench.inputs.config import Pairing
from specbench.servers.client import Client, ServerError
from specbench.servers.command import command_line
from specbench.servers.process import LOOPBACK, ServerProcess, free_port, started
from specbench.settings import SERVED, RunSettings

OPTION = "--base-url"


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A session's healthy server, or its replicas: one client per address."""

    clients: tuple[Client, ...]
    facts: ServerFacts
    command: tuple[str, ...] = ()
    acceptance_rule: str | None = None
    start_s: float | None = None
    log: str | None = None
    process: ServerProcess | None = None

    def require(self) -> None:
        """Raises ServerError, which says why, where a started server has ended."""
        if self.process is not None:
            self.process.require_running()


class Host(Protocol):
    """Gives a session its server, and takes it back."""

    def open(self, session: Session) -> AbstractAsyncContextManager[Running]: ...


class Launched:
    """Starts a server for every session, on this machine's loopback."""

    def __init__(self, plan: TargetPlan, engine: str, folder: Path) -> None:
        self._plan, self._name, self._engine = plan, engine, find_served(engine)
        self._folder = folder / "servers"
        self._asked = plan.settings.servers

    def require_program(self) -> None:
        """UsageError where the program to start is not here: no session could be held."""
        asked = self._asked
        if asked.launch is not None:
            option, (name, *_) = "--launch", command_line(asked.launch, (), (), port=0)
        elif asked.engine_python is not None:
            option, name = "--engine-python", str(asked.engine_python)
        else:
            option = f"--engine {self._name}"
            name = self._exported_at(self._plan.pairings[0], 0).command[0]
        if shutil.which(name) is None:
            raise UsageError(
                f"{option}: there is no program {name} here; give the Python of the engine's "
                "environment, or llama.cpp's llama-server (--engine-python), a command that "
                "starts it (--launch), or the address of a running server (--base-url)"
            )

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[Running]:
        """UsageError if the engine cannot be started so, ServerError if it does not come up."""
        port = free_port()
        made = self._exported(session)
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / made.config.name if made.config else None
        if config is not None and made.config is not None:
            config.write_text(made.config.text)
        load = self._plan.settings.load
        launch = self._engine.launch(
            Start(
                exported=made.command,
                config=config,
                folder=self._folder,
                models=_folders(self._pairing(session), session.draft.k),
                python=self._asked.engine_python,
                host=LOOPBACK,
                port=port,
                most_at_once=max(load.concurrency),
                context=context_needed(self._plan, session.cells),
                keeps_prefixes=self._asked.prefix_cache,
                seed=self._plan.settings.seed,
                arguments=self._asked.engine_args,
            )
        )
        program, args = launch.command[: launch.num_program], launch.command[launch.num_program :]
        command = command_line(self._asked.launch, program, args, port=port)
        log = self._folder / f"{session.place.replace('|', '-')}.log"
        began_s = time.monotonic()
        address = Address(root=f"http://{LOOPBACK}:{port}")
        with started(command, environment=launch.environment, log=log) as process:
            async with Client(address) as client:
                await process.wait_until_healthy(
                    client, self._engine.HEALTH, self._asked.start_timeout_s
                )
                yield Running(
                    clients=(client,),
                    facts=await self._engine.facts(client),
                    command=tuple(command),
                    acceptance_rule=made.acceptance_rule,
                    start_s=time.monotonic() - began_s,
                    log=f"{self._folder.name}/{log.name}",
                    process=process,
                )

    def _exported(self, session: Session) -> Export:
        pairing, k = self._pairing(session), session.draft.k
        return self._exported_at(pairing, k, temperature=session.temperature)

    def _exported_at(self, pairing: Pairing, k: int, *, temperature: float = 0.0) -> Export:
        return exported(
            self._name,
            pairing,
            k,
            self._plan.settings,
            temperature=temperature,
            dtype=self._plan.settings.machine.dtype,
        )

    def _pairing(self, session: Session) -> Pairing:
        """The session's; without speculation any of the target's."""
        pairings, drafter = self._plan.pairings, session.draft.drafter
        return next((p for p in pairings if p.drafter.name == drafter), pairings[0])


def _folders(pairing: Pairing, k: int) -> tuple[Path, ...]:
    """Folders of the models that are on this disk."""
    models = (pairing.target.model, pairing.drafter.model if k else None)
    return tuple(model.folder for model in models if model is not None and model.folder)


class Attached:
    """Servers that run already, those of the same K as replicas; none is started or stopped."""

    def __init__(self, engine: str, addresses: Sequence[Address]) -> None:
        self._engine = find_served(engine)
        self._addresses = addresses

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[Running]:
        """ServerError for a server that does not answer, or runs another K, model or version."""
        addresses = [a for a in self._addresses if a.k == session.draft.k]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for address in addresses]
            facts = [await self._engine.facts(client) for client in clients]
            for client, found in zip(clients, facts, strict=True):
                if found.k not in (None, session.draft.k):
                    client.fail(f"it runs at K = {found.k}, but K = {session.draft.k} is expected")
                if found.model != facts[0].model or found.version != facts[0].version:
                    client.fail(
                        f"it serves {found.model} {found.version}, but another replica at this K "
                        f"serves {facts[0].model} {facts[0].version}; replicas must be alike"
                    )
            yield Running(clients=tuple(clients), facts=facts[0])


def host_of(plan: TargetPlan, engine: str, running: Sequence[Address], folder: Path) -> Host:
    """Where servers run already, these; else they are started, with their logs in the folder."""
    if running:
        return Attached(engine, running)
    return Launched(plan, engine, folder)


def running_servers(settings: RunSettings) -> tuple[Address, ...]:
    """The servers that were named, each with its K; UsageError for one that does not answer."""
    urls = settings.servers.base_urls
    if not urls:
        return ()
    engine = next(name for name in settings.load.engines if name in SERVED)
    try:
        return asyncio.run(told_apart(engine, urls))
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error


def running_ks(running: Sequence[Address]) -> tuple[int, ...] | None:
    """The K that they have; None where servers are started."""
    return tuple(dict.fromkeys(one.k or 0 for one in running)) or None


async def told_apart(engine: str, urls: Sequence[str]) -> tuple[Address, ...]:
    """The addresses, each with its K: what `#k=4` says, else what its server tells.

    A server that tells no K is taken to run without speculation. ServerError if one does not
    answer; UsageError if it tells another K than its address.
    """
    found = []
    for url in urls:
        address = Address.at(url, OPTION)
        async with Client(address) as client:
            facts = await find_served(engine).facts(client)
        if address.k is not None and facts.k not in (None, address.k):
            raise UsageError(
                f"{OPTION} {url}: the server runs at K = {facts.k}; correct #k, or leave it out"
            )
        known = address.k if address.k is not None else facts.k
        found.append(replace(address, k=known or 0))
    return tuple(found)
