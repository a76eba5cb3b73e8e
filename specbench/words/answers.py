"""Answers in words: the sentence of a reason, of a decision, and of a warning about noise."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from string import Formatter
from typing import Any

from specbench.doc import Doc, JsonObject, Key, Several, keys_of
from specbench.records import Decision, Kind, Reason, SpeedupVerdict, ranges
from specbench.records.keys import lossy_mark
from specbench.words.numbers import (
    break_even_text,
    effect_text,
    faster_text,
    gain_text,
    interval_bounds,
    listed,
    measured,
    number,
    p_text,
    plural,
    range_text,
    scale_of,
    significant,
    slower_to_faster,
)

MOST_REASONS = 3  # that are shown below an answer; a report has all of them


def _part(part: Reason | Any) -> str:
    return text(part) if isinstance(part, Reason) else str(part)


def joined(parts: Iterable[Reason | Any]) -> str:
    """Reasons as one text."""
    return "; ".join(map(_part, parts))


def _value(value: tuple[float, str]) -> str:
    """A value in the unit of an objective."""
    amount, unit = value
    return f"{amount:,.4g} {unit}" if unit.startswith("per ") else measured(amount, unit)


def _shift(shift: tuple[float, float, str]) -> str:
    """`11.6 -> 51.6 ms`."""
    before, after, unit = shift
    scale = scale_of(unit, max(before, after))
    ends = (number(value, unit, scale) for value in (before, after))
    return f"{' -> '.join(ends)}{'' if unit == 'x' else ' '}{scale.unit}"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} concurrent requests"


def _named(k: int | str) -> str:
    return k if isinstance(k, str) else f"K={k}"


def _k_list(ks: Iterable[Any]) -> str:
    """Draft lengths such as `0..4, 8, auto`."""
    ks = [*ks]
    fixed = ranges([k for k in ks if isinstance(k, int)])
    return ", ".join(filter(None, (fixed, *(k for k in ks if isinstance(k, str)))))


def _distance(steps: tuple[float, float, float | None] | None) -> str:
    """How far the worse of two tokens is from the target's best: its rounding steps, those that
    make a tie, and the difference of the logits.
    """
    if steps is None:
        return ""
    distance, tie, below = steps
    counts = f"{distance:.0f} rounding steps", f"{tie:.0f} make a tie"
    figure = f"{counts[0]} ({counts[1]})"
    if below is not None:
        ratio = math.exp(-below)
        figure = f"{below:.2g} in logits ({ratio:.2g} times as likely; {', '.join(counts)})"
    return f", the worse of them {figure} below the target's best"


def _basis(basis: tuple[str, int, int]) -> str:
    """Where the machine's part of a margin is from: `assumed for a quiet CPU`."""
    kind, num_parts, num_earlier = basis
    article = "an" if kind[0] in "aeiou" else "a"
    parts = [f"assumed for {article} {kind}"]
    parts += [f"{num_parts} parts of this run"] if num_parts > 1 else []
    parts += [f"{num_earlier} earlier runs"] if num_earlier else []
    return listed(parts)


# What stands before a finding.
_VERDICTS: Mapping[str, str] = {
    SpeedupVerdict.NO_SPEEDUP: "no speedup: ",
    SpeedupVerdict.UNDECIDED: "undecided: ",
}

# How the figures of a sentence are printed, by the word behind the colon of its fields.
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "K": _named,
    "choice": lambda k: "do not speculate" if k == SpeedupVerdict.NO_SPEEDUP else _named(k),
    "mean": lambda k: "" if k is None else f" (mean K {k:.1f})",
    "ks": _k_list,
    "x": lambda speedup: f"{speedup.estimate:.2f}x",
    "bounds": interval_bounds,
    "range": range_text,
    "gain": gain_text,
    "reaches": lambda gain: (
        "is not known from one prompt" if gain is None else f"reaches {gain_text(gain)}"
    ),
    "faster": faster_text,
    "slower_or_faster": lambda speed: f" ({slower_to_faster(speed)})",
    "at": lambda count: "" if count is None else f" at {_requests(count)}",
    "amount": lambda amount: plural(*amount),
    "speed": lambda speed: "" if speed is None else f" ({measured(speed, 'tokens/s')})",
    "effect": effect_text,
    "hidden": lambda effect: f"{1 + effect:.2g}x",
    "significant": significant,
    "about": lambda width: "" if width is None else f" (to about ±{float(f'{width:.1g}'):.0%})",
    "set": lambda num_prompts: "" if num_prompts is None else f": --num-prompts {num_prompts}",
    "ms": lambda seconds: f"{seconds * 1e3:.3g} ms",
    "tokens": break_even_text,
    "MiB": lambda size: f"{size / 2**20:,.{0 if size >= 10 * 2**20 else 1}f} MiB",
    "cache": lambda n: "" if n is None else f" (the KV cache of {n:,.0f} tokens)",
    "logits": lambda below: "" if below is None else f" ({below:.2g} in logits)",
    "distance": _distance,
    "not_times": lambda names: f", not absolute times ({', '.join(names)})" if names else "",
    "in_brackets": lambda parts: f" ({', '.join(map(_part, parts))})" if parts else "",
    "all": joined,
    "also": lambda parts: "".join(f"; {_part(part)}" for part in parts),
    "list": listed,
    "lossy": lossy_mark,
    "less": lambda share: "" if share is None else f" and draft {share:.0%} less",
    "accepted_of": lambda counts: (
        ""
        if counts is None
        else f"; of {counts[1]:,.0f} draft tokens after it {counts[0]:,.0f} were accepted"
    ),
    "token": lambda count: plural(count, "token"),
    "text": lambda count: plural(count, "text"),
    "rounding": lambda steps: plural(round(steps), "step"),
    "step": lambda change: "a step" if change is None else f"{change:+.1%}",
    "colon": lambda detail: f": {detail}" if detail else "",
    "commas": lambda parts: ", ".join(map(_part, parts)),
    "nor": " nor ".join,
    "p": lambda p: "" if p is None else f" ({p_text(p)})",
    "also_at": lambda others: (
        f" (also measured at {', '.join(others)}: choose with --temperature)" if others else ""
    ),
    "requests": _requests,
    "at_once": lambda count: "" if count == 1 else f"{_requests(count)}: ",
    "verdict": lambda verdict: _VERDICTS.get(verdict, ""),
    "more": lambda count: f", and {plural(count, 'more session')}" if count else "",
    "shift": _shift,
    "limit": lambda limit: f"{100 * limit:+.3g}%",
    "parts": lambda parts: f": {', '.join(map(text, parts))}" if parts else "",
    "curves": lambda curves: f", by position {' -> '.join(curves)}" if curves else "",
    "and": lambda reasons: listed([*map(text, reasons)]),
    "value": _value,
    "tied": lambda names: f"; undecided whether faster than {listed(names)}" if names else "",
    "than": lambda context: "" if context is None else f" than {context:,}",
    "basis": _basis,
    "lengths": lambda length: f"{length.estimate:.2f}",
    "rates": lambda rates: (
        f"; accepted at positions 1 to {len(rates)}: {', '.join(f'{rate:.0%}' for rate in rates)}"
        if rates
        else ""
    ),
    "open_on": lambda names: (
        f"; its loss on {listed(names)} is unknown, because undecided" if names else ""
    ),
    "not_compared": lambda names: (
        f"; not compared, without an interval on every workload: {listed(names)}" if names else ""
    ),
}


class _Words(Formatter):
    """`str.format` with these forms."""

    def format_field(self, value: Any, format_spec: str) -> str:
        form = _FORMS.get(format_spec)
        return form(value) if form else format(value, format_spec)


WORDS = _Words()


def text(reason: Reason) -> str:
    """The sentence of a reason, with its figures."""
    return WORDS.vformat(reason.kind.sentence, (), reason.figures)


def main_reasons(decision: Decision) -> list[str]:
    """The most important reasons in words."""
    return list(map(text, decision.reasons[:MOST_REASONS]))


def noise_lines(signs: Collection[Reason]) -> list[str]:
    """The warning about a noisy machine; none without a sign."""
    return [text(Kind.NOISY(signs=tuple(signs)))] if signs else []


REASON = JsonObject(
    "ReasonInWords",
    "A fact behind an answer, or what to do next.",
    {**keys_of(Reason), "text": Key(str, "the same in words", text)},
)


def keys_in_words(
    record: type,
    get: Callable[[Any], Any] = lambda source: source,
    *,
    without: Collection[str] = (),
) -> dict[str, Key]:
    """`keys_of` a record, whose reasons have their text beside them."""
    keys = keys_of(record, get, without=without)
    return {
        name: key._replace(type=Several(REASON)) if key.type == tuple[Reason, ...] else key
        for name, key in keys.items()
    }


def answer_text(verdict: SpeedupVerdict, answer: Iterable[Reason | str], *, mark: str = "") -> str:
    """`undecided: 0.98x to 1.08x at K=6; to narrow it: ...`."""
    parts = [*answer]
    is_named = any(isinstance(p, Reason) and p.kind is Kind.NEVER_DRAFTED for p in parts)
    return f"{'' if is_named else _VERDICTS.get(verdict, '')}{joined(parts)}{mark}"


def decision_text(decision: Decision) -> str:
    """The answer for one drafter without its workload: `K=6, 1.90x faster [1.80, 2.00]`."""
    return answer_text(decision.verdict, decision.answer, mark=decision.mark)


def decision_sentence(decision: Decision) -> str:
    """`code: K=6, 1.90x faster [1.80, 2.00]`."""
    return f"{decision.condition.workload_label}: {decision_text(decision)}"


def answer_keys(get: Callable[[Any], Decision] = lambda decision: decision) -> dict[str, Key]:
    """The keys of an answer in JSON and DataFrames; `get` returns a source's decision."""
    text = Doc("the answer in words, with the workload before it", is_text=True)
    return {
        **keys_in_words(Decision, get, without=("leader", "draft", "is_synthetic")),
        "text": Key(str, text, lambda source: decision_sentence(get(source))),
    }
