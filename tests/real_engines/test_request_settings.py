"""Settings of requests on real engines: they change the text, in the same way at every K."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from jsonschema import Draft202012Validator

from tests.real_engines.environments import MODELS, VLLM
from tests.real_engines.sweeps import (
    DRAFTING_K,
    EXACT,
    PLAIN,
    K,
    Sweep,
    process,
    sweep,
    texts_other_than_without_speculation,
)
from tests.real_engines.test_vllm import EAGER, ENVIRONMENT

pytestmark = pytest.mark.engines

# Small enough for a model that never learned JSON.
SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "points": {"type": "integer", "minimum": 0, "maximum": 9},
        "again": {"type": "boolean"},
        "reason": {"type": "string", "maxLength": 100},
    },
    "required": ["mood", "points", "again", "reason"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "rating", "schema": SCHEMA}}
STOP = "return"
PROMPTS = (
    "Write a function that adds two numbers.",
    "Write a Python function that reverses a list.",
    "Write a Python function that counts the words of a text.",
    "How do I make tea?",
    "Name three rivers.",
)
FIVE = re.compile("[a-c]{5}")
EXTRA = {
    "vllm": {"structured_outputs": {"regex": FIVE.pattern}},
    "llama_cpp": {"grammar": f"root ::= {'[a-c] ' * 5}"},
}
SPECULATION = {"method": "draft_model", "model": str(MODELS / "draft"), "num_speculative_tokens": K}
COMMANDS = {
    "vllm": [
        *(VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", MODELS / "target"),
        *("--dtype", "float32", "--no-enable-prefix-caching", *EAGER.split()),
        # Otherwise a small model fills its answers with whitespace.
        *("--structured-outputs-config.backend", "xgrammar"),
        "--structured-outputs-config.disable_any_whitespace=true",
    ],
    "llama_cpp": [*PLAIN, "--parallel", "1", *EXACT],
}
DRAFTING = {
    "vllm": [
        *("--speculative-config", json.dumps(SPECULATION)),
        *("--per-request-spec-decode-metrics", "detailed"),
    ],
    "llama_cpp": DRAFTING_K,
}


class Engine(NamedTuple):
    """An engine's servers: one without speculation, and one at K."""

    name: str
    addresses: tuple[str, str]

    def measured(self, out: Path, *options: str, **settings: Any) -> Sweep:
        """The sweep over the prompts with these settings."""
        rows = [{"prompt": prompt, **settings} for prompt in PROMPTS]
        (out / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        plain, drafting = self.addresses
        servers = ("--base-url", f"{plain}#k=0", "--base-url", f"{drafting}#k={K}")
        arguments = (
            "-w",
            "./own.jsonl",
            "--restart-cycles",
            "2",
            "--max-new-tokens",
            "256",
            *options,
        )
        run = sweep(
            "sweep-k", "demo/draft", "--engine", self.name, *servers, *arguments, cwd=out, out=out
        )
        assert not [server.problems for server in run.run.servers if server.problems]
        assert not texts_other_than_without_speculation(run, "draft", K, ["own.jsonl"])
        length = run.cells["draft", "own.jsonl", K]["mean_acceptance_length"]
        print(f"\n{self.name}, {[*settings]} {options}: mean acceptance length {length}")
        return run


@pytest.fixture(scope="module", params=COMMANDS)
def engine(request, tmp_path_factory) -> Iterator[Engine]:
    name, folder = request.param, tmp_path_factory.mktemp("servers")
    commands = {0: COMMANDS[name], K: (*COMMANDS[name], *DRAFTING[name])}
    with ExitStack() as stack:
        started = [
            stack.enter_context(process(command, folder / f"{k}.log", **ENVIRONMENT))
            for k, command in commands.items()
        ]
        for root, server in started:
            while not _is_healthy(root):
                assert server.poll() is None, (folder / "0.log").read_text()[-2000:]
                time.sleep(1)
        plain, drafting = (root for root, _ in started)
        yield Engine(name, (plain, drafting))


def _is_healthy(root: str) -> bool:
    try:
        with urlopen(f"{root}/health") as response:
            return response.status == 200
    except URLError:
        return False


def texts_of(result: Sweep) -> dict[str, str]:
    """The text of each prompt, which is the same at every K and in every session."""
    cells = ("none", 0), ("draft", K)
    requests = [r for drafter, k in cells for r in result.requests(drafter, "own.jsonl", k)]
    texts = {r.prompt_id: r.text for r in requests}
    assert all(r.text == texts[r.prompt_id] for r in requests)
    assert len(texts) == len(PROMPTS)
    return {prompt: text or "" for prompt, text in texts.items()}


def is_valid(text: str) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(SCHEMA).is_valid(content))


def test_every_answer_has_its_schema(engine, tmp_path):
    free = engine.measured(tmp_path, "--ignore-request-settings", response_format=FORMAT)
    assert not any(map(is_valid, texts_of(free).values()))
    run = engine.measured(tmp_path, response_format=FORMAT)
    assert all(map(is_valid, texts_of(run).values())), texts_of(run)
    lengths = [
        float(run.cells["draft", "own.jsonl", K]["mean_acceptance_length"]) for run in (run, free)
    ]
    assert all(1 < length <= K + 1 for length in lengths)


def test_outputs_end_before_their_stop_string(engine, tmp_path):
    free = texts_of(engine.measured(tmp_path, "--ignore-request-settings", stop=[STOP]))
    stopped = texts_of(engine.measured(tmp_path, stop=[STOP]))
    assert stopped == {prompt: text.split(STOP)[0] for prompt, text in free.items()}
    assert 1 < sum(STOP in text for text in free.values()) < len(PROMPTS)


def test_other_fields_reach_the_engine(engine, tmp_path):
    texts = texts_of(engine.measured(tmp_path, extra_body=EXTRA[engine.name]))
    assert all(map(FIVE.fullmatch, texts.values())), texts
