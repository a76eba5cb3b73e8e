"""Batched texts have the scores of single ones, and no additional text is consumed."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from specbench.errors import ModelError
from specbench.records import Sampling
from specbench.verify import reference_model as reference_module
from specbench.verify import scorer as scorer_module
from specbench.verify.evidence import CONTROL, SampledEvidence, Subject
from specbench.verify.reference_model import ReferenceModel, Text, expected_log_ratio
from specbench.verify.scorer import TEMPERATURES, AnsweredPrompt, TextScorer
from tests.decoding.lossless import sampled_model

WARM = Sampling(temperature=0.7)
PROMPTS = [(1, 5, 2, 3, 1, 5), (4,), (2, 6, 4, 1), (3, 3, 1, 2, 6, 5, 4, 2, 1)]
ANSWERS = [(3, 1, 4, 1, 5), (2,), (6, 5, 3, 5, 2, 4, 1, 3), (1, 2, 3), (5, 5), (2, 4, 6, 1)]
MIXED: list[Text] = [(PROMPTS[i % 4], answer) for i, answer in enumerate(ANSWERS)]
OF_ONE_PROMPT: list[Text] = [(PROMPTS[0], answer) for answer in ANSWERS]
SUBJECT = Subject(
    pairing="seven/d", engine="builtin", method="ngram", num_speculative_tokens=3, temperature=0.7
)


@pytest.fixture(scope="module")
def reference() -> ReferenceModel:
    return ReferenceModel(sampled_model(0))


def logits_of(reference: ReferenceModel, text: Text) -> torch.Tensor:
    return torch.cat(list(reference.logits(*text)))


@pytest.mark.parametrize("texts", [MIXED, OF_ONE_PROMPT], ids=["mixed", "of one prompt"])
def test_a_text_has_the_same_logits_in_a_batch(
    texts: list[Text], reference: ReferenceModel
) -> None:
    expected = [logits_of(reference, text) for text in texts]
    logits = dict(reference.logits_of_texts(texts))
    assert sorted(logits) == list(range(len(texts)))
    for i, alone_NV in enumerate(expected):
        torch.testing.assert_close(logits[i], alone_NV)
    torch.testing.assert_close(logits_of(reference, texts[0]), expected[0])  # and again after them


def test_logits_that_are_no_numbers_are_a_model_error() -> None:
    model = sampled_model(0)
    reference = ReferenceModel(model)
    model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(ModelError, match=r"NaN.*dtype"):
        logits_of(reference, MIXED[0])


def test_a_text_longer_than_a_chunk_is_read_in_parts(
    reference: ReferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [logits_of(reference, text) for text in MIXED]
    monkeypatch.setattr(reference_module, "_CHUNK", 4)
    parts: list[list[torch.Tensor]] = [[] for _ in MIXED]
    for i, logits_NV in reference.logits_of_texts(MIXED):
        parts[i].append(logits_NV)
    assert max(map(len, parts)) == 2
    for part, alone_NV in zip(parts, expected, strict=True):
        torch.testing.assert_close(torch.cat(part), alone_NV)


def test_fewer_texts_are_batched_if_the_vocabulary_is_large(
    reference: ReferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [reference._batch_size(length) for length in (512, 513)] == [2**22 // 7 // 512, 1]
    monkeypatch.setattr(reference, "vocab_size", 2**17)
    assert [reference._batch_size(length) for length in (100, 512, 4096)] == [5, 1, 1]


def test_texts_of_similar_length_are_batched(
    reference: ReferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of 11, 2, 12, 12, 8 and 5 tokens in batches of 24: 12 and 12, 11 and 8, 5 and 2."""
    monkeypatch.setattr(reference_module, "_CHUNK", 24)
    monkeypatch.setattr(reference_module, "_MOST_LOGITS", 0)
    groups: list[list[int]] = []
    sound = reference._batched

    def note_texts(texts: list[Text]) -> list[torch.Tensor]:
        groups.append([len(prompt) + len(answer) for prompt, answer in texts])
        return sound(texts)

    monkeypatch.setattr(reference, "_batched", note_texts)
    assert len(dict(reference.logits_of_texts(MIXED))) == len(MIXED)
    assert groups == [[12, 12], [11, 8], [5, 2]]


def pairs() -> Iterator[tuple[AnsweredPrompt, tuple[int, ...]]]:
    for i, (prompt_ids, answer) in enumerate(MIXED):
        yield AnsweredPrompt(id=f"p{i}", prompt_ids=tuple(prompt_ids), max_new_tokens=8), answer


def read(
    reference: ReferenceModel, num_together: int, sampling: Sampling = WARM
) -> SampledEvidence:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorer_module, "_GROUP", num_together)
        return TextScorer(reference, seed=0).sampled(SUBJECT, sampling, pairs(), 20, eos_ids=())


@pytest.mark.parametrize("sampling", [WARM, Sampling(temperature=0.7, top_k=3)], ids=str)
def test_evidence_does_not_depend_on_the_batch_size(
    sampling: Sampling, reference: ReferenceModel
) -> None:
    whole, three, all_at_once = (read(reference, n, sampling) for n in (1, 3, 64))
    assert whole.num_texts == three.num_texts == all_at_once.num_texts == 6
    for other in (three, all_at_once):
        np.testing.assert_allclose(other.surprise_N, whole.surprise_N, atol=1e-5)
        np.testing.assert_allclose(other.identity_N, whole.identity_N, atol=1e-5)
        assert other.log_likelihoods == pytest.approx(whole.log_likelihoods)
        assert other.colder == pytest.approx(whole.colder, rel=1e-4)
        assert (other.num_outside, other.wrongly_ended) == (whole.num_outside, whole.wrongly_ended)
    assert len(whole.surprise_N) == 20 - whole.num_outside


def test_an_empty_text_of_a_server_has_only_a_wrong_end(reference: ReferenceModel) -> None:
    empty = AnsweredPrompt(id="empty", prompt_ids=PROMPTS[0], max_new_tokens=8), ()
    scorer = TextScorer(reference, seed=0)
    for texts in ([empty], [empty, *pairs()]):
        num_tokens = sum(len(text) for _, text in texts)
        evidence = scorer.sampled(SUBJECT, WARM, texts, num_tokens or 1, eos_ids=())
        assert len(evidence.surprise_N) == num_tokens
        assert evidence.wrongly_ended[0] == "empty"
    assert reference.departures("empty", PROMPTS[0], ()) == []


def test_each_token_is_located_in_the_targets_distribution(reference: ReferenceModel) -> None:
    """Log-probabilities by the logits of each text by itself, at the given temperature."""
    evidence = read(reference, 64)
    logits_NV = torch.cat([logits_of(reference, text) for text in MIXED])[:20].double()
    tokens_N = torch.tensor([token for _, answer in MIXED for token in answer])[:20]
    for factor in TEMPERATURES:
        logs_NV = (logits_NV / (0.7 * factor)).log_softmax(-1)
        expected = float(logs_NV.gather(1, tokens_N[:, None]).sum())
        assert evidence.log_likelihoods[factor] == pytest.approx(expected, abs=1e-4)
    probs_NV = (logits_NV / 0.7).softmax(-1)
    assert evidence.colder == pytest.approx(expected_log_ratio(probs_NV, CONTROL), rel=1e-4)
    for at, (u, token) in enumerate(zip(evidence.identity_N, tokens_N.tolist(), strict=True)):
        below = float(probs_NV[at, :token].sum())
        assert below - 1e-5 <= u <= below + float(probs_NV[at, token]) + 1e-5


def test_the_scorer_requests_no_more_answers_than_it_counts(reference: ReferenceModel) -> None:
    taken: list[str] = []

    def read_lazily() -> Iterator[tuple[AnsweredPrompt, tuple[int, ...]]]:
        for prompt, answer in pairs():
            taken.append(prompt.id)
            yield prompt, answer

    (group,) = TextScorer(reference, seed=0)._groups(read_lazily(), 6)
    assert taken == ["p0", "p1"]
    assert [len(counted) for _, _, counted in group] == [5, 1]
