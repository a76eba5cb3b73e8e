"""A server whose answers come from the tiny target, correct or faulty, in vLLM's format."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from tests.servers.http_server import Handler, serving_with

EOS = 0
Law = Callable[[torch.Tensor, int], torch.Tensor]  # logits [N, V] at a position -> probabilities


class Draw(NamedTuple):
    """One answer."""

    ids: list[int]
    is_ended: bool


def sampled(model: Any, prompt_ids: Sequence[int], num: int, length: int, law: Law, seed: int):
    """This many answers of up to `length` tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([list(prompt_ids)] * num)
    for at in range(length):
        with torch.inference_mode():
            logits = model(rows).logits[:, -1]
        rows = torch.cat([rows, law(logits, at).multinomial(1, generator=generator)], 1)
    return [_baseline_texts(row, length) for row in rows[:, len(prompt_ids) :].tolist()]


def greedy(model: Any, prompt_ids: Sequence[int], length: int, swaps: dict[int, int]) -> Draw:
    """The model's likeliest tokens; `swaps` maps such a token to the one returned instead."""
    row = list(prompt_ids)
    for _ in range(length):
        with torch.inference_mode():
            best = int(model(torch.tensor([row])).logits[0, -1].argmax())
        row.append(swaps.get(best, best))
    return _baseline_texts(row[len(prompt_ids) :], length)


def _baseline_texts(ids: list[int], length: int) -> Draw:
    end = ids.index(EOS) + 1 if EOS in ids else length
    return Draw(ids[:end], is_ended=EOS in ids)


class Lawful:
    """Serves what `answer` gives for a body, with ids and text or with text only."""

    is_broken = False  # it refuses every request
    breaks_off_at: int | None = None  # a request, from 1: the connection then ends without answers
    num_asked = 0

    def __init__(self, answer: Callable[[dict[str, Any]], Draw], *, has_ids: bool = True) -> None:
        self._answer, self._has_ids = answer, has_ids
        self._lock = threading.Lock()
        self.num_prompt_tokens: Callable[[dict[str, Any]], int] = lambda _: 0

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._lock:
            answer = self._answer(body)
        text = "".join(chr(0x4E00 + i) for i in answer.ids if i != EOS)
        ids = {"token_ids": answer.ids} if self._has_ids else {}
        finish = "stop" if answer.is_ended else "length"
        yield {"choices": [{"delta": {"content": text}, "finish_reason": finish, **ids}]}
        prompt = self.num_prompt_tokens(body)
        usage = {"completion_tokens": len(answer.ids), "prompt_tokens": prompt}
        yield {"choices": [], "usage": usage}


class _Handler(Handler):
    lawful: Lawful

    def do_GET(self) -> None:
        pages = {"/v1/models": '{"data": [{"id": "tiny"}]}', "/version": '{"version": "0.32.0"}'}
        self.send(pages.get(self.path, ""), 200 if self.path in pages else 404)

    def do_POST(self) -> None:
        body = self.read_body()
        if self.lawful.is_broken:
            self.send_error(500)
            return
        self.lawful.num_asked += 1
        if self.lawful.num_asked != self.lawful.breaks_off_at:
            self.stream(self.lawful.events(body))


def serving(lawful: Lawful) -> AbstractContextManager[str]:
    """The address of the running server."""
    return serving_with(_Handler, lawful=lawful)
