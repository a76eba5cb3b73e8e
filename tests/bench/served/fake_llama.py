"""A program that takes llama-server's arguments and serves synthetic responses, counted as it does.

Run as `python fake_llama.py --port N --spec-type TYPES --spec-draft-n-max K`. Drafts are accepted
as those of the fake vLLM, whatever drafts them.
"""

import hashlib
import json
import sys
import time
from http.server import ThreadingHTTPServer
from typing import Any

from tests.bench.served.fake_vllm import Engine, Handler, option

HELP = "--spec-type none,draft-simple,ngram-simple,ngram-mod"
DEVICES = "Available devices:\n  CUDA0: Made-up GPU (24214 MiB, 23000 MiB free)"
ROUND_S = 0.01  # much longer than a busy machine takes for the events of a round


class LlamaHandler(Handler):
    """The requests that specbench sends to llama-server."""

    def do_GET(self) -> None:
        engine = self.engine
        counts = {
            "tokens_predicted": engine.num_tokens,
            "prompt_tokens": engine.num_prompt_tokens,
            "prompt_tokens_cached": 0,
            "spec_decode_num_drafts": engine.num_drafts,
            "spec_decode_num_draft_tokens": engine.k * engine.num_drafts,
            "spec_decode_num_accepted_tokens": engine.num_accepted,
        }
        lines = [f"llamacpp:{name}_total {count}" for name, count in counts.items()]
        lines += ["llamacpp:requests_processing 0", "llamacpp:requests_deferred 0"]
        of_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
        for position, count in enumerate(engine.accepted_at if engine.num_drafts else ()):
            lines.append(f'{of_position}{{position="{position}"}} {count}')
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "t.gguf"}]},
            "/props": {"build_info": "b10999-fake", "total_slots": 1},
            "/slots": [{"id": 0, "speculative": engine.k > 0}],
            "/health": {"status": "ok"},
        }
        path = self.path.partition("?")[0]
        self._send(200, "\n".join(lines) if path == "/metrics" else json.dumps(pages[path]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            self._send(200, json.dumps({"prompt": body["messages"][-1]["content"]}))
        elif self.path == "/tokenize":
            self._send(200, json.dumps({"tokens": [*body["content"].encode()]}))
        else:
            self._complete(body["prompt"], body["n_predict"])

    def _complete(self, prompt: list[int], most: int) -> None:
        engine, drafted, accepted_so_far = self.engine, 0, 0
        digest = hashlib.sha256(bytes(prompt)).digest()
        ids = [digest[i % 32] for i in range(min(9 + digest[0] % 32, most))]
        rounds = engine.rounds(str(prompt), len(ids)) if len(ids) > 1 else []
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        sent = 0
        for num_accepted in (None, *rounds):
            if num_accepted is not None:
                time.sleep(ROUND_S)
                drafted, accepted_so_far = drafted + engine.k, accepted_so_far + num_accepted
            for _ in range(min(1 + (num_accepted or 0), len(ids) - sent)):
                sent += 1
                self._event(
                    content=f"w{sent} ",
                    tokens=[ids[sent - 1]],
                    tokens_predicted=sent,
                    tokens_evaluated=len(prompt),
                    timings={"draft_n": drafted, "draft_n_accepted": accepted_so_far},
                )
        with engine.lock:
            engine.num_tokens += sent
            engine.num_prompt_tokens += len(prompt)
            if engine.k:
                engine.num_drafts += len(rounds)
                engine.num_accepted += sum(rounds)
                for num_accepted in rounds:
                    for position in range(num_accepted):
                        engine.accepted_at[position] += 1
        self._event(
            content="",
            tokens=[],
            stop_type="limit" if sent == most else "eos",
            tokens_predicted=sent,
            tokens_evaluated=len(prompt),
            timings={"draft_n": drafted, "draft_n_accepted": accepted_so_far},
        )

    def _event(self, **fields: Any) -> None:
        self.wfile.write(f"data: {json.dumps(fields)}\n\n".encode())
        self.wfile.flush()


def main() -> None:
    if "--help" in sys.argv:
        print(HELP)
        return
    if "--list-devices" in sys.argv:
        print(DEVICES)
        return
    kind = option("--spec-type")
    flag = "--spec-ngram-mod-n-max" if "ngram-mod" in kind else "--spec-draft-n-max"
    k = int(option(flag)) if kind else 0
    LlamaHandler.engine = Engine(k)
    http = ThreadingHTTPServer((option("--host"), int(option("--port"))), LlamaHandler)
    http.daemon_threads = True
    http.serve_forever()


if __name__ == "__main__":
    main()
