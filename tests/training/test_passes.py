"""Training gives a head the same inputs as drafting.

Shape suffixes: B rows, T tokens, F the head's states.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specbench.drafters.eagle import EagleHead
from specbench.drafters.registry import build_drafter
from tests.decoding.lossless import parts_of
from tests.decoding.models import tiny_llama
from tests.drafters.feature_cases import Recorder, run_rounds
from tests.drafters.plain_heads import PlainEagle, PlainEagle3
from tests.training.tiny_target import METHODS, VOCAB_SIZE, lab
from tools.training.student import Agreement, ChainStudent, measure_acceptance, open_student

DEPTH = 4


@pytest.mark.parametrize(("method", "plain"), [("eagle", PlainEagle), ("eagle3", PlainEagle3)])
def test_training_logits_equal_the_reference_at_every_depth(method, plain):
    model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3)
    bench = lab()
    student = bench.student(method)
    assert isinstance(student, ChainStudent)
    checkpoint = student.checkpoint()
    if method == "eagle3":
        checkpoint.tensors["d2t"] = torch.zeros(VOCAB_SIZE, dtype=torch.long)  # the plain head's
    head = plain(model, checkpoint)
    batch = bench.batches[0]
    lesson = bench.teacher(student).lesson(batch)
    ids = batch.ids_BT[0].tolist()

    with torch.no_grad():
        bench_passes = [
            student._head.logits(head_pass.states_BTF)[0]
            for head_pass in student._run(lesson, lesson.features, DEPTH)
        ]

    for depth, logits_TV in enumerate(bench_passes):
        for current in (3, 8, 11):
            text, drafts = ids[: current + 1], ids[current + 1 : current + 1 + depth]
            expected_V = head.logits(text, drafts)
            torch.testing.assert_close(
                logits_TV[current - 1 + depth], expected_V, rtol=2e-3, atol=2e-3
            )


def test_a_position_that_no_text_reaches_has_no_acceptance():
    counts = Agreement(torch.tensor([4, 2, 0]), torch.tensor([3, 0, 0]))
    fakes = SimpleNamespace(agreement=lambda *_: counts, lesson=lambda batch: batch)

    acceptance = measure_acceptance(fakes, fakes, [None], depth=3)

    assert (acceptance.per_position, acceptance.contexts) == ((0.75, 0.0), 4)


@pytest.mark.sampled(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize(("method", "num_heads"), [*((m, None) for m in METHODS), ("mtp", 2)])
def test_training_agreement_equals_the_acceptance_of_a_chain(method, num_heads):
    """Round by round: from each token of an answer, how many drafts the target would keep."""
    bench = lab()
    student = bench.student(method, num_heads)
    teacher = bench.teacher(student)
    agreements = [student.agreement(teacher.lesson(batch), 3) for batch in bench.held_out]
    right = torch.stack([agreement.correct_D for agreement in agreements]).sum(0).tolist()
    contexts = torch.stack([agreement.contexts_D for agreement in agreements]).sum(0).tolist()

    counted = [0, 0, 0]
    possible = [0, 0, 0]
    target = lab().target
    parameters = {} if method == "mtp" else {"tree": "chain"}
    for text in (text for text in bench.texts if text.is_held_out):
        for current in range(text.num_prompt, len(text.ids) - 1):
            drafter = build_drafter(
                method, parts_of(target, None, student.checkpoint()), parameters
            )
            watched = Recorder(drafter)
            drafter.num_drafts(3)
            # A prompt that ends before `current`: greedy, the target emits `current` first.
            run_rounds(target, watched, [text.ids[:current]], [3])
            drafts, follow = watched.seen[0].paths[-1], text.ids[current + 1 :]
            assert watched.seen[0].text == text.ids[: current + 1]
            for d in range(min(3, len(follow))):
                possible[d] += 1
                counted[d] += drafts[: d + 1] == follow[: d + 1]

    assert contexts == possible[: len(contexts)]
    assert right == counted[: len(right)]
    assert len(right) == (num_heads or 3)


def test_a_head_is_opened_by_its_method_and_not_by_its_config():
    """Configs of EAGLE heads may have a draft vocabulary: vLLM writes one into them."""
    bench = lab()
    head = bench.student("eagle").checkpoint()
    changed = replace(head, config={**head.config, "draft_vocab_size": VOCAB_SIZE})
    student = open_student("eagle", changed, bench.target)
    assert isinstance(student, ChainStudent)
    assert isinstance(student._head, EagleHead)
