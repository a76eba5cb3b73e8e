"""An engine whose layers are compiled: the same text, and no pass that compiled is measured."""

import pytest
import torch

from specbench.engines import choice_file, kernel_choices
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import EngineRequest, Work
from specbench.engines.model_pool import ModelPool
from specbench.forward import compiled_steps
from specbench.forward.runner import FUSED_COMPILED
from specbench.records import Sampling
from specbench.serving.decoder import Decoder
from specbench.settings import DecoderSettings

REQUEST = EngineRequest(
    prompt_ids=(40, 41, 42, 43), max_new_tokens=12, sampling=Sampling(), seed=0, stop_at_eos=False
)
DRAFTED = Work(drafter="draft", method="draft_model", k=3)


@pytest.fixture
def compiled(target, monkeypatch, tmp_path) -> BuiltinEngine:
    """As on a GPU a program for each number of tokens; the compiler leaves pieces as they are."""
    monkeypatch.setattr(compiled_steps, "_compiled", lambda piece, _: piece)
    monkeypatch.setattr(compiled_steps.CompiledSteps, "_kind", lambda _, number: number)
    monkeypatch.setattr(kernel_choices, "forward_contest", lambda *_: (FUSED_COMPILED, []))
    monkeypatch.setattr(choice_file, "_known", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return opened(target, DecoderSettings(compile=True))


def opened(target, settings) -> BuiltinEngine:
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")), settings)
    engine.add_drafter(target.drafters[0])
    return engine


def test_the_text_is_that_of_other_forwards_and_the_record_says_what_ran(compiled, target):
    other = opened(target, DecoderSettings(forward="stock"))
    for work in (compiled.baseline, DRAFTED):
        text = compiled.generate(REQUEST, work).output_ids
        assert text == other.generate(REQUEST, work).output_ids
    assert compiled.record.forward == FUSED_COMPILED
    assert compiled.record.compile_s > 0
    assert (other.record.forward, other.record.compile_s) == ("stock", None)


def test_a_pass_that_compiled_is_done_over(compiled, monkeypatch):
    num_served, serve = 0, Decoder.serve

    def counted(decoder, *given, **named):
        nonlocal num_served
        num_served += 1
        return serve(decoder, *given, **named)

    monkeypatch.setattr(Decoder, "serve", counted)
    compiled.generate(REQUEST, DRAFTED)  # four tokens at once, for the first time
    assert num_served == 2
    compiled.generate(REQUEST, DRAFTED)
    assert num_served == 3


def test_what_runs_as_it_is_is_a_note_of_the_record(compiled, monkeypatch):
    monkeypatch.setattr(compiled_steps, "MOST_PROGRAMS", 2)
    compiled.generate(REQUEST, DRAFTED)
    assert any(
        note.startswith("2 numbers of tokens are the most") for note in compiled.record.notes
    )
