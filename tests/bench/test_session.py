"""Predictions of an answer that reach the engine, and the pieces of its text."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.bench.blocks import Cell
from specbench.bench.session import MOST_LOSSES, losses_kept, quoted_text, text_pieces
from specbench.bench.target import WARM_UP_TOKENS
from specbench.engines.engine import Load, ServedPass, Work
from specbench.errors import ModelError
from specbench.probes.gpu import Probe
from specbench.records import FailureRecord, Message, Request, Role, Sampling
from tests.bench.fake_runs import SETTINGS, measured
from tests.bench.fakes import ANSWER_TOKENS, FakeEngine
from tests.cell_keys import cell_key
from tests.settings.flat_settings import changed

SMALL, LARGE = "```\na = 1\n```", "```python\ndef f():\n    return 1\n```"


def turn(content: str, role: Role = "user") -> Message:
    return Message(role=role, content=content)


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ("Shorten this: one two.", "Shorten this: one two."),
        (f"Rename f.\n\n{LARGE}\n", LARGE),
        (f"{SMALL}\nand\n{LARGE}\nare given.", LARGE),
        ("~~~\n```\nx\n```\n~~~", "~~~\n```\nx\n```\n~~~"),
        ("````\n```\nx\n```\n````", "````\n```\nx\n```\n````"),
        ("```\nnever closed", "```\nnever closed"),
        ("say ```x``` here", "say ```x``` here"),
    ],
)
def test_the_largest_fenced_block_or_the_whole_message_is_quoted(content: str, quoted: str) -> None:
    assert quoted_text([turn("Be brief.", "system"), turn(content)]) == quoted


def test_the_quoted_text_is_from_the_last_user_message() -> None:
    assert quoted_text([turn("A"), turn("B", "assistant"), turn("C")]) == "C"
    assert quoted_text([turn("A", "system")]) == ""


def predictions(folder: Path, entry: Mapping[str, Any], **changes: Any) -> list[bytes]:
    """The engine's requests for the turns of the only prompt, the same in every cell."""
    prompts = folder / "own.jsonl"
    prompts.write_text(json.dumps({"id": "p0", **entry}) + "\n")
    engine = FakeEngine()
    settings = changed(SETTINGS, workloads=(str(prompts),), **changes)
    measured(folder, settings, engine=engine)
    # Warming up predicts half of its own text.
    sent = [call.request for call in engine.calls if call.request.max_new_tokens > WARM_UP_TOKENS]
    texts = [bytes(request.prediction_ids) for request in sent]
    return list(dict.fromkeys(filter(None, texts)))


def test_predictions_are_the_quoted_text_and_then_the_previous_response(tmp_path: Path) -> None:
    quoted, before = predictions(tmp_path, {"turns": [f"Rename f.\n{LARGE}", "And x."]})
    assert quoted == LARGE.encode()
    assert len(before) == ANSWER_TOKENS


def test_predictions_may_cover_every_turn_or_some(tmp_path: Path) -> None:
    turns = ["One", "Two", "Three"]
    first, _, third = predictions(
        tmp_path, {"turns": turns, "prediction": ["said", None, "said last"]}
    )
    assert (first, third) == (b"said", b"said last")


def test_a_prediction_quotes_the_prompt_before_lengthening(tmp_path: Path) -> None:
    assert predictions(tmp_path, {"prompt": "Shorten this."}, contexts=(200,)) == [b"Shorten this."]


def of_bytes(ids: Sequence[int]) -> str:
    """A token is a byte, as in many tokenizers' fallback."""
    return bytes(ids).decode(errors="replace")


def of_words(ids: Sequence[int]) -> str:
    """The first word has no space before it, as in tokenizers that mark the start of a text."""
    return " ".join(f"w{i}" for i in ids)


@pytest.mark.parametrize("text", ["plain", "naïve café", "猫が好き🐈‍⬛!", "a\nb\tc", "🐈"])
def test_a_character_appears_with_the_byte_that_completes_it(text: str) -> None:
    pieces = text_pieces(of_bytes, text.encode())
    assert len(pieces) == len(text.encode())
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert [piece for piece in pieces if piece] == list(text)


def test_a_character_that_is_never_completed_is_shown_at_the_end() -> None:
    pieces = text_pieces(of_bytes, "a猫".encode()[:-1])
    assert pieces == ("a", "", "\ufffd")


def test_text_pieces_join_to_the_text_for_any_bytes() -> None:
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.choice((65, 0xC3, 0xA9, 0xE7, 0x8C, 0xAB, 0xFF)) for _ in range(12)]
        assert "".join(text_pieces(of_bytes, ids)) == of_bytes(ids)


def test_text_pieces_keep_the_space_before_a_word() -> None:
    assert text_pieces(of_words, [1, 2, 3]) == ("w1", " w2", " w3")
    assert text_pieces(of_words, []) == ()


def test_text_pieces_decode_at_most_six_tokens_at_a_time() -> None:
    longest: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        longest.append(len(ids))
        return of_bytes(ids)

    text_pieces(counted, ("猫" * 300).encode())
    assert max(longest) == 6  # the character before, and this one


def test_a_cell_that_lost_the_device_twice_is_not_tried_again() -> None:
    cell = Cell(key=cell_key(), sampling=Sampling())
    lost = FailureRecord(
        pairing="", workload="", stage="decode", reason="", cell_ids=(cell.key.id,)
    )
    store: Any = SimpleNamespace(stored=SimpleNamespace(failures=[lost] * MOST_LOSSES))
    with losses_kept(store, [cell], "decode"):  # a failure is not a lost device
        pass
    store.stored.failures = [replace(lost, ended_process=True)] * MOST_LOSSES
    with (
        pytest.raises(ModelError, match=f"{MOST_LOSSES} times"),
        losses_kept(store, [cell], "decode"),
    ):
        pass


class MeteredGpu(Probe):
    """A GPU that uses a joule between two readings."""

    def __init__(self) -> None:
        super().__init__("")
        self._used_j = 0.0

    def energy_j(self) -> float:
        self._used_j += 1.0
        return self._used_j


@pytest.mark.parametrize("other_work", [{"num_discarded": 1}, {"calibration_s": 0.5}])
def test_energy_is_absent_if_other_work_took_a_part_of_it(
    tmp_path: Path, other_work: dict[str, Any]
) -> None:
    class Busy(FakeEngine):
        def serve(self, requests: Sequence[Request], work: Work, load: Load) -> ServedPass:
            served = super().serve(requests, work, load)
            return replace(served, **other_work) if work.k == 4 else served

    run = measured(tmp_path, engine=Busy(), probe=MeteredGpu())

    k_of = {plan.key.id: plan.key.draft.k for plan in run.run.cells}
    requests = [request for block in run.blocks for request in block.requests]
    assert {(k_of[r.cell_id], r.energy_j) for r in requests} == {(0, 1.0), (2, 1.0), (4, None)}
