"""What a draft with another tokenizer keeps of rows that move, and of samples of one prompt."""

from typing import NamedTuple

import pytest
import torch

from specbench.decode.round import run_round
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.sampling import Sampler
from specbench.drafters.shared.retokenized_model import RetokenizedModel
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from tests.decoding.lossless import filled_rows, make_drafter
from tests.decoding.models import random_prompt, tiny_llama
from tests.drafters.test_draft_model import CountingStockRunner
from tests.drafters.test_other_tokenizers import METHODS


class Filled(NamedTuple):
    rows: Rows
    draft: CountingStockRunner

    def fed_in_a_round(self, num_rows: int) -> list[int]:
        """Tokens of a row in each of the draft's forwards in a round with three drafts."""
        self.draft.fed.clear()
        state, sampler = self.rows.state.rows(0, num_rows), Sampler(Sampling())
        run_round(self.rows.target, self.rows.drafter, state, sampler, k=3, span=64)
        return self.draft.fed


@torch.inference_mode()
def filled(method: str, *lengths: int, are_samples: bool = False) -> Filled:
    """Rows of prompts of those lengths; samples are of one prompt."""
    target, draft = StockRunner(tiny_llama()), CountingStockRunner(tiny_llama(1))
    prompts = [random_prompt(n, 0 if are_samples else i) for i, n in enumerate(lengths)]
    requests = [
        Request(prompt_ids=ids, max_new_tokens=30, seed=i, is_sample=are_samples)
        for i, ids in enumerate(prompts)
    ]
    drafter = make_drafter(method, target, draft)
    return Filled(filled_rows(target, drafter, requests, num_rows=2), draft)


THE_LAST_TOKEN_AND_DRAFTS = [1, 1, 1]  # not the prompt again


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_moves_keeps_its_keys(method: str) -> None:
    made = filled(method, 9, 20)
    made.rows.move_row(1, 0, 21)
    assert made.fed_in_a_round(1) == THE_LAST_TOKEN_AND_DRAFTS


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_all_samples_of_a_prompt_are_prefilled_before_the_first_round(method: str) -> None:
    assert filled(method, 20, 20, are_samples=True).fed_in_a_round(2) == THE_LAST_TOKEN_AND_DRAFTS


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_cache_that_grew_is_empty_and_reads_the_text_again(method: str) -> None:
    made = filled(method, 9, 20)
    drafter, state = made.rows.drafter, made.rows.state.rows(0, 2)
    assert isinstance(drafter, RetokenizedModel)
    drafter.stand(state, 0)
    made.draft.fed.clear()
    drafter.stand(state, drafter.runner.cache.max_len)
    assert sum(made.draft.fed) >= 20


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_retokenized_length_follows_the_text_length_of_the_row(method: str) -> None:
    made = filled(method, 9, 20)
    drafter, state = made.rows.drafter, made.rows.state.rows(0, 2)
    assert isinstance(drafter, RetokenizedModel)
    whole = drafter.stand(state, 0).length_B1
    state.length_B1.fill_(4)
    assert (drafter.stand(state, 0).length_B1 < whole).all()


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_restarted_row_reads_only_its_new_text(method: str) -> None:
    used, fresh = filled(method, 9), filled(method, 9)
    prompt = random_prompt(20, 7)
    readings = []
    for made, row in ((used, 0), (fresh, 1)):
        fill = PrefillRequest(row, Request(prompt_ids=prompt, max_new_tokens=30))
        made.rows.fill([fill], Sampler(Sampling()))
        drafter = made.rows.drafter
        assert isinstance(drafter, RetokenizedModel)
        drafter.stand(made.rows.state.rows(row, 1), 0)
        readings.append(drafter._rows[row].reading.ids)
    assert readings[0] == readings[1]
