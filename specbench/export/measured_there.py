"""Where the figures were measured with the very engine that is exported to."""

import shlex
from collections.abc import Iterator, Sequence

from specbench.errors import UsageError
from specbench.export.deployment import Deployment, Export, Exporter
from specbench.metrics.aggregate import usable_sessions
from specbench.records import NO_DRAFTER, ServerRecord


def export_as_measured(
    exporter: Exporter, deployment: Deployment, version: str | None, config_name: str
) -> Export:
    """For the measured release, or the newest that the exporter knows; UsageError."""
    releases = [] if version is None else [version, version.partition("-")[0]]
    for release in dict.fromkeys(releases):  # llama.cpp's have a commit behind the build
        try:
            return exporter.export(deployment, release, config_name)
        except UsageError:
            continue
    return exporter.export(deployment, None, config_name)


def version_there(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord]
) -> str | None:
    """The engine's version in the sessions that the deployment rests on, the newest if several."""
    found = [server.version for server in _sessions(deployment, engine, servers)]
    return found[-1] if found else None


def basis_there(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord], arguments: Sequence[str]
) -> Iterator[str]:
    """That the figures are this engine's own, and what else it was told: the user's `arguments`."""
    own = list(_sessions(deployment, engine, servers))
    if not own:
        return
    versions = ", ".join(dict.fromkeys(server.version for server in own))
    if all(server.command for server in own):
        yield f"measured with {engine} {versions} itself, started with these flags"
    else:
        yield f"measured with {engine} {versions} itself, which was running: flags not known"
    if arguments:
        yield f"it was also told: {shlex.join(arguments)}"


def _sessions(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord]
) -> Iterator[ServerRecord]:
    if deployment.measured_with != engine:
        return
    ks = {tier.num_speculative_tokens for tier in deployment.tiers}
    for server in usable_sessions(servers).values():
        is_meant = (server.engine, server.target) == (engine, deployment.pairing.target.name)
        is_used = server.num_speculative_tokens in ks
        if is_meant and is_used and server.drafter in (deployment.pairing.drafter.name, NO_DRAFTER):
            yield server
