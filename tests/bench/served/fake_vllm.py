"""A program that takes vLLM's arguments and serves synthetic responses, counted as vLLM counts.

Run as `python fake_vllm.py MODEL --port N --speculative-config JSON`. FAKE_VLLM in its environment
is JSON: "state", a file that counts the starts; "faults", by start (from 1), each one of FAULTS.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULTS = {
    "memory": "prints that memory ran out and ends",
    "deaf": "is never healthy",
    "dies": "ends in the middle of the second measured answer",
    "restarts": "counts from nothing after the second answer",
    "foreign": "serves another client's 500 tokens beside the second answer",
    "prefill": "reads another client's prompt of 1,000 tokens beside the second answer",
    "stubborn": "drafts as it was started, whatever K a request asks for",
    "hides": "counts fewer accepted drafts on its page than in its answers",
}
ROUND_S, DRAFT_S = 0.0001, 0.000005
WARM_UP = "Count from"
K_FIELD = "k"  # of a request, which vLLM does not have


class Engine:
    """The fake's K, the fault of its start, its requests, and its counts."""

    def __init__(self, k: int, fault: str = "") -> None:
        self.k, self.fault = k, fault
        self.slowdown = 1.0  # of all rounds
        self.version = "0.32.0"
        self.num_to_refuse = 0  # the next requests
        self.refuses_measured = False  # without warm-up requests
        self.refusal_status = 400
        self.rejected: tuple[str, ...] = ()  # fields of requests
        self.refusal_headers: dict[str, str] = {}
        self.num_slow = 0  # the next answers, each slower by half than the one after it
        self.health_status = 200
        self.on_health = self.before_answer = lambda: None  # called by a test's server
        self.word = "w"  # every token of its answers, with a number
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.num_measured = 0
        self.num_tokens = self.num_drafts = self.num_drafted = self.num_accepted = 0
        self.num_prompt_tokens = self.num_requests = 0
        self.accepted_at = [0] * k
        self.started_s = time.time()

    def rounds(self, prompt: str, most: int, k: int | None = None) -> list[int]:
        """Accepted drafts of each round, the same for equal prompts; the last may pass the end,
        which is after 9 to 40 tokens."""
        digest = hashlib.sha256(prompt.encode()).digest()
        num_later = min(8 + digest[0] % 32, most - 1)
        accepted: list[int] = []
        while sum(accepted) + len(accepted) < num_later:
            accepted.append(min(digest[len(accepted) % 32] % 6, self.k if k is None else k))
        return accepted

    def answer(self, prompt: str, most: int, k: int) -> Iterator[dict[str, Any]]:
        digest = hashlib.sha256(prompt.encode()).digest()
        ids = [digest[i % 32] for i in range(min(9 + digest[0] % 32, most))]
        accepted = self.rounds(prompt, most, k)
        yield {"choices": [{"delta": {"content": f"{self.word}0 "}, "token_ids": ids[:1]}]}
        done = 1
        with self.lock:
            slowdown = self.slowdown * 1.5**self.num_slow
            self.num_slow = max(0, self.num_slow - 1)
        for num_accepted in accepted:
            time.sleep((ROUND_S + k * DRAFT_S) * slowdown)
            new = ids[done : done + num_accepted + 1]
            text = "".join(f"{self.word}{done + i} " for i in range(len(new)))
            yield {"choices": [{"delta": {"content": text}, "token_ids": new}]}
            done += len(new)
        with self.lock:
            self.num_tokens += len(ids)
            self.num_prompt_tokens += len(prompt.split())
            self.num_requests += 1
            if self.k:
                for num_accepted in accepted:
                    for position in range(num_accepted):
                        self.accepted_at[position] += 1
                self.num_drafts += len(accepted)
                self.num_drafted += k * len(accepted)
                self.num_accepted += sum(accepted) - (self.fault == "hides")
        finish = "length" if len(ids) == most else "stop"
        yield {"choices": [{"delta": {}, "finish_reason": finish}]}
        usage = {"completion_tokens": len(ids), "prompt_tokens": len(prompt.split())}
        counts = {
            "per_step_accepted": accepted,
            "per_step_drafted": [k] * len(accepted),
            "num_spec_steps": len(accepted),
            "num_draft_tokens": k * len(accepted),
            "num_accepted_draft_tokens": sum(accepted),
        }
        metrics = {"speculative_decoding": counts} if self.k else None
        yield {"choices": [], "usage": usage, "metrics": metrics}

    def go_wrong(self, prompt: str) -> None:
        """Fail as planned at the second measured answer."""
        with self.lock:
            self.num_measured += WARM_UP not in prompt
            if self.num_measured != 2 or WARM_UP in prompt:
                return
            if self.fault == "dies":
                os._exit(9)
            if self.fault == "restarts":
                self.num_tokens = -1_000
            if self.fault == "foreign":
                self.num_tokens += 500
            if self.fault == "prefill":
                self.num_prompt_tokens += 1_000

    def page(self) -> str:
        lines = [
            f"vllm:generation_tokens_total {1_000 + self.num_tokens}.0",
            f"vllm:generation_tokens_created {self.started_s}",
            f"vllm:prompt_tokens_total {500 + self.num_prompt_tokens}.0",
            f'vllm:request_success_total{{finished_reason="stop"}} {40 + self.num_requests}.0',
            "vllm:num_requests_running 0.0",
            "vllm:num_requests_waiting 0.0",
        ]
        if self.k:
            lines += [
                f"vllm:spec_decode_num_drafts_total {self.num_drafts}.0",
                f"vllm:spec_decode_num_draft_tokens_total {self.num_drafted}.0",
                f"vllm:spec_decode_num_accepted_tokens_total {self.num_accepted}.0",
                *(
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {at}.0'
                    for i, at in enumerate(self.accepted_at)
                ),
            ]
        blocks = 1_000 - 100 * bool(self.k)
        lines.append(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0')
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    """The requests that specbench sends to vLLM."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        pages = {
            "/v1/models": json.dumps({"data": [{"id": "tiny", "max_model_len": 1024}]}),
            "/version": json.dumps({"version": self.engine.version}),
            "/metrics": self.engine.page(),
            "/health": "",
        }
        is_deaf = self.engine.fault == "deaf" and self.path == "/health"
        status = self.engine.health_status if self.path == "/health" else 200
        self._send(503 if is_deaf else status, pages.get(self.path, ""))
        if self.path == "/health":
            self.engine.on_health()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.engine.requests.append(body)
        prompt = "\n".join(message["content"] for message in body["messages"])
        if self.engine.num_to_refuse or (self.engine.refuses_measured and WARM_UP not in prompt):
            self.engine.num_to_refuse = max(0, self.engine.num_to_refuse - 1)
            self._send(self.engine.refusal_status, "not this one", self.engine.refusal_headers)
            return
        if wrong := [name for name in self.engine.rejected if name in body]:
            self._send(400, f"Unsupported parameter: '{wrong[0]}'")
            return
        self.engine.go_wrong(prompt)
        if WARM_UP not in prompt:
            self.engine.before_answer()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        k = min(body.get(K_FIELD, self.engine.k), self.engine.k)
        if self.engine.fault == "stubborn":
            k = self.engine.k
        for event in self.engine.answer(prompt, body["max_tokens"], k):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def option(name: str) -> str:
    words = sys.argv[1:]
    return words[words.index(name) + 1] if name in words else ""


def main() -> None:
    options = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    start = 1
    if "state" in options:
        with Path(options["state"]).open("a+") as file:
            file.write("x")
            file.flush()
            start = file.tell()
    fault = options.get("faults", {}).get(str(start), "")
    if fault == "memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
    config = option("--speculative-config")
    Handler.engine = Engine(json.loads(config)["num_speculative_tokens"] if config else 0, fault)
    Handler.engine.slowdown = options.get("slowdown", 1.0)
    http = ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler)
    http.daemon_threads = True
    http.serve_forever()


if __name__ == "__main__":
    main()
