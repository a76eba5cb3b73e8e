"""A choice is made once, shared, stored for later runs and reused by a resumed one."""

import re
from dataclasses import replace

import pytest
import torch

from specbench.decode.clock import Clock
from specbench.decode.decoder import Decoder
from specbench.engines import builtin, kernel_choices
from specbench.engines.engine import Work
from specbench.engines.kernel_choices import KernelChoices, require_kernel, round_timing
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError, UsageError
from specbench.forward import autotune
from specbench.forward.attention.candidates import BY_NAME
from specbench.forward.autotune import Autotuner, keep_choice, remember_choices
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import FUSED_TRITON, StockRunner
from specbench.records import Contender, Request
from specbench.settings import DecoderSettings
from specbench.settings.groups import AttentionBackend
from tests.decoding.fake_graphs import FakeGraphs
from tests.decoding.lossless import make_drafter
from tests.decoding.models import ARCHITECTURES, build, tiny_llama
from tests.engines.refused_triton import choose_refused_triton


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_known", {})
    monkeypatch.setattr(autotune, "_begun_with", set())


@pytest.fixture
def tuned_subjects(monkeypatch):
    """Subjects that are tuned; plain attention is always the fastest."""
    cases = []

    def attention(case, kernels, *_):
        cases.append(str(case))
        return "plain", [Contender(name=kernel.name, seconds=1.0) for kernel in kernels]

    def forwards(_, names, *__):
        cases.append("forward")
        return "fused", [Contender(name=name, seconds=1.0) for name in names]

    monkeypatch.setattr(kernel_choices, "autotune_attention", attention)
    monkeypatch.setattr(kernel_choices, "autotune_forward", forwards)
    return cases


def choices(name="auto"):
    return KernelChoices(name, Clock(), None)


def chosen_by(kernels):
    return [choice.chosen for choice in kernels.autotuner.choices.values()]


def test_the_autotuned_kernel_runs_and_each_choice_is_made_once(tuned_subjects):
    made = choices()
    runner = made.choose(FusedRunner(tiny_llama()), "auto", "big")
    assert {kernel.name for kernel in runner.layers.kernels.values()} == {"plain"}
    assert tuned_subjects == ["chain", "tree", "forward"]
    made.choose(FusedRunner(tiny_llama(seed=1)), "auto", "draft")  # of the same shape
    assert len(tuned_subjects) == 3
    assert [choice.subject for choice in made.autotuner.choices.values()] == [
        "attention of big, chain",
        "attention of big, tree",
        "forward of big",
    ]


def test_heads_of_equal_shape_reuse_the_kernels_of_their_target(tuned_subjects):
    made = choices()
    target = made.choose(FusedRunner(tiny_llama()), "auto", "big")
    same, narrow = (make_drafter("eagle", t).head.layers for t in (target, narrow_target()))
    assert made.choose_for_layers(same, "auto", "head") == ()
    assert len(tuned_subjects) == 3  # of equal heads
    assert {kernel.name for kernel in same.fused.kernels.values()} == {"plain"}
    made.choose_for_layers(narrow, "auto", "narrow")
    assert tuned_subjects[3:] == ["chain", "tree"]


def narrow_target():
    return FusedRunner(tiny_llama(num_key_value_heads=1))


def test_a_heads_layers_run_stock_on_request(tuned_subjects):
    layers = make_drafter("eagle", FusedRunner(tiny_llama())).head.layers
    assert choices().choose_for_layers(layers, "stock", "head") == ()
    assert layers.fused is None
    assert tuned_subjects == []


def test_layers_with_and_without_a_window_are_autotuned_separately(tuned_subjects):
    choices().choose(FusedRunner(build(ARCHITECTURES["Qwen2 + window"]())), "auto", "big")
    windows = [case for case in tuned_subjects if "window" in case]
    assert len(windows) == 2
    assert len(tuned_subjects) in (3, 5)


def test_a_kernel_choice_is_reused_for_equal_shapes(tuned_subjects, monkeypatch):
    choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    monkeypatch.setattr(autotune, "_known", {})
    runner = choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 3
    assert {kernel.name for kernel in runner.layers.kernels.values()} == {"plain"}
    choices().choose(FusedRunner(tiny_llama(hidden_size=64)), "auto", "big")
    assert len(tuned_subjects) > 3


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        '{"a": {"chosen": 3}}',
        '{"a": {"key": "a", "subject": "b", "chosen": 3, "contenders": []}}',
        '{"a": {"key": "a", "subject": "b", "chosen": "torch", "contenders": [1]}}',
        '{"a": {"key": 1e999, "subject": "b", "chosen": "torch", "contenders": []}}',
        '{"a": ' + "[" * 10_000,
    ],
    ids=range(8),
)
def test_an_unreadable_kernel_cache_is_replaced(content, tuned_subjects, tmp_path):
    file = tmp_path / "cache" / "specbench" / "kernels.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 3
    assert file.read_text().count('"chosen"') == 3


def test_a_stored_choice_of_a_missing_kernel_is_autotuned_again(tuned_subjects, monkeypatch):
    first = choices()
    first.choose(FusedRunner(tiny_llama()), "auto", "big")
    made = first.autotuner.choices
    stored = {key: replace(choice, chosen="nobody") for key, choice in made.items()}
    monkeypatch.setattr(autotune, "_known", stored)
    again = choices()
    runner = again.choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 6
    assert {kernel.name for kernel in runner.layers.kernels.values()} == {"plain"}
    assert chosen_by(again) == ["plain", "plain", "fused"]


def stored_as(chosen, of, monkeypatch):
    """Choices of an earlier process; the one whose subject begins with `of` names `chosen`."""
    first = choices()
    first.choose(FusedRunner(tiny_llama()), "auto", "big")
    monkeypatch.setattr(autotune, "_known", {})
    return [
        replace(choice, chosen=chosen) if choice.subject.startswith(of) else choice
        for choice in first.autotuner.choices.values()
    ]


# The environment of the choice: a package or a compiler may be gone since.
GONE = [(FUSED_TRITON, "forward"), ("flash_attn", "attention of big, chain")]


@pytest.mark.parametrize(("chosen", "of"), GONE)
def test_a_stored_choice_that_no_longer_runs_is_made_again(chosen, of, tuned_subjects, monkeypatch):
    for choice in stored_as(chosen, of, monkeypatch):
        keep_choice(choice)
    again = choices()
    runner = again.choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 4
    assert runner.kind == "fused"
    assert {kernel.name for kernel in runner.layers.kernels.values()} == {"plain"}
    assert chosen_by(again) == ["plain", "plain", "fused"]
    choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 4  # it was kept


@pytest.mark.parametrize(("chosen", "of"), GONE)
@pytest.mark.usefixtures("tuned_subjects")
def test_a_resumed_run_names_the_kernel_that_no_longer_runs(chosen, of, monkeypatch):
    remember_choices(stored_as(chosen, of, monkeypatch))
    with pytest.raises(ModelError, match=f"{of}.*'{chosen}'") as e:
        choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert "resume, or " in str(e.value)


def test_only_the_forward_is_autotuned_again_for_another_depth(tuned_subjects):
    choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    choices().choose(FusedRunner(tiny_llama(num_hidden_layers=3)), "auto", "deep")
    assert tuned_subjects == ["chain", "tree", "forward", "forward"]


def test_forwards_are_autotuned_again_with_other_candidates(tuned_subjects):
    for forward in ("auto", "fused", "auto"):
        choices().choose(FusedRunner(tiny_llama()), forward, "big")
    assert tuned_subjects == ["chain", "tree", "forward", "forward"]


def test_a_kernel_choice_depends_on_threads_versions_and_graphs(monkeypatch):
    made = Autotuner(round_timing(Clock(), None))
    keys = {made.key(torch.device("cpu"), "fact"), made.key(torch.device("cpu"), "other fact")}
    keys.add(Autotuner(round_timing(Clock(), FakeGraphs())).key(torch.device("cpu"), "fact"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    keys.add(made.key(torch.device("cpu"), "fact"))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.add(made.key(torch.device("cpu"), "fact"))
    assert len(keys) == 5
    assert len({made.key(torch.device("cpu"), "fact") for _ in range(2)} - keys) == 0


def test_a_cache_that_cannot_be_written_costs_only_the_next_tuning(tuned_subjects, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no such folder")
    choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 3


def test_a_resumed_run_keeps_its_choice(tuned_subjects, monkeypatch):
    first = choices()
    first.choose(FusedRunner(tiny_llama()), "auto", "big")
    stored = [replace(choice, chosen="torch") for choice in first.autotuner.choices.values()]
    stored[-1] = replace(stored[-1], chosen="stock")
    monkeypatch.setattr(autotune, "_known", {})
    remember_choices(stored)  # although the cache differs
    runner = choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert isinstance(runner, StockRunner)
    assert len(tuned_subjects) == 3


def test_a_forced_attention_kernel_is_still_checked():
    made = choices("plain")
    runner = made.choose(FusedRunner(tiny_llama()), "fused", "big")
    assert {kernel.name for kernel in runner.layers.kernels.values()} == {"plain"}
    forced = [choice.is_forced for choice in made.autotuner.choices.values()]
    assert forced == [True, True, False]  # a forward is still picked among ours
    remember_choices(made.autotuner.choices.values())
    assert not any(choice.is_forced for choice in autotune._known.values())


def test_if_no_candidate_is_correct_the_model_is_refused_and_nothing_stored(monkeypatch):
    lost = [Contender(name="plain", refusal="it is wrong: off by 2 of the output's size")]
    monkeypatch.setattr(kernel_choices, "autotune_attention", lambda *_: (None, lost))
    with pytest.raises(ModelError, match=r"big, chain: .*plain: .*off by 2 .*--model-impl stock"):
        choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert autotune._known == {}


def test_an_option_that_a_stock_forward_ignores_is_noted_once():
    made = choices("plain")
    for _ in range(2):
        made.choose(StockRunner(tiny_llama()), "auto", "big")
    (note,) = made.notes
    assert re.match("--attention-backend plain .*big: ", note)
    asks_for_nothing = choices()
    asks_for_nothing.choose(StockRunner(tiny_llama()), "auto", "big")
    assert asks_for_nothing.notes == []


def test_flash_attention_on_a_cpu_is_refused():
    with pytest.raises(UsageError, match=r"--attention-backend flash.*CUDA"):
        require_kernel("flash", torch.device("cpu"))
    require_kernel("auto", torch.device("cpu"))
    require_kernel("plain", torch.device("cpu"))


def test_the_attention_option_lists_every_implementation():
    assert AttentionBackend.__origin__.__args__ == ("auto", *BY_NAME)
    assert all(kernel.name == name for name, kernel in BY_NAME.items())


def test_after_a_refusal_no_round_of_the_refused_kernel_is_replayed(target, tmp_path, monkeypatch):
    choose_refused_triton(monkeypatch, tmp_path)
    opened = []  # a decoder has its captured rounds

    def open_decoder(runner, drafter, **named):
        opened.append(type(drafter).__name__)
        return Decoder(runner, drafter, **named)

    monkeypatch.setattr(builtin, "Decoder", open_decoder)
    pool, settings = ModelPool(torch.device("cpu")), DecoderSettings(forward="fused")
    engine = builtin.BuiltinEngine(target, pool, settings)
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    request = Request(prompt_ids=(40, 41, 42, 43), max_new_tokens=8)
    works = [engine.baseline, Work(drafter="ngram", method="ngram", k=3), engine.baseline]
    texts = {engine.generate(request, work).output_ids for work in works}
    assert len(texts) == 1
    assert opened == ["NoDrafter", "Ngram", "Ngram", "NoDrafter"]
