"""Files of a hybrid model before it is loaded: its memory, and the refusal of trees."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench.bench.built_weights import built_weights
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError
from specbench.files.config import is_hybrid
from specbench.files.model import ModelFiles
from specbench.fit.compatibility import check_drafter, check_target
from specbench.fit.memory_plan import DeploymentSpec, plan_pair
from specbench.footprint import STATES_BESIDE_DRAFTS
from specbench.forward.runner import StockRunner
from specbench.forward.state_layers import has_other_state
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import Request, Sampling
from specbench.words.numbers import measured
from tests.cli.calls import specbench
from tests.decoding.lossless import decode, make_drafter
from tests.decoding.models import generated, ragged_prompts
from tests.hybrids.models import HYBRIDS, tiny_hybrid
from tests.tiny_models import VOCAB_SIZE, files_of
from tests.tiny_pair import make_tokenizer

pytestmark = pytest.mark.slow

TREE = DrafterSpec(name="own", method="self_speculation", parameters={"tree": (2, 2)})
NGRAM = DrafterSpec(name="ngram", method="ngram")


def write_hybrid(folder: Path, family: str) -> ModelFiles:
    tiny_hybrid(family, vocab_size=VOCAB_SIZE).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return files_of(folder)


def test_a_model_with_only_attention_has_no_state_in_a_class_that_allows_it() -> None:
    assert not has_other_state(tiny_hybrid("Granite, all attention"))


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f == "LFM2" else pytest.mark.long) for f in HYBRIDS],
)
def test_a_plan_counts_the_keys_and_states_that_the_decoder_keeps(
    tmp_path: Path, family: str
) -> None:
    files = write_hybrid(tmp_path, family)
    place = DeploymentSpec(device="cpu", concurrency=2, context=60, num_speculative_tokens=4)
    plan = plan_pair(files, NGRAM, place, built_weights)
    runner = StockRunner(tiny_hybrid(family, vocab_size=VOCAB_SIZE))
    requests = [Request(prompt_ids=(1, 2, 3), max_new_tokens=2)] * 2
    decode(runner, make_drafter("ngram", runner), requests, k=4)

    assert plan is not None
    assert is_hybrid(files.field) == (family != "Granite, all attention")
    assert plan.target.kv_bytes_per_token == runner.cache.bytes_per_token
    num_states = 4 + STATES_BESIDE_DRAFTS
    assert num_states * plan.target.state_bytes == runner.cache.state_bytes_per_row
    capacity = 128  # 60 tokens, 4 drafts and one more, in steps of 64
    states = (2 * num_states + 2) * plan.target.state_bytes
    assert plan.peak.kv_cache == 2 * capacity * plan.target.kv_bytes_per_token + states


def test_pair_prints_the_states_of_target_and_draft(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        write_hybrid(tmp_path / name, "LFM2")
    ran = specbench("pair ./target --draft ./draft -k 3 --dry-run", cwd=tmp_path)
    states = 2 * (3 + STATES_BESIDE_DRAFTS) * 3 * 32 * 4
    assert f"takes up to {measured(states, 'bytes')} for recurrent states" in ran.out


def test_a_hybrid_is_accepted_but_a_tree_over_it_is_refused(tmp_path: Path) -> None:
    files = write_hybrid(tmp_path, "LFM2")

    assert not [f for f in check_target(files) if f.level == "refused"]
    assert check_drafter(files, NGRAM).level == "ok"
    (refusal,) = check_drafter(files, TREE).of_level("refused")
    assert "only check chains" in refusal.reason


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> BuiltinEngine:
    files = write_hybrid(tmp_path_factory.mktemp("models") / "lfm2", "LFM2")
    target = Target(name="lfm2", model=files.spec, drafters=())
    return BuiltinEngine(target, ModelPool(torch.device("cpu")))


def test_loading_refuses_a_tree_by_the_drafters_name(engine: BuiltinEngine) -> None:
    with pytest.raises(ModelError, match=r"Lfm2ForCausalLM.*recurrent"):
        engine.add_drafter(TREE)


def test_forwards_timed_between_rounds_leave_the_text_unchanged(engine: BuiltinEngine) -> None:
    chain = replace(TREE, name="chain", parameters={"num_layers": 1})
    engine.add_drafter(chain)
    prompt = ragged_prompts()[0]
    request = Request(
        prompt_ids=prompt, max_new_tokens=16, sampling=Sampling(), seed=0, stop_at_eos=False
    )

    timed = engine.time_forwards(request, Work(drafter="chain", method=chain.method, k=3))

    assert timed is not None
    expected = generated(tiny_hybrid("LFM2", vocab_size=VOCAB_SIZE), prompt, 16)
    assert timed.result.output_ids == expected
    assert engine.state_bytes_per_row("chain") == (3 + STATES_BESIDE_DRAFTS) * 3 * 32 * 4
