"""One look at the hub for what is not here; nothing at all where everything is."""

from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from specbench.bench import hub
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing

PAIRINGS = """\
targets:
  far: {model: nobody-here/no-such-model, drafters: {copy: {method: ngram}}}
  demo: {model: "demo:target", drafters: {copy: {method: ngram}}}
"""


@pytest.fixture
def pairings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pairing, ...]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    return load_pairings(tmp_path / "pairings.yaml").all


@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_missing_is_told_and_tried_once(
    is_there: bool, pairings: tuple[Pairing, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, told = [], []
    monkeypatch.setattr(hub, "_is_reachable", lambda: looks.append(1) or is_there)
    hub.look_for_hub(pairings, told.append)
    assert len(looks) == 1
    (line,) = told
    assert "nobody-here/no-such-model" in line
    assert ("downloading" in line, "cannot be reached" in line) == (is_there, not is_there)
    assert constants.is_offline_mode() is not is_there


def test_what_is_here_needs_no_hub(
    pairings: tuple[Pairing, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_is_reachable", lambda: pytest.fail("asked the hub"))
    hub.look_for_hub(pairings[1:], pytest.fail)
    assert not constants.is_offline_mode()


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://[", "http://a:x", "nowhere"])
def test_a_hub_that_does_not_answer_cannot_be_reached(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    close_session()  # the next one reads the environment anew
    assert not hub._is_reachable()
    close_session()


def test_a_fault_of_our_own_is_no_silent_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: None)
    with pytest.raises(AttributeError):
        hub._is_reachable()
