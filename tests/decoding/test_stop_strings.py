"""A stop string ends an answer at the same token with and without drafts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.decode.drafter import NoDrafter
from specbench.decode.launcher import Launcher
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.serving import length_to_stop, text_before
from specbench.forward.fused_runner import FusedRunner
from specbench.records import Request, RequestSettings, Result, Sampling
from tests.decoding.lossless import make_decoder, make_drafter, serve, texts_of
from tests.decoding.models import exact_llama, random_prompt

LENGTH = 40
GREEDY, WARM = Sampling(), Sampling(temperature=0.7)


def text(ids: Sequence[int]) -> str:
    """Three characters per token, so that a stop string begins and ends within tokens."""
    return "".join(f"<{chr(0x4E00 + token)}>" for token in ids)


class LateLauncher(Launcher):
    """Reports are read two rounds later, as on a GPU."""

    lag = 2


def answers(
    stops: Sequence[tuple[str, ...]],
    method: str,
    k: int,
    sampling: Sampling,
    launcher=Launcher,
) -> list[Result]:
    target = FusedRunner(exact_llama(seed=0))
    drafter = make_drafter(method, target, FusedRunner(exact_llama(seed=0)))
    requests = [
        Request(
            prompt_ids=random_prompt(6, seed=i),
            max_new_tokens=LENGTH,
            seed=i,
            sampling=sampling,
            settings=RequestSettings(stop=stop),
        )
        for i, stop in enumerate(stops)
    ]
    how = {"make_launcher": launcher, "text": text}
    return serve(target, drafter, requests, FixedK(k), 2, sampling, **how).results


def stops_of(whole: Result, position: int) -> tuple[str, ...]:
    """Strings that never occur, and the end of a token with the beginning of the next."""
    first, second = (text([whole.output_ids[i]]) for i in (position - 1, position))
    return "never", f"{first[1:]}{second[:2]}"


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize(
    ("method", "k", "launcher"),
    [
        ("none", 0, Launcher),
        ("draft_model", 3, Launcher),
        ("ngram", 4, Launcher),
        ("draft_model", 3, LateLauncher),
    ],
)
def test_text_is_cut_at_the_stop_string_for_every_method(sampling, method, k, launcher):
    whole = answers([()] * 5, method, k, sampling)
    stops = [stops_of(result, 3 + 5 * i) for i, result in enumerate(whole)]
    expected = []
    for result, stop in zip(whole, stops, strict=True):
        end = next(i for i in range(LENGTH + 1) if stop[1] in text(result.output_ids[:i]))
        expected.append(result.output_ids[:end])

    cut = answers(stops, method, k, sampling, launcher)

    assert texts_of(cut) == expected
    assert {result.finish_reason for result in cut} == {"eos"}
    for result in cut:
        assert 1 + sum(result.rounds.num_emitted) == len(result.output_ids)
        pairs = zip(result.rounds.num_accepted, result.rounds.num_emitted, strict=True)
        assert all(accepted <= emitted for accepted, emitted in pairs)
    if sampling == GREEDY:
        plain = answers(stops, "none", 0, GREEDY)
        assert texts_of(plain) == expected


def test_a_stop_string_may_end_at_the_first_token():
    (whole,) = answers([()], "none", 0, GREEDY)
    (cut,) = answers([(text(whole.output_ids[:1]),)], "draft_model", 3, GREEDY)
    assert cut.output_ids == whole.output_ids[:1]


def test_a_stopped_row_is_done_on_the_device():
    """Otherwise rounds of other rows would continue it past their span."""
    (whole,) = answers([()], "none", 0, GREEDY)
    seen = []

    def launcher(rows, *args):
        seen.append(rows)
        return Launcher(rows, *args)

    answers([(text(whole.output_ids[4:6]),)], "none", 0, GREEDY, launcher)
    assert seen[0].state.budget_B.tolist() == [0, 0]


def test_an_answer_of_a_known_length_is_not_cut():
    (whole,) = answers([()], "none", 0, GREEDY)
    target = FusedRunner(exact_llama(seed=0))
    decoder = make_decoder(target, NoDrafter(), text=text)
    request = Request(
        prompt_ids=random_prompt(6, seed=0),
        max_new_tokens=LENGTH,
        stop_at_eos=False,
        settings=RequestSettings(stop=(text(whole.output_ids[:2]),)),
    )
    (fixed,) = decoder.decode([request], Sampler(GREEDY), k=0)
    assert fixed.output_ids == whole.output_ids
    (stopped,) = decoder.decode([replace(request, stop_at_eos=True)], Sampler(GREEDY), k=0)
    assert stopped.output_ids == whole.output_ids[:2]


@pytest.mark.parametrize(
    ("num_new", "stop", "end"),
    [
        (1, ("e",), 5),
        (5, ("cd", "b"), 2),
        (4, ("cd", "x"), 4),
        (5, ("abcde",), 5),
        (2, ("x",), None),
        (5, (), None),
    ],
)
def test_text_ends_at_the_first_new_token_that_completes_a_stop_string(num_new, stop, end):
    ids = [ord(character) for character in "abcde"]
    actual = length_to_stop(ids, num_new, stop, lambda ids: "".join(map(chr, ids)))
    assert actual == end


def test_text_is_kept_up_to_the_earliest_stop_string():
    assert text_before(("\n\n", "END"), "one END two\n\nthree") == "one "
    assert text_before(("never",), "one") == "one"
    assert text_before((), "one") == "one"
