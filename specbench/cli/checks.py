"""Checks of combined settings before anything is loaded."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.inputs.address import KEY, Address
from specbench.settings import (
    BUILTIN,
    OPENAI,
    SERVED,
    STARTED,
    TRANSFORMERS,
    DecoderSettings,
    RunSettings,
    ServerSettings,
)
from specbench.settings.groups import Acceptance
from specbench.settings.option import leaves


def checked(settings: RunSettings, *, is_resumed: bool = False) -> RunSettings:
    """The settings; UsageError if they contradict each other. A resumed run has its own engine."""
    settings = replace(settings, decoder=_with_acceptance(settings))
    draft, load, forecasting = settings.draft, settings.load, settings.forecasting
    if load.request_rate == math.inf:
        raise UsageError(
            "--request-rate inf: expected requests per second; without the option each request "
            "starts when one ends"
        )
    if settings.sampling.top_p == 0:
        raise UsageError("--top-p 0 leaves no token; allowed: above 0, at most 1")
    if draft.adaptive and BUILTIN not in load.engines:
        _require_own_schemes(settings)
    if settings.effort.num_requests is not None and not (load.has_streams or load.served):
        raise UsageError(
            "--num-requests counts the requests of a pass or of a server's session; for one "
            "request at a time use --num-prompts and --repeats, or add --concurrency"
        )
    if load.slo and load.num_samples > 1:
        raise UsageError("--slo counts single requests; drop --best-of")
    is_raced = bool(load.in_process) and settings.effort.budget_s is not None
    if load.slo and (forecasting.forecast or is_raced):
        option = f"--time-budget of --engine {min(load.in_process, default='')}"
        option = "--forecast" if forecasting.forecast else option
        raise UsageError(
            f"{option} drops K by speed, but --slo chooses by goodput; drop one of them, "
            "or limit the run with --num-prompts"
        )
    if load.num_samples > 1:
        _require_samples(settings)
    if not is_resumed:
        _require_servers(settings)
    if forecasting.forecast or forecasting.costs:
        _require_forecast(settings)
        forecasting = replace(forecasting, forecast=True)
    elif forecasting.exhaustive:
        raise UsageError("--validate-forecast checks forecasts; add --forecast")
    if forecasting.acceptance_rule is not None and not forecasting.costs:
        raise UsageError("--acceptance-rule describes the engine of --step-times; add --step-times")
    return replace(settings, forecasting=forecasting)


class SimulatedAcceptance(NamedTuple):
    """The rates of draft tokens that are accepted, by position, or by K from a file."""

    rates: Acceptance
    file_sha256: str | None


def read_acceptance(given: Acceptance | str) -> SimulatedAcceptance:
    """The acceptance to simulate. UsageError for a file without a curve, or with several."""
    if not isinstance(given, str):
        return SimulatedAcceptance(given, None)
    from specbench.importers import acceptance_by_k, import_files
    from specbench.importers.imported_cell import ImportOverrides

    cells = import_files([given], ImportOverrides(temperature=0.0, concurrency=1))
    curves = {cell.key.condition: cell.key for cell in cells if cell.acceptance_rates}
    if len(curves) != 1:
        labels = "; ".join(key.label for key in curves.values())
        raise UsageError(
            f"--simulate-acceptance {given}: one curve is needed, the file has "
            + (f"those of {labels}: name one, such as {given}#thinking_on" if curves else "none")
        )
    return SimulatedAcceptance(acceptance_by_k(cells), cells[0].record.file_sha256)


def _with_acceptance(settings: RunSettings) -> DecoderSettings:
    """The decoder with its acceptance read; UsageError if K or an engine cannot simulate it."""
    given, ks = settings.decoder.acceptance, settings.draft.num_speculative_tokens
    if given is None:
        return settings.decoder
    unable = {*settings.load.engines} & {TRANSFORMERS, OPENAI}
    if unable or settings.servers.base_urls:
        reason = "--base-url measures what runs" if settings.servers.base_urls else min(unable)
        raise UsageError(
            f"--simulate-acceptance: {reason}, which cannot be made to simulate acceptance; use "
            f"--engine {' or '.join((BUILTIN, *STARTED))}, started here"
        )
    rates, file_sha256 = read_acceptance(given)
    if isinstance(rates, Mapping) and not {*(ks or (-1,))} <= {0, *rates}:
        known = ",".join(map(str, rates))
        raise UsageError(f"--simulate-acceptance {given}: use K that the file has: -k 0,{known}")
    decoder = replace(settings.decoder, acceptance=rates)
    if not isinstance(given, str):
        return decoder
    path = PurePath(given)
    name = path.name if path.is_absolute() else given
    return replace(decoder, acceptance_file=name, acceptance_sha256=file_sha256)


def _require_samples(settings: RunSettings) -> None:
    """Raises UsageError if the best of several outputs is not defined."""
    n, load = settings.load.num_samples, settings.load
    if 0 in settings.sampling.temperatures:
        raise UsageError(
            f"--best-of {n}: at temperature 0 all {n} answers are the same; use a temperature "
            "above 0, such as 0.7"
        )
    if load.has_streams:
        raise UsageError(
            f"--best-of {n} decodes {n} answers to one prompt at a time; leave out --concurrency "
            "and --request-rate"
        )
    if settings.draft.adaptive:
        raise UsageError(f"--best-of {n} needs a fixed K; drop auto from -k")
    if load.engines != (BUILTIN,):
        raise UsageError(f"--best-of {n} needs the built-in decoder; leave out --engine")
    if settings.decoder.acceptance is not None:
        raise UsageError(
            f"--best-of {n} picks the likeliest text, but simulated text has no meaning; drop "
            "--best-of or --simulate-acceptance"
        )


def _require_forecast(settings: RunSettings) -> None:
    """Raises UsageError if nothing can be forecast, or if step times cannot be read."""
    from specbench.forecast.engine_costs import check_sources

    costs, ks = settings.forecasting.costs, settings.draft.num_speculative_tokens
    option = "--step-times" if costs else "--forecast"
    if settings.load.engines != (BUILTIN,):
        raise UsageError(f"{option} needs the built-in decoder; leave out --engine")
    if settings.load.request_rate is not None:
        raise UsageError(f"{option} assumes a full batch; drop --request-rate")
    if settings.load.num_samples > 1:
        raise UsageError(f"{option} assumes one answer per prompt; drop --best-of")
    if settings.decoder.acceptance is not None:
        raise UsageError(f"{option} traces real acceptance; drop --simulate-acceptance")
    if settings.forecasting.exhaustive and costs:
        raise UsageError(
            "--validate-forecast measures here, but --step-times describe another engine; use one "
            "of them"
        )
    check_sources(costs)
    if costs and ks is not None and not any(ks):
        raise UsageError("--step-times forecasts fixed K above 0, such as -k 1..8")


# `--api-key KEY`, `--hf-token=TOKEN`, and `NAME=VALUE` of a variable named as a secret.
_SECRET = re.compile(
    r"--[\w-]*(key|token|secret|password)(=|$)|\w*(KEY|TOKEN|SECRET|PASSWORD)=.", re.IGNORECASE
)
_SIMULATES = re.compile(r"--spec-synth|synthetic_acceptance|rejection_sample_method\W*synthetic")
_OURS = ("--host", "--port")
# Server settings that are read only when a server is started.
_OF_STARTS = (
    *("launch", "engine_python", "engine_args", "variants"),
    *("engine_version", "start_timeout_s"),
)
# Flags that set the method or K, and those that set the model, which are other axes.
_DRAFTS = re.compile(
    r"--(draft(-n|-max)?|extra-llm-api-options|spec-(type|draft-n-max)"
    r"|speculative-(algo(rithm)?|draft-model(-path)?|num-steps|num-draft-tokens|eagle-topk))"
)
_MODELS = re.compile(r"--(model|model-path|model-draft|config|speculative-config)|-m|-md|-hf|-sc")


def _require_servers(settings: RunSettings) -> None:
    """Raises UsageError for server options without a server, and for options no server has."""
    served = settings.load.served
    _require_variants(settings)
    of_builtin = _given(settings.decoder, "forward", "graph", "kernels")
    if of_builtin and BUILTIN not in settings.load.engines:
        raise UsageError(f"{', '.join(of_builtin)}: needs the built-in decoder; leave it out")
    if not served:
        unread = settings.servers
        if costs := settings.forecasting.costs:
            from specbench.forecast.engine_costs import is_address

            if any(map(is_address, costs)):  # the form of requests to them
                unread = replace(unread, served_model_name=None, omit_fields=())
        if unread != ServerSettings():
            raise UsageError(
                "options of servers, such as --base-url, --engine-command and --restart-cycles, "
                f"need a serving engine; add --engine with one of {', '.join(SERVED)}"
            )
        return
    names = ", ".join(served)
    if settings.load.contexts:
        raise UsageError(
            f"--prompt-tokens needs the built-in decoder; drop it, or drop --engine {names}"
        )
    if settings.effort.precision is not None:
        raise UsageError(
            f"--margin-of-error needs the built-in decoder; for {names} use --restart-cycles"
        )
    if settings.load.request_rate is not None and len(settings.load.concurrency) > 1:
        raise UsageError(
            f"--request-rate needs a single --concurrency for {names}: a server gets requests at "
            "their times, however many are open"
        )
    if settings.effort.num_repeats is not None and not settings.load.in_process:
        raise UsageError(
            "--repeats is for engines in this process; a server repeats its prompts in every "
            "cycle, so use --restart-cycles"
        )
    variants = {f"--variant {name}": w for name, w in (settings.servers.variants or {}).items()}
    arguments = {"--engine-args": settings.servers.engine_args, **variants}
    words = (*chain.from_iterable(arguments.values()), *(settings.servers.launch or "").split())
    for word in filter(_SECRET.match, words):
        raise UsageError(
            f"{word.partition('=')[0]} in the engine's arguments would be stored, and shown in the "
            "list of processes; set it in the environment, which a started engine inherits "
            f"(VLLM_API_KEY, LLAMA_API_KEY, HF_TOKEN), and {KEY} for specbench's own requests"
        )
    for word in filter(_SIMULATES.search, words):
        raise UsageError(
            f"{word} in the engine's arguments: simulated acceptance would pass for real; use "
            "--simulate-acceptance of `run` and `sweep-k`, which mark the run"
        )
    for option, word in ((name, word) for name in arguments for word in arguments[name]):
        if word.partition("=")[0] in _OURS:
            raise UsageError(
                f"{word} for the engine: specbench sets the address of a started server; leave "
                "it out, or put {port} into --engine-command"
            )
        flag = word.partition("=")[0].replace("_", "-")
        if _DRAFTS.fullmatch(flag) or (option in variants and _MODELS.fullmatch(flag)):
            raise UsageError(
                f"{option}: specbench sets {flag} for every K; leave it out, and choose the "
                "model, the method and K with the pairing and -k"
            )
    urls = settings.servers.base_urls
    if urls and len(served) > 1:
        raise UsageError(
            f"--base-url needs a single engine, but --engine names {names}; make one run for each"
        )
    if urls and (of_starts := _given(settings.servers, *_OF_STARTS)):
        raise UsageError(
            f"--base-url measures what runs already, so {', '.join(of_starts)} would have nothing "
            "to start; use one or the other"
        )
    if OPENAI in served and not urls:
        raise UsageError(
            "--engine openai measures a running server: add its --base-url, such as "
            "http://localhost:8000"
        )
    for url in urls:
        Address.at(url, "--base-url")
    if settings.servers.served_model_name and not urls:
        raise UsageError(
            "--served-model-name chooses a model of a running server: add its --base-url, or name "
            "a started server's model with --engine-args '--served-model-name NAME'"
        )
    for name, is_off in (
        ("top_k", not settings.sampling.top_k),
        ("top_p", settings.sampling.top_p == 1),
    ):
        if name in settings.servers.omit_fields and not is_off:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--omit-fields {name} would drop {option}; leave one of them out")


def _given(group: DecoderSettings | ServerSettings, *names: str) -> list[str]:
    """The options of these fields that have another value than the default."""
    return [
        leaf.option.names_of(leaf.name)[0]
        for leaf in leaves(type(group))
        if leaf.option and leaf.name in names and getattr(group, leaf.name) != leaf.default
    ]


def _require_own_schemes(settings: RunSettings) -> None:
    """Raises UsageError if an adaptive K is not the built-in decoder's, nor that of one engine."""
    engines = settings.load.engines
    if len(engines) > 1 or engines[0] not in STARTED:
        raise UsageError(
            f"-k auto and --adaptive need the built-in decoder (--engine builtin), or a single "
            f"engine that has its own scheme and that specbench starts: {', '.join(STARTED)}"
        )
    if settings.servers.base_urls:
        raise UsageError(
            "--adaptive starts the engine with its own scheme, but --base-url measures what runs "
            "already; use one or the other"
        )


def _require_variants(settings: RunSettings) -> None:
    """Raises UsageError for variants of an engine without arguments, or of arguments that specbench
    sets.
    """
    variants = settings.servers.variants
    if not variants:
        return
    unable = [engine for engine in settings.load.engines if engine not in STARTED]
    if unable:
        raise UsageError(
            f"--variant: the engine {unable[0]} takes no arguments; it needs a single engine that "
            f"specbench starts: --engine {' or '.join(STARTED)}"
        )
    if len(settings.load.engines) > 1:
        raise UsageError(
            "--variant needs a single engine, since each has other arguments, but --engine names "
            f"{', '.join(settings.load.engines)}; make one run for each"
        )
