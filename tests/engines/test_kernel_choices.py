"""A choice is made once, shared, stored for later runs and reused by a resumed one."""

import errno
import pwd
import re
from dataclasses import replace
from itertools import count
from subprocess import CalledProcessError

import pytest
import torch

from specbench.decode.clock import Clock
from specbench.decode.decoder import Decoder
from specbench.engines import builtin, kernel_choices
from specbench.engines.engine import Load, Work
from specbench.engines.kernel_choices import KernelChoices, require_kernel, round_timing
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError, UsageError
from specbench.forward import autotune
from specbench.forward.attention.candidates import BY_NAME
from specbench.forward.attention.stock import PREFERRED
from specbench.forward.autotune import (
    Autotuner,
    KernelCandidate,
    fastest,
    remember_choices,
)
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


@pytest.fixture
def available(monkeypatch):
    """Sets the reasons, by candidate, why flash_attn and Triton's forward cannot run; None: both
    run."""
    own = {name: type(BY_NAME[name]).unsupported_reason for name in ("flash_attn", "triton")}

    def set_refusals(refusals):
        patch = monkeypatch.setattr
        patch(kernel_choices, "triton_failure", lambda _: refusals.get(FUSED_TRITON))
        for name in own:
            kind = type(BY_NAME[name])
            patch(kind, "unsupported_reason", lambda *_, name=name: refusals.get(name))

    return set_refusals


def chosen_in_another_process(monkeypatch):
    """The choices that a new process uses for a model."""
    monkeypatch.setattr(autotune, "_known", {})
    made = choices()
    made.choose(FusedRunner(tiny_llama()), "auto", "big")
    return list(made.autotuner.choices.values())


NO_COMPILER = "Triton finds no C compiler (gcc or clang)"
NOT_HERE = {
    "flash_attn": "flash-attn is not installed",
    "triton": NO_COMPILER,
    FUSED_TRITON: NO_COMPILER,
}


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("flash_attn", ["chain", "tree"]),
        ("triton", ["chain", "tree"]),
        (FUSED_TRITON, ["forward"]),
    ],
)
def test_a_choice_is_made_again_once_another_candidate_can_run(
    name, again, available, tuned_subjects, monkeypatch
):
    available(NOT_HERE)
    chosen_in_another_process(monkeypatch)
    chosen_in_another_process(monkeypatch)
    assert tuned_subjects == ["chain", "tree", "forward"]
    available({key: reason for key, reason in NOT_HERE.items() if key != name})
    chosen_in_another_process(monkeypatch)
    assert tuned_subjects[3:] == again
    available(NOT_HERE)  # as before: its choices are still stored
    chosen_in_another_process(monkeypatch)
    assert tuned_subjects[3:] == again


def test_choices_are_made_again_with_another_version_of_a_library(
    tuned_subjects, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    autotune._library_versions.cache_clear()
    try:
        for number, release in enumerate(("2.7", "2.8", "2.8"), 1):
            info = tmp_path / "flash_attn.dist-info"
            info.mkdir(exist_ok=True)
            info.joinpath("METADATA").write_text(f"Name: flash-attn\nVersion: {release}\n")
            info.joinpath("top_level.txt").write_text("flash_attn\n")
            autotune._library_versions.cache_clear()
            chosen_in_another_process(monkeypatch)
            assert len(tuned_subjects) == 3 * min(number, 2)
    finally:
        autotune._library_versions.cache_clear()


def test_a_reused_choice_says_why_others_cannot_run_today(available, monkeypatch):
    def attention(*_):
        lost = Contender(name="triton", refusal="Triton is not installed")
        wrong = Contender(name="torch", refusal="it is wrong")
        return "plain", [lost, wrong, Contender(name="plain", seconds=1.0)]

    monkeypatch.setattr(kernel_choices, "autotune_attention", attention)
    monkeypatch.setattr(kernel_choices, "autotune_forward", lambda *_: ("fused", []))
    available({**NOT_HERE, "triton": "Triton is not installed"})
    chosen_in_another_process(monkeypatch)
    available(NOT_HERE)
    chain, *_ = chosen_in_another_process(monkeypatch)
    assert [kernel.refusal for kernel in chain.contenders] == [NO_COMPILER, "it is wrong", None]


ERRORS = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
    (torch.AcceleratorError("CUDA error: out of memory"), True),
    (RuntimeError("Triton Error [CUDA]: out of memory"), True),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
    (MemoryError(), True),
    (OSError(errno.ENOSPC, "No space left on device"), True),
    (CalledProcessError(1, ["gcc", "driver.c"]), True),
    (ImportError("undefined symbol: _ZN3c104cuda"), True),
    (RuntimeError("No available kernel. Aborting execution."), False),
    (RuntimeError("FlashAttention only supports Ampere GPUs or newer."), False),
    (TypeError("attend() takes 3 arguments"), False),
    (ModelError("heads of 300; it takes up to 256"), False),
]


def num_tunings(tune, monkeypatch):
    """How often two processes tune, each of which chooses twice."""
    calls = []
    for _ in range(2):
        monkeypatch.setattr(autotune, "_known", {})
        for _ in range(2):
            autotuner = Autotuner(round_timing(Clock(), None))
            usable = {"lost": None, "sound": None}
            tune_once = lambda: calls.append(1) or tune()  # noqa: E731
            choice = autotuner.choose("work", torch.device("cpu"), ("fact",), usable, tune_once)
            assert choice.chosen == "sound"
    return len(calls)


@pytest.mark.parametrize("at_call", [0, 2], ids=["checked", "timed"])
@pytest.mark.parametrize(("error", "is_temporary"), ERRORS, ids=lambda value: repr(value)[:40])
def test_a_choice_is_stored_unless_a_failure_may_pass(error, is_temporary, at_call, monkeypatch):
    def tune():
        calls = count()

        def fails():
            if next(calls) >= at_call:
                raise error
            return ()

        candidates = {"lost": lambda: [fails], "sound": lambda: [tuple]}
        timing = round_timing(Clock(), None)
        return autotune.autotune(candidates, [()], lambda *_: None, timing)

    assert num_tunings(tune, monkeypatch) == (2 if is_temporary else 1)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("Gemma2 + window", "plain"),  # soft-capping
        ("Gemma3 + window", "flash_attention"),  # the same field, without a value
        ("GPT-OSS + window", "plain"),  # sinks
        ("Phi3", "flash_attention"),
    ],
)
def test_the_recorded_attention_is_plain_if_no_kernel_of_torch_supports_it(architecture, name):
    assert builtin.attention_of(StockRunner(build(ARCHITECTURES[architecture]()))) == name


def test_candidates_are_tried_with_the_torch_kernels_of_rounds(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "card")
    orders = []

    def tune():
        orders.append(torch._C._get_sdp_priority_order())
        return "sound", [Contender(name="sound", seconds=1.0)]

    autotuner = Autotuner(round_timing(Clock(), None))
    autotuner.choose("work", torch.device("cuda:0"), ("fact",), {"sound": None}, tune)

    preferred = [int(backend) for backend in PREFERRED]
    assert orders[0][: len(preferred)] == preferred
    assert torch._C._get_sdp_priority_order()[: len(preferred)] != preferred


def test_a_choice_is_not_stored_if_a_candidate_took_too_long(monkeypatch):
    late = KernelCandidate("lost", lambda: None, setup_s=1e6)
    both = [late, KernelCandidate("sound", lambda: None)]
    assert num_tunings(lambda: fastest(both, round_timing(Clock(), None)), monkeypatch) == 2


@pytest.fixture
def preferring(tuned_subjects, monkeypatch):
    """Makes a candidate win wherever it can run."""

    def prefer(name):
        attention, forward = kernel_choices.autotune_attention, kernel_choices.autotune_forward

        def attention_by(case, kernels, *rest):
            is_usable = name in BY_NAME and BY_NAME[name].unsupported_reason(case) is None
            winner, contenders = attention(case, kernels, *rest)
            return name if is_usable else winner, contenders

        def forward_by(runner, names, *rest):
            is_usable = name in names and kernel_choices.triton_failure(runner.device) is None
            winner, contenders = forward(runner, names, *rest)
            return name if is_usable else winner, contenders

        monkeypatch.setattr(kernel_choices, "autotune_attention", attention_by)
        monkeypatch.setattr(kernel_choices, "autotune_forward", forward_by)
        monkeypatch.setitem(kernel_choices.FORWARDS, FUSED_TRITON, lambda runner: runner)
        return tuned_subjects

    return prefer


# A candidate, whose package or compiler may be gone later, and the subjects that it wins.
GONE = [(FUSED_TRITON, ["forward"]), ("flash_attn", ["chain", "tree"])]


@pytest.mark.parametrize(("name", "subjects"), GONE)
def test_a_stored_choice_that_no_longer_runs_is_made_again(
    name, subjects, available, preferring, monkeypatch
):
    tuned_subjects = preferring(name)
    available({})
    before = chosen_in_another_process(monkeypatch)
    assert [choice.chosen for choice in before].count(name) == len(subjects)
    available({name: "it is gone"})
    after = chosen_in_another_process(monkeypatch)
    assert tuned_subjects[3:] == subjects
    assert [choice.chosen for choice in after] == ["plain", "plain", "fused"]


@pytest.mark.parametrize(("name", "subjects"), GONE)
def test_a_resumed_run_names_the_kernel_that_no_longer_runs_and_why(
    name, subjects, available, preferring, monkeypatch
):
    preferring(name)
    available({})
    stored = chosen_in_another_process(monkeypatch)
    monkeypatch.setattr(autotune, "_known", {})
    remember_choices(stored)
    available({name: "its compiler is gone"})
    with pytest.raises(ModelError, match=f"{subjects[0]}.*'{name}'.*: its compiler is gone; ") as e:
        choices().choose(FusedRunner(tiny_llama()), "auto", "big")
    assert "resume, or " in str(e.value)


def test_a_resumed_run_keeps_its_choice_though_another_candidate_can_run_now(
    available, tuned_subjects, monkeypatch
):
    available(NOT_HERE)
    stored = chosen_in_another_process(monkeypatch)
    monkeypatch.setattr(autotune, "_known", {})
    remember_choices(stored)
    available({})
    made = choices()
    made.choose(FusedRunner(tiny_llama()), "auto", "big")
    assert len(tuned_subjects) == 3
    assert chosen_by(made) == [choice.chosen for choice in stored]


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


def test_without_a_home_folder_choices_are_made_in_every_process(tuned_subjects, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # raises KeyError, as for unknown users
    for _ in range(2):
        chosen_in_another_process(monkeypatch)
    assert tuned_subjects == ["chain", "tree", "forward"] * 2


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


def test_a_forced_kernel_that_fails_its_check_is_refused(monkeypatch):
    lost = [Contender(name="plain", refusal="off by 2")]
    monkeypatch.setattr(kernel_choices, "autotune_attention", lambda *_: (None, lost))
    named = r"--attention-backend plain.*big.*off by 2.*--attention-backend auto"
    with pytest.raises(ModelError, match=named):
        choices("plain").choose(FusedRunner(tiny_llama()), "fused", "big")


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
    served = [engine.serve([request], work, Load()) for work in works]
    assert len({one.results[0].output_ids for one in served}) == 1
    assert [one.num_discarded for one in served] == [0, 1, 0]
    assert opened == ["NoDrafter", "Ngram", "Ngram", "NoDrafter"]
