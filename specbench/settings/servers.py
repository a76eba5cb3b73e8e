"""Settings of a run that measures serving engines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench.settings.option import Option
from specbench.settings.words import parse_engine_args


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Starting a serving engine, or reaching one that runs."""

    base_urls: Annotated[  # (): the engine is started
        tuple[str, ...],
        Option(
            names=("--base-url",),
            is_repeated=True,
            read=tuple,
            help="Measure a running server, such as http://localhost:8000, with #k=4 if its K is "
            "4. Repeatable for other K and replicas.",
            shown=False,
            placeholder="URL",
        ),
    ] = ()
    launch: Annotated[
        str | None,
        Option(
            names=("--engine-command",),
            help="Command that starts the engine, with {args} and {port}, such as "
            "'docker run --network host IMAGE {args}'.",
            shown="the engine's",
            placeholder="COMMAND",
        ),
    ] = None
    engine_python: Annotated[
        Path | None,
        Option(help="Python of the engine's environment.", shown="the engine on the PATH"),
    ] = None
    engine_args: Annotated[
        tuple[str, ...],
        Option(
            is_repeated=True,
            read=parse_engine_args,
            help="Arguments for the engine, such as '--tensor-parallel-size 2'.",
            shown=False,
            placeholder="ARGS",
        ),
    ] = ()
    engine_version: Annotated[
        str | None,
        Option(
            is_rare=True,
            help="Version of the engine, whose flags differ between releases.",
            shown="what --engine-python reports, or the newest known",
            placeholder="VERSION",
        ),
    ] = None
    cycles: Annotated[
        int | None,
        Option(
            names=("--restart-cycles",),
            min=2,
            max=100,
            help="Cycles of server restarts; each cycle starts every K twice.",
            shown="4 to 12, by the measured noise",
        ),
    ] = None
    num_warmups: Annotated[
        int | None,
        Option(
            names=("--warmup",),
            min=0,
            max=100_000,
            help="Requests before each session and concurrency that are not counted.",
            shown="by concurrency",
        ),
    ] = None
    prefix_cache: Annotated[
        bool,
        Option(
            names=("--enable-prefix-caching",),
            help="Let the server keep prefixes of earlier prompts.",
        ),
    ] = False
    start_timeout_s: Annotated[
        float,
        Option(
            is_rare=True,
            names=("--startup-timeout",),
            unit="s",
            min=1,
            help="Seconds until a started server must be healthy.",
            placeholder="SECONDS",
        ),
    ] = 900.0
