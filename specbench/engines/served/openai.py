"""Any server with an OpenAI-compatible API, measured by the client's clock and `usage`."""

from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.engines.served_engine import (
    EngineProperties,
    StartCommand,
    StartOptions,
    ask_chat,
    request_fields,
)
from specbench.errors import UsageError
from specbench.records import Request, RequestCounts
from specbench.servers.facts import ModelNames, ServerFacts
from specbench.servers.metrics_page import count_of
from specbench.servers.response import StreamedResponse
from specbench.servers.server_log import PLAIN
from specbench.settings import OPENAI, STARTED

if TYPE_CHECKING:
    from specbench.servers.client import Client

PROPERTIES = EngineProperties(start_s=0.0, health="/v1/models")
COUNTERS = None
LOG = PLAIN


def launch(start: StartOptions) -> StartCommand:  # noqa: ARG001
    """Raises UsageError: specbench cannot start a server of an unknown engine."""
    raise UsageError(
        f"--engine {OPENAI} measures a server that runs already: give its address as --base-url; "
        f"to start one, use --engine {', '.join(STARTED)}"
    )


async def facts(client: "Client", names: ModelNames) -> ServerFacts:
    """Facts from the model's card, which has no K."""
    card = await names.card(client)
    length = {name: str(card[name]) for name in ("max_model_len",) if name in card}
    return ServerFacts(
        version=await client.version(),
        model=card["id"],
        context=count_of(length.get("max_model_len")),
        settings=length,
    )


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Send only fields of the API, and the top-k if there is one. The API has a field for the
    reasoning effort, so it is left out of the template's arguments."""
    top_k = {"top_k": request.sampling.top_k} if request.sampling.top_k else {}
    args = {n: v for n, v in request.template_args.items() if n != "reasoning_effort"}
    plain = replace(request, template_args=args)
    return await ask_chat(client, plain, {**request_fields(model, request), **top_k})


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:  # noqa: ARG001
    """Always None: the API has no field for counts."""
    return None
