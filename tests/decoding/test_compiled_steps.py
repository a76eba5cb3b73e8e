"""Layers by torch's compiler: the fused forward's states, few programs, and a way out.

What inductor makes for this CPU stands in for what it makes for a GPU, where nobody counted yet.
"""

import re
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from specbench.engines.contests import Contests
from specbench.engines.kernel_choices import KernelChoices
from specbench.errors import ModelError
from specbench.execution.clock import HostClock
from specbench.forward import compiled_steps, contest
from specbench.forward.attention.split_kv import SplitKv
from specbench.forward.contest import Timing
from specbench.forward.forward_contest import forward_contest
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import FUSED_COMPILED
from specbench.serving.request import Request
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.fused_families import FAMILIES, family
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import CLOSE, generated, ragged_prompts, tiny_llama
from tests.decoding.test_fused_runner import over_slots

# torch's own
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def as_written(piece, _):
    """In the compiler's place."""
    return piece


@pytest.fixture
def uncompiled(monkeypatch) -> None:
    monkeypatch.setattr(compiled_steps, "_compiled", as_written)


def feed(runner, num_rows, num_tokens):
    at_BT = torch.arange(20, 20 + num_tokens).expand(num_rows, -1)
    last = runner.num_layers
    return runner.forward(at_BT % runner.vocab_size, at_BT, 64, features=range(last + 1))


def assert_same(runner, other, *shape):
    own, theirs = feed(runner, *shape), feed(other, *shape)
    torch.testing.assert_close(own.logits, theirs.logits, **CLOSE)
    torch.testing.assert_close(own.features, theirs.features, **CLOSE)


def traced(piece, _):
    """As the compiler gets it and guards it, but no code is made."""
    return torch.compile(piece, fullgraph=True, dynamic=False, backend="aot_eager")


@torch.inference_mode()
def test_two_sizes_of_each_piece_serve_all_layers_and_shapes_on_a_cpu(monkeypatch):
    monkeypatch.setattr(compiled_steps, "_compiled", traced)
    torch.compiler.reset()
    whole = FusedRunner(family("Llama"))
    before = counters["stats"]["unique_graphs"]
    compiled = whole.with_compiled()
    whole.allocate(3, 64)
    for shape in ((1, 1), (1, 5), (3, 1), (2, 4)):
        assert_same(compiled, whole, *shape)
    whole.allocate(3, 128)
    assert_same(compiled, whole, 1, 9)
    columns_1T = torch.arange(20, 30).view(5, 2)[:, 0][None]  # as a tree's slots may lie
    compiled.forward(columns_1T, columns_1T, 64)
    compiled.forward(columns_1T[:, :1], columns_1T[:, :1], 64)
    assert counters["stats"]["unique_graphs"] - before == 4
    assert whole.programs.num_compiled == 2
    assert whole.programs.compile_s > 0


@pytest.mark.parametrize("options", [compiled_steps._ON_CUDA, compiled_steps._ON_HOST])
def test_the_compiler_knows_what_it_is_asked_for(options):
    compiled_steps._compiled(compiled_steps.after, options)  # raises at an option it has not


@pytest.mark.long
@torch.inference_mode()
def test_a_layer_is_four_fused_kernels_and_its_four_products_on_a_cpu(monkeypatch):
    monkeypatch.setattr(compiled_steps, "FIRST", (5,))
    monkeypatch.setattr(compiled_steps, "_ON_HOST", {})  # calls that can be read
    torch.compiler.reset()
    whole = FusedRunner(family("Llama"))
    compiled, codes = run_and_get_code(whole.with_compiled)
    calls = " ".join(code.split("def call(")[1] for code in codes)
    num_fused = len(re.findall(r"\bcpp_fused_\w+\(", calls))
    num_products = len(re.findall(r"\bextern_kernels\.\w+\(", calls))
    whole.allocate(1, 64)
    assert_same(compiled, whole, 1, 5)
    print(f"a layer on a CPU, in a GPU's stead: {num_fused} fused kernels, {num_products} products")
    assert (len(codes), num_fused, num_products) == (2, 4, 4)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", list(FAMILIES))
@torch.inference_mode()
def test_what_is_compiled_computes_what_the_fused_layers_do(name):
    runner = FusedRunner(family(name))
    compiled = runner.with_compiled()
    assert compiled.kind == FUSED_COMPILED
    torch.testing.assert_close(over_slots(compiled), over_slots(runner), **CLOSE)
    for shape in ((1, 1), (3, 4)):
        assert_same(compiled, runner, *shape)


@pytest.mark.long
@pytest.mark.parametrize("name", list(FAMILIES))
@torch.inference_mode()
def test_compiled_layers_give_the_fused_forwards_states(name):
    runner = FusedRunner(family(name))
    torch.testing.assert_close(over_slots(runner.with_compiled()), over_slots(runner), **CLOSE)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3, window, tied"])
def test_the_text_of_compiled_layers_is_that_of_generate(name):
    model = family(name)
    texts = [generated(model, prompt, 24) for prompt in ragged_prompts()]
    target, own = FusedRunner(model).with_compiled(), FusedRunner(model).with_compiled()
    requests = [Request(prompt_ids=p, max_new_tokens=24) for p in ragged_prompts()]
    for drafter, k in (("none", 0), ("draft_model", 4)):
        results = decode(target, make_drafter(drafter, target, own), requests, k=k)
        assert_texts(results, texts)
    assert acceptance_rate(results) == 1


@pytest.mark.usefixtures("uncompiled")
def test_where_rounds_are_captured_nothing_waits_for_the_host(monkeypatch):
    monkeypatch.setattr(compiled_steps.CompiledSteps, "_make", lambda *_: None)
    with fake_cuda():
        with DEVICE:
            runner = FusedRunner(family("Qwen3"))
        compiled = runner.with_compiled()
        compiled.layers.kernels = defaultdict(SplitKv)
        compiled.allocate(2, 64)
        compiled.layers.steps._known = dict.fromkeys((1, 5, 10), compiled.layers.steps)
        tokens = torch.zeros(2, 5, dtype=torch.long, device=DEVICE)
        with HostWatch():
            compiled.forward(tokens, tokens, 64)


def steps_of(runner, num_tokens):
    return runner.layers.steps.sized(num_tokens).name


@pytest.mark.usefixtures("uncompiled")
@torch.inference_mode()
def test_prompts_and_what_is_beyond_the_limit_run_uncompiled(monkeypatch):
    monkeypatch.setattr(compiled_steps, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(compiled_steps.CompiledSteps, "_kind", lambda _, number: number)
    runner = FusedRunner(tiny_llama()).with_compiled()
    assert [steps_of(runner, number) for number in (None, 10_000)] == ["torch", "torch"]
    runner.allocate(1, 64)
    prompt_1T = torch.arange(9)[None]
    runner.forward(prompt_1T, prompt_1T, 64, start=0)
    assert runner.programs.num_compiled == 2  # none for the prompt's nine
    assert [steps_of(runner, number) for number in (1, 5, 2, 7, 2, 8)] == [
        *["compiled"] * 3, "torch", "compiled", "torch"
    ]  # fmt: skip
    assert runner.programs.notes == [
        "3 numbers of tokens are the most that a model's layers are compiled for: others run as "
        "they are"
    ]


def broken(piece, name):
    """A compiler that gets one of the pieces wrong, or none at all."""
    faults = {
        "before": lambda *given: piece(*given[:5], -given[5], *given[6:]),
        "after": lambda *given: 2 * piece(*given),
    }
    return faults[name] if piece.__name__ == name else piece


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_program_that_computes_something_else_is_not_run(name, monkeypatch):
    monkeypatch.setattr(compiled_steps, "_compiled", lambda piece, _: broken(piece, name))
    with pytest.raises(ModelError, match="of 1 tokens it is wrong: off by"):
        FusedRunner(tiny_llama()).with_compiled()


def fails(*_):
    raise RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler\n")


@pytest.mark.usefixtures("uncompiled")
@torch.inference_mode()
def test_what_cannot_be_compiled_is_said_and_runs_as_it_is(monkeypatch):
    runner = FusedRunner(tiny_llama()).with_compiled()
    monkeypatch.setattr(runner.layers.steps, "_known", {})
    monkeypatch.setattr(runner.layers.steps, "_pieces", SimpleNamespace(before=fails))
    assert steps_of(runner, 5) == steps_of(runner, 5) == "torch"
    (note,) = runner.programs.notes
    assert note.startswith("layers of 5 tokens run as they are: torch.compile: ")
    assert note.endswith("No working C++ compiler")


def test_in_the_contest_of_forwards_it_loses_where_it_cannot_be_compiled(monkeypatch):
    monkeypatch.setattr(compiled_steps, "_compiled", lambda *_: fails)
    winner, (lost, _) = forward_contest(
        FusedRunner(tiny_llama()), (FUSED_COMPILED, "fused"), Timing(lambda run: run() or 1.0)
    )
    assert winner == "fused"
    assert lost.refusal.startswith("torch.compile: backend='inductor' raised: InvalidCxxCompiler")


@pytest.mark.usefixtures("uncompiled")
def test_one_that_compiles_for_too_long_is_refused_and_the_limit_named(monkeypatch):
    now_s = 0.0
    made = compiled_steps.CompiledSteps._make

    def slowly(steps, num_tokens):
        nonlocal now_s
        now_s += 0.6 * contest.MOST_READY_S
        made(steps, num_tokens)

    def seconds(run):
        began_s = now_s
        run()
        return now_s - began_s

    monkeypatch.setattr(compiled_steps.CompiledSteps, "_make", slowly)
    winner, (lost, _) = forward_contest(
        FusedRunner(tiny_llama()), (FUSED_COMPILED, "fused"), Timing(seconds)
    )
    assert winner == "fused"
    assert lost.seconds is None
    assert lost.refusal == "it took more than 120 s to compile and to run for the first time"


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("compiles", [False, True])
def test_compiled_layers_compete_only_where_they_are_asked_for(compiles, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    contests = Contests(HostClock(), None)
    choices = KernelChoices("plain", contests, compiles=compiles)
    choices.settle(FusedRunner(tiny_llama()), "fused", "big")
    *_, forward = contests.made.values()
    assert (FUSED_COMPILED in [one.name for one in forward.contenders]) is compiles
    assert (choices.facts["compile_s"] is not None) is compiles
    assert (choices.num_compiled > 0) is compiles
