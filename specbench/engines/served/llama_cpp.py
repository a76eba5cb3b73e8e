"""llama.cpp: `llama-server`, which reads GGUF files.

Facts: tools/server/ of llama.cpp, 2026-10. Its chat endpoint gives no token ids, its own completion
does: the server makes a prompt of the conversation first, then tokens, then answers these.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from pydantic import TypeAdapter, ValidationError

from specbench.engines.served.asking import conversation
from specbench.engines.served.counting import Round, of_rounds, of_sums
from specbench.engines.served.served_engine import Launch, ServerFacts, Start
from specbench.errors import UsageError
from specbench.export.engines.llama_cpp import MODEL_FLAGS
from specbench.records import Request, RequestCounts
from specbench.servers.client import Client, nonsense
from specbench.servers.server_log import ARGUMENTS, MEMORY, PORT, LogFormat
from specbench.servers.streamed import Count, Part, Streamed, TokenId

MODULE = None
HEALTH = "/health"
COUNTERS = "/metrics"
_GGUF = "make the GGUF file again, or name another: --engine-args '--model FILE'"
LOG = LogFormat(
    prefix=re.compile(r"[\d.]+ (?P<level>[A-Z]) "),
    known={
        r"^error: invalid argument|^error while handling argument": ARGUMENTS,
        r"failed to open GGUF|invalid magic characters|corrupted or incomplete": _GGUF,
        r"couldn't bind .*socket": PORT,
        r"(?:failed|unable) to allocate": MEMORY,
    },
)

_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def launch(start: Start) -> Launch:
    """`exported` is `llama-server --model NAME.gguf ...`; the files are looked for."""
    command = list(start.exported)
    for i, word in enumerate(command):
        if word in MODEL_FLAGS and word not in start.arguments:
            command[i + 1] = str(_gguf(command[i + 1], word, start.models))
    if start.python is not None:
        command[0] = str(start.python)
    command += ["--host", start.host, "--port", str(start.port), "--seed", str(start.seed)]
    command += ["--metrics", "--parallel", str(start.most_at_once)]
    if start.context is not None:  # slots share it evenly
        command += ["--ctx-size", str(start.context * start.most_at_once)]
    if not start.keeps_prefixes:
        command += ["--cache-ram", "0", "--no-cache-prompt"]
    return Launch(command=(*command, *start.arguments))


def _gguf(name: str, flag: str, folders: Sequence[Path]) -> Path:
    """The file as it is named, or beside its model's folder, or in it: of that name, or alone."""
    own = [folder for folder in folders if folder.name == Path(name).stem]
    places = [Path(name)]
    for folder in own:
        inside = sorted(folder.glob("*.gguf"))
        places += [folder.parent / Path(name).name, folder / Path(name).name]
        places += inside if len(inside) == 1 else []
    for place in places:
        if place.is_file():
            return place
    beside = "".join(f", nor beside or in {folder}" for folder in own)
    raise UsageError(
        f"llama.cpp reads GGUF files, and there is no {name} in {Path.cwd()}{beside}: make it from "
        "the `model:` in pairings.yaml with llama.cpp's convert_hf_to_gguf.py MODEL --outfile "
        f"{name}, or name one that you have: --engine-args '{flag} FILE'"
    )


async def facts(client: Client) -> ServerFacts:
    """It tells whether it speculates, and K by its counters, after the first draft."""
    root = client.address.root
    props = await client.json(f"{root}/props")
    counters = await client.counters(COUNTERS)
    speculates = [bool(slot.speculative) for slot in await _slots(client)]
    settings = {name: str(props.get(name)) for name in ("model_path", "model_ftype", "total_slots")}
    default = props.get("default_generation_settings")
    n_ctx = default.get("n_ctx") if isinstance(default, dict) else None  # of a slot
    return ServerFacts(
        version=str(props.get("build_info", "")),
        model=await client.model(),
        k=counters.num_positions if any(speculates) else 0 if speculates else None,
        drafts=any(speculates),
        settings={**settings, "n_ctx": str(n_ctx)},
        prefix_cache="by request",
    )


class _Slot(Part):
    speculative: bool | None = None


async def _slots(client: Client) -> list[_Slot]:
    """None where the page is switched off; ServerError."""
    page = await client.page("/slots") or "[]"
    try:
        return TypeAdapter(list[_Slot]).validate_json(page)
    except ValidationError as error:
        client.fail(f"/slots: {nonsense(error)}")


class _Step(NamedTuple):
    """What is known with a token: how many there are, and the drafts of all rounds so far."""

    num_tokens: int
    num_drafted: int
    num_accepted: int


class _Timings(Part):
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class _Event(Part):
    content: str | None = None
    tokens: list[TokenId] | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    stop_type: str | None = None
    timings: _Timings = _Timings()


@dataclass(kw_only=True, slots=True)
class _Answer(Streamed):
    """Its own events, each of one token."""

    tells_all_ids: ClassVar[bool] = False

    steps: list[_Step] = field(default_factory=list)

    def add(self, event: Mapping[str, Any]) -> None:
        said = _Event.model_validate(event)
        reason = _REASONS.get(said.stop_type or "")
        choice = {"text": said.content, "token_ids": said.tokens, "finish_reason": reason}
        usage = {"completion_tokens": said.tokens_predicted, "prompt_tokens": said.tokens_evaluated}
        metrics = {**said.timings.model_dump(), "steps": self.steps}
        Streamed.add(self, {"choices": [choice], "usage": usage, "metrics": metrics})
        if said.tokens and said.tokens_predicted is not None:
            drafts = said.timings.draft_n, said.timings.draft_n_accepted
            self.steps.append(_Step(said.tokens_predicted, *drafts))


class _Template(Part):
    prompt: str


class _Tokens(Part):
    tokens: list[TokenId]


async def answer(client: Client, model: str, request: Request) -> Streamed:
    """With token ids, unless a token ended within a character: such ids are not told."""
    root, sampling = client.address.root, request.sampling
    made = await client.told(f"{root}/apply-template", _Template, conversation(request))
    text = {"content": made.prompt, "add_special": True, "parse_special": True}
    asked = await client.told(f"{root}/tokenize", _Tokens, text)
    body = {
        "model": model,
        "prompt": asked.tokens,
        "n_predict": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0.0,
        "seed": request.seed,
        "cache_prompt": request.keeps_prefixes,
        "timings_per_token": True,
    }
    found = _Answer(sent_s=perf_counter(), prompt_ids=asked.tokens)
    await client.stream("/completion", body, found)
    if len(found.token_ids) != found.num_tokens:
        del found.token_ids[:]
    return found


def counts(answer: Streamed, k: int) -> RequestCounts | None:
    """Its totals; where every token was told, also the rounds, and what went past the end."""
    told = answer.metrics
    if not told or not k:
        return None
    steps = told["steps"]
    if len(steps) != answer.num_tokens:
        accepted, drafted = told["draft_n_accepted"], told["draft_n"]
        return of_sums(answer, num_accepted=accepted, num_drafted=drafted)
    drafting = [(old, new) for old, new in pairwise(steps) if new.num_drafted > old.num_drafted]
    rounds = [
        Round(new.num_drafted - old.num_drafted, new.num_accepted - old.num_accepted)
        for old, new in drafting
    ]
    num_overshot = 0
    if drafting:
        num_emitted = len(steps) + 1 - drafting[-1][1].num_tokens  # since the last one began
        num_overshot = max(rounds[-1].num_accepted + 1 - num_emitted, 0)
    return of_rounds(answer, rounds, k, num_overshot=num_overshot)
