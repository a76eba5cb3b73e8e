"""Sessions of serving engines: settings, resources, counters and acceptance rules."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from specbench.methods import METHODS
from specbench.metrics.aggregate import lost_sessions, usable_sessions
from specbench.metrics.memory import least_kv_tokens
from specbench.metrics.server_facts import DRAFT_FIELDS, session_differences
from specbench.records import NO_DRAFTER, Kind, Reason, ServerRecord, acceptance_rule
from specbench.report.document import Document
from specbench.runs import resume_command
from specbench.words.numbers import plural
from specbench.words.table import Table, column


class _Group(NamedTuple):
    """The sessions of one deployment: all, valid ones, and valid ones without speculation."""

    all: Sequence[ServerRecord]
    sound: Sequence[ServerRecord]
    plain: Sequence[ServerRecord]

    @property
    def starts(self) -> str:
        count = str(len(self.all))
        return count if len(self.sound) == len(self.all) else f"{len(self.sound)} of {count}"

    @property
    def capacity(self) -> float | None:
        return least_kv_tokens(self.sound)

    @property
    def taken(self) -> float | None:
        plain = least_kv_tokens(self.plain)
        if not self.all[0].num_speculative_tokens or plain is None or self.capacity is None:
            return None
        return plain - self.capacity


def _pooled(name: str, pooled: Callable[[list[float]], float]) -> Callable[[_Group], float | None]:
    """A field of the valid sessions in one figure; None if none has it."""

    def value(group: _Group) -> float | None:
        values = (getattr(server, name) for server in group.sound)
        known = [value for value in values if value is not None]
        return pooled(known) if known else None

    return value


def _drafter(group: _Group) -> str:
    return "" if group.all[0].drafter == NO_DRAFTER else group.all[0].drafter


_COLUMNS = (
    column("engine", lambda group: _engine(group.all[0])),
    column("drafter", _drafter),
    column("K", lambda group: group.all[0].num_speculative_tokens),
    column("starts", attrgetter("starts"), meaning="valid sessions of all sessions"),
    column(
        "start s", _pooled("start_s", fmean), "{:significant}", meaning="mean time until healthy"
    ),
    column("KV tokens", attrgetter("capacity"), "{:,}", meaning="capacity of the KV cache"),
    column(
        "taken by K",
        attrgetter("taken"),
        "{:,}",
        meaning="part of the capacity that speculation takes",
    ),
    column(
        "preempted",
        _pooled("num_preemptions", sum),
        "{:,.0f}",
        meaning="requests preempted for lack of KV cache",
    ),
    column(
        "queue s",
        _pooled("queue_s", sum),
        "{:significant}",
        meaning="sum of waits inside the server",
    ),
    column("power", _pooled("power_w", fmean), "{:,.0f} W", meaning="mean, of all visible GPUs"),
    column(
        "memory",
        _pooled("memory_bytes", max),
        unit="bytes",
        meaning="peak, of all visible GPUs",
    ),
    column("GPUs", _pooled("num_gpus", max), "{:.0f}"),
    column(
        "prefixes",
        lambda group: ", ".join(dict.fromkeys(s.prefix_cache for s in group.sound)) or None,
        meaning="whether the cache kept prefixes of earlier prompts",
    ),
    column(
        "sees others",
        lambda group: "yes" if group.sound and all(s.sees_others for s in group.sound) else "no",
        meaning="whether requests of another client would be noticed",
    ),
)


def sessions_grid(document: Document) -> Table | None:
    """One row per engine and K; None without a serving engine."""
    groups = _groups(document)
    if not groups:
        return None
    return Table(
        title="Sessions",
        columns=_COLUMNS,
        records=groups,
        num_names=2,
        brief=range(9),
        has_title=False,
    )


_READ = ("K", "drafting", "prefix cache", "counters")


def deployment_facts(document: Document) -> Iterator[tuple[str, str]]:
    """Version, settings and command of each engine, and its acceptance rule."""
    for every, sound, plain in _groups(document):
        if not sound:
            continue
        first, name = sound[0], f"{_engine(sound[0])}, K={sound[0].num_speculative_tokens}"
        if differences := session_differences(plain, sound):
            differing = (f"{d.name} {d.candidate}, at K=0 {d.baseline}" for d in differences)
            yield f"{name}, besides K", "; ".join(differing)
        if first.read_at:
            facts = (f"{fact} {first.read_at.get(fact, 'unknown')}" for fact in _READ)
            yield f"{name}, facts read at", ", ".join(facts)
        if not first.num_speculative_tokens:
            versions = dict.fromkeys(server.version for server in every if server.version)
            yield f"{_engine(first)}, version", ", ".join(versions)
            settings = (f"{name} {value}" for name, value in first.settings.items())
            yield f"{_engine(first)}, settings", ", ".join(settings)
            if first.template_clock:
                yield f"{_engine(first)}, date in its chat template", first.template_clock
        chosen = _is_best(document, first)
        if not first.num_speculative_tokens or chosen:
            best = ", the best" if chosen else ""
            command = shlex.join(first.command) or f"was running at {', '.join(first.addresses)}"
            if fields := first.settings.get(DRAFT_FIELDS):
                command += f"; each request has {fields}"
            yield f"{name}{best}", command
    yield from acceptance_rules(document)


def acceptance_rules(document: Document) -> Iterator[tuple[str, str]]:
    """The acceptance rule of each engine that drafted; nothing for runs without a server."""
    if not document.servers:
        return
    rules: dict[str, dict[str, None]] = {}
    for server in document.servers:
        if server.num_speculative_tokens:
            known = server.acceptance_rule or "not known"
            rules.setdefault(server.engine, {})[known] = None
    for cell in document.cells:
        engine = cell.key.condition.engine
        if cell.key.draft.k and not any(s.engine == engine for s in document.servers):
            # The methods of other engines, which METHODS lacks, sample their drafts.
            method, lossy = METHODS.get(cell.key.draft.method), cell.key.draft.lossy
            draws = method is None or method.draws
            rule = acceptance_rule(lossy, cell.key.condition.temperature, draws=draws)
            rules.setdefault(engine, {})[rule] = None
    for engine, names in rules.items():
        yield f"acceptance rule of {engine}", "; ".join(names)


def session_warnings(document: Document) -> Iterator[Reason]:
    """Warnings about the sessions, each once per engine."""
    sound = usable_sessions(document.servers).values()
    for engine in dict.fromkeys(server.engine for server in sound):
        servers = [server for server in sound if server.engine == engine]
        if not all(server.sees_others for server in servers):
            yield Kind.OTHERS_UNSEEN(engine=engine)
        if not all(server.command for server in servers):
            ks = tuple(_restarted_ks(servers))
            yield Kind.RESTARTED(engine=engine, ks=ks) if ks else Kind.NOT_RESTARTED(engine=engine)
        if any(
            server.counters.get("num_cached_tokens", server.prefix_cache == "on")
            for server in servers
        ):
            yield Kind.PREFIXES_KEPT(engine=engine)
    warned: dict[Reason, list[ServerRecord]] = {}
    for server in sound:
        for warning in server.warnings:
            warned.setdefault(warning, []).append(server)
    for warning, (first, *rest) in warned.items():
        yield Kind.OF_SESSIONS(
            engine=first.engine,
            k=first.num_speculative_tokens,
            more=len(rest),
            because=(warning,),
        )


def _restarted_ks(servers: Iterable[ServerRecord]) -> list[int]:
    """The K whose server started more than once, as far as its counters report starts."""
    starts: dict[int, set[float]] = {}
    for server in servers:
        if server.started_s is not None:
            starts.setdefault(server.num_speculative_tokens, set()).add(server.started_s)
    return sorted(k for k, times in starts.items() if len(times) > 1)


def lost_line(document: Document) -> str | None:
    """How to measure lost sessions again; None if there are none."""
    num_lost = sum(1 for _ in lost_sessions(document.servers))
    if not num_lost:
        return None
    return (
        f"{plural(num_lost, 'session')} lost. To measure "
        f"{'its cycle' if num_lost == 1 else 'their cycles'} again: "
        f"{resume_command(document.folder, document.run)}"
    )


def _groups(document: Document) -> list[_Group]:
    """The sessions of each target, engine, drafter, K and variant, in the order of their first
    session.
    """
    usable = usable_sessions(document.servers)
    groups: dict[tuple[str, str, int], list[ServerRecord]] = {}
    for server in document.servers:
        at = (_engine(server), server.drafter, server.num_speculative_tokens)
        groups.setdefault(at, []).append(server)
    sound = {at: [s for s in group if s.session in usable] for at, group in groups.items()}
    plain = {engine: some for (engine, _, k), some in sound.items() if not k}
    return [_Group(g, sound[at], plain.get(at[0], [])) for at, g in groups.items()]


def _engine(server: ServerRecord) -> str:
    variant = f", {server.variant}" if server.variant else ""
    return f"{server.engine} of {server.target}{variant}"


def _is_best(document: Document, server: ServerRecord) -> bool:
    """Whether a decision recommends this drafter and K on this engine."""
    wanted = (server.target, server.engine, server.variant)
    return any(
        (d.condition.target, d.condition.engine, d.condition.variant) == wanted
        and (d.leader.draft.drafter, d.draft.k) == (server.drafter, server.num_speculative_tokens)
        for d in document.decisions
        if d.draft.k
    )
