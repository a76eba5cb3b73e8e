"""Reconstructs the rounds of `generate` from the tokens it fed to the target and streamed."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from specbench.records import Result, RoundLog, RoundTimeline


class GenerationLog:
    """A streamer for transformers, which calls `put` with the prompt, then with each round's
    tokens.

    The tokens are on the host by then, so the device has finished them.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._put_s: list[float] = []
        self._num_put: list[int] = []
        self._fed: list[Tensor] = []

    def put(self, tokens: Tensor) -> None:
        self._put_s.append(time.perf_counter())
        self._num_put.append(tokens.numel())

    def end(self) -> None:
        """Part of the streamer protocol; does nothing."""

    def feed(self, _module: nn.Module, _args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        """A forward hook of the target that records its input tokens, drafts last."""
        self._fed.append(inputs["input_ids"])

    @property
    def first_token_s(self) -> float:
        """The `perf_counter` reading when the first token arrived."""
        return self._put_s[1]

    @property
    def last_token_s(self) -> float:
        return self._put_s[-1]

    def rounds(self, output_ids: Sequence[int], k: int) -> RoundLog | None:
        """The rounds after the first token; None if one drafted more than K.

        A first verification that was merged with the prompt is split in two: its first token
        belongs to the prefill, and its other tokens form a round with one draft less and 0
        seconds. A round cut by EOS or the token limit counts the drafts in the text.
        """
        num_drafted, num_accepted, num_emitted, round_s = [], [], [], []
        at = 0
        for i, size in enumerate(self._num_put[1:]):
            emitted = output_ids[at : at + size]
            drafts = self._drafts(i)
            at += size
            if i == 0:
                emitted, drafts = emitted[1:], drafts[1:]
            if not emitted:
                continue
            num_drafted.append(len(drafts))
            num_accepted.append(_num_equal(drafts, emitted))
            num_emitted.append(len(emitted))
            round_s.append(self._put_s[i + 1] - self._put_s[i] if i > 0 else 0.0)
        if max(num_drafted, default=0) > k:
            return None
        return RoundLog(
            num_drafted=tuple(num_drafted),
            num_accepted=tuple(num_accepted),
            num_emitted=tuple(num_emitted),
            round_s=tuple(round_s),
        )

    def _drafts(self, i: int) -> list[int]:
        if not self._fed:  # K = 0
            return []
        num_known = self._num_prompt_tokens if i == 0 else 1
        drafts: list[int] = self._fed[i][0, num_known:].tolist()
        return drafts


def timeline(results: Sequence[Result], k: int) -> RoundTimeline:
    """The rounds of requests served one after the other, without requests of unknown rounds."""
    at_s, seconds, num_emitted = [], [], []
    for result in results:
        now_s = result.first_token_s
        if result.rounds is None or now_s is None:
            continue
        for round_s, emitted in zip(result.rounds.round_s, result.rounds.num_emitted, strict=True):
            at_s.append(now_s)
            seconds.append(round_s)
            num_emitted.append(emitted)
            now_s += round_s
    ones = (1,) * len(at_s)
    return RoundTimeline(
        at_s=tuple(at_s),
        seconds=tuple(seconds),
        num_speculative_tokens=(k,) * len(at_s),
        num_live=ones,
        num_rows=ones,
        num_emitted=tuple(num_emitted),
    )


def _num_equal(drafts: Sequence[int], emitted: Sequence[int]) -> int:
    """The number of leading drafts that equal the emitted tokens."""
    num = 0
    for draft, token in zip(drafts, emitted, strict=False):
        if draft != token:
            break
        num += 1
    return num
