"""Rounds as compiled programs: the same text, and what cannot be compiled is said."""

from functools import partial

import pytest
import torch

from specbench.execution.compiled_rounds import CompiledRounds
from specbench.execution.graphs import GraphLauncher
from specbench.execution.launcher import SameMemory
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.records import Sampling
from specbench.round.sampling import Sampler
from specbench.serving.decoder import Decoder
from specbench.serving.request import Request
from tests.decoding.fakes import CountingClock
from tests.decoding.lossless import acceptance_rate, assert_texts, make_drafter
from tests.decoding.models import generated, random_prompt, tiny_llama

pytestmark = pytest.mark.slow  # torch.compile takes seconds

NUM_TOKENS = 12


def check_text(rounds: CompiledRounds, method: str, k: int, runner_class: type[Runner]) -> None:
    """The text of compiled rounds is that of generate, and rounds were compiled."""
    prompt = random_prompt(9, seed=1)
    model = tiny_llama(num_hidden_layers=1)
    text = generated(model, prompt, NUM_TOKENS)
    target, own = runner_class(model), runner_class(model)
    launcher = partial(GraphLauncher, graph="round", graphs=rounds, readback=SameMemory())
    decoder = Decoder(
        target,
        make_drafter(method, target, own),
        eos_ids=(),
        clock=CountingClock(),
        make_launcher=launcher,
    )

    requests = [Request(prompt_ids=prompt, max_new_tokens=NUM_TOKENS)]
    results = decoder.decode(requests, Sampler(Sampling()), k=k)

    assert_texts(results, [text])
    assert decoder.launcher is not None
    assert decoder.launcher.reason is None
    assert rounds.compile_s > 0
    if method in ("draft_model", "self_speculation"):
        assert acceptance_rate(results) == 1


# aot_eager traces and rewrites a round as inductor gets it, but generates no code.
@pytest.mark.parametrize(
    ("method", "k"), [("none", 0), ("draft_model", 2), ("ngram", 2), ("self_speculation", 2)]
)
def test_the_text_of_traced_rounds_is_that_of_generate(method: str, k: int) -> None:
    check_text(CompiledRounds(backend="aot_eager"), method, k, FusedRunner)


@pytest.mark.long
def test_the_stock_forward_can_be_traced_too() -> None:
    check_text(CompiledRounds(backend="aot_eager"), "none", 0, StockRunner)
    check_text(CompiledRounds(backend="aot_eager"), "self_speculation", 2, StockRunner)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
def test_the_text_of_compiled_rounds_is_that_of_generate() -> None:
    check_text(CompiledRounds(), "draft_model", 2, FusedRunner)


def test_every_replay_writes_to_the_first_answer() -> None:
    count = torch.zeros(3)
    rounds = CompiledRounds(backend="aot_eager")

    captured = rounds.capture(lambda: (count.add_(1) * 2, None))
    first = captured.output[0]
    captured.replay()

    assert captured.output[0] is first
    assert first.tolist() == [4, 4, 4]
    assert rounds.reserved_bytes == 0


def test_a_branch_on_data_cannot_be_compiled() -> None:
    x = torch.ones(2)

    with pytest.raises(RuntimeError, match=r"^torch\.compile: "):
        CompiledRounds(backend="aot_eager").capture(lambda: x if x.sum() > 0 else -x)
