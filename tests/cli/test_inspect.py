"""`specbench inspect`: its rounds, and that their text is the answer itself."""

import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from specbench.bench.generation import Generation, WatchedRound
from specbench.cli.inspect_rounds import _RoundPrinter, summary
from specbench.inputs.config import load_pairings
from specbench.settings import (
    DecoderSettings,
    MachineSettings,
    RunSettings,
    SamplingSettings,
    WorkloadSettings,
)
from tests.bench.fakes import RecordingWatch
from tests.cli.calls import specbench

ROUNDS = (
    WatchedRound(0, (), (), 72),
    WatchedRound(3, (101, 108), (33,), 108),
    WatchedRound(2, (111, 10), (), 27),
)


def text(ids: tuple[int, ...]) -> str:
    return "".join(map(chr, ids))


def shown_rounds(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> str:
    monkeypatch.setattr("specbench.cli.console.is_terminal", lambda **_: is_terminal)
    out = StringIO()
    with redirect_stdout(out):
        show = _RoundPrinter(lambda: None)
        for round_ in ROUNDS:
            show(round_, text)
    return out.getvalue()


def test_piped_output_shows_each_round_as_a_line_of_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    legend, prefill, first, second = shown_rounds(monkeypatch, is_terminal=False).splitlines()
    assert re.match(r"\+ accepted .*, - rejected .*, = ", legend)
    assert prefill == "prefill: ='H'"
    assert first == "round 1, 2 of 3 accepted: +'e' +'l' -'!' ='l'"
    assert second == "round 2, 2 of 2 accepted: +'o' +'\\n' ='\\x1b'"


def test_token_kinds_are_colored_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = shown_rounds(monkeypatch, is_terminal=True)
    green, red, cyan = "\x1b[32m", "\x1b[9;31m", "\x1b[1;36m"
    assert f"{green}e\x1b[0m{green}l\x1b[0m{red}!\x1b[0m{cyan}l\x1b[0m" in out
    assert "[2/3]" in out
    assert "\x1b\x1b" not in out
    assert "\u241b" in out  # the model's text is inert
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown_rounds(monkeypatch, is_terminal=True)


def test_the_summary_has_the_k_of_every_round() -> None:
    done = Generation(output_ids=tuple(range(7)), rounds=ROUNDS, decode_s=1.0)
    counts, by_round = summary(done, 3).splitlines()
    assert re.fullmatch(r"7 tokens .*2 rounds: 4 of 5 .*\(80%\), 3\.00 .*K=3", counts)
    assert by_round == "accepted/drafted by round: 2/3 2/2"


def test_a_part_of_a_character_is_shown_as_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens make one letter; the first has no text by itself."""

    def in_halves(ids: tuple[int, ...]) -> str:
        whole, half = divmod(len(ids), 2)
        return "\u00e9" * whole + "\ufffd" * half

    monkeypatch.setattr("specbench.cli.console.is_terminal", lambda **_: False)
    out = StringIO()
    with redirect_stdout(out):
        show = _RoundPrinter(lambda: None)
        show(WatchedRound(0, (), (), 7), in_halves)
        show(WatchedRound(1, (8,), (), None), in_halves)
    assert out.getvalue().splitlines()[1:] == ["prefill: ='<7>'", "round 1, 1 of 1 accepted: +'é'"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("inspect", "name one pairing"),
        ("inspect demo -p Hi", "inspect shows one pairing; name one of demo/draft"),
        ("inspect demo/draft", "--prompt: say what to ask"),
        ("inspect demo/draft -p Hi -k 1..3", "one fixed K"),
        ("inspect demo/draft -p Hi -k auto", "one fixed K"),
    ],
)
def test_inspect_refuses_bad_arguments_and_lists_valid_pairings(
    words: str, message: str, tmp_path: Path
) -> None:
    ran = specbench(words, cwd=tmp_path)
    assert (ran.code, message in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_callback_gets_the_result(temperature: float, tiny: Path) -> None:
    from specbench.bench.generation import watched_generation

    seen: list[WatchedRound] = []
    with chdir(tiny):
        for pairing in load_pairings().select(["tiny"]):
            seen.clear()
            settings = RunSettings(
                workload=WorkloadSettings(pairings=(pairing.name,), workloads=()),
                sampling=SamplingSettings(temperatures=(temperature,), max_new_tokens=24),
                decoder=DecoderSettings(graph="off"),
                machine=MachineSettings(device="cpu", threads=1),
            )
            done = watched_generation(
                settings, pairing, "Name a colour", 3, RecordingWatch(), lambda r, _: seen.append(r)
            )
            emitted = [token for round_ in seen for token in (*round_.accepted, round_.extra)]
            assert [token for token in emitted if token is not None] == list(done.output_ids)
            assert done.rounds == tuple(seen)
            assert all(round_.num_drafted <= 3 for round_ in seen)
            for round_ in seen[1:]:
                num_judged = len(round_.accepted) + len(round_.rejected)
                assert round_.extra is None or num_judged == round_.num_drafted
