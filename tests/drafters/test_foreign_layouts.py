"""Features of heads of other libraries: windows, masks for drafts, a last state without a norm.

tests/foreign_heads compares their logits with those of the libraries. Shape suffixes: B rows, T
tokens, F hidden size, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.drafters.eagle3 import Eagle3Head, ParallelHead
from specbench.drafters.mtp import MtpHead
from specbench.errors import ModelError
from specbench.files.config import Fields, layer_windows
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Sampling
from specbench.topology import EAGLE_STATIC
from tests.decoding.models import tiny_llama
from tests.drafters.changed_heads import with_config, with_tensors
from tests.drafters.feature_cases import (
    BEAM,
    PROMPTS,
    Recorder,
    Subject,
    assert_chains,
    assert_dynamic_trees,
    assert_static_trees,
    run_rounds,
    subject,
)
from tests.drafters.mtp_families import checkpoint_for, dense_target, family_of

WINDOW = 5
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": WINDOW}


def windowed(method: str) -> Subject:
    case = subject(method)
    checkpoint = with_config(case.checkpoint, **SLIDING)
    plain = type(case.plain)(case.plain.model, checkpoint)
    return case._replace(checkpoint=checkpoint, plain=plain)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_window_counts_positions_in_chains(method: str) -> None:
    case = windowed(method)

    seen, kept = case.rounds([4] * 3, tree="chain")

    assert len(kept) > 1
    assert_chains(case.plain, seen)


@pytest.mark.slow
def test_a_window_counts_positions_in_every_kind_of_tree() -> None:
    case = windowed("eagle3")

    static, _ = case.rounds([4, 3], tree="static")
    dynamic, _ = case.rounds([4, 3], tree="dynamic", **BEAM)

    assert_static_trees(case.plain, EAGLE_STATIC.cut(4), static[: len(PROMPTS)])
    assert_dynamic_trees(case.plain, 3, 4, 8, dynamic[: len(PROMPTS)])


def test_a_sliding_window_changes_drafts_only_if_the_text_exceeds_it() -> None:
    case = subject("eagle3")
    wide, narrow = (
        with_config(case.checkpoint, **{**SLIDING, "sliding_window": w}) for w in (99, 2)
    )

    def drafted(checkpoint: Any) -> list[Any]:
        watched = Recorder(case._replace(checkpoint=checkpoint).drafter(tree="chain"))
        run_rounds(case.target, watched, PROMPTS, [4, 4], sampling=Sampling(temperature=1.0))
        return [proposal.probs for proposal in watched.seen]

    plain, same, other = drafted(case.checkpoint), drafted(wide), drafted(narrow)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    assert not torch.allclose(plain[0], other[0], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("is_windowed", [False, True])
def test_peagle_drafts_equal_the_reference_for_any_acceptance(is_windowed: bool) -> None:
    case = windowed("peagle") if is_windowed else subject("peagle")

    seen, kept = case.rounds([4, 0, 0, 4, 1, *[4] * 5])

    assert kept >= {0, 1, 2, 3, 4}
    assert_chains(case.plain, seen)


def test_peagle_above_temperature_0_drafts_each_token_from_its_own_mask() -> None:
    case = subject("peagle")
    watched = Recorder(case.drafter())

    run_rounds(case.target, watched, PROMPTS, [3, 3], sampling=Sampling(temperature=0.7))

    assert len(watched.seen) > 1
    for drafted in watched.seen:
        assert drafted.probs is not None
        # Which tokens the drafts are does not matter to the plain head.
        logits = [case.plain.logits(drafted.text, (0,) * i) for i in range(3)]
        expected = torch.stack(logits).div(0.7).softmax(-1)
        torch.testing.assert_close(drafted.probs, expected, atol=1e-4, rtol=1e-3)


def test_a_peagle_head_without_its_mask_is_refused_with_the_remedy() -> None:
    case = subject("peagle")
    with pytest.raises(ModelError, match=r"mask_token_id.*SpecForge"):
        case._replace(checkpoint=with_config(case.checkpoint, mask_token_id=None)).drafter()
    with pytest.raises(ModelError, match="missing: mask_hidden"):
        case._replace(checkpoint=with_tensors(case.checkpoint, mask_hidden=None)).drafter()


def test_other_names_of_the_mask_are_read() -> None:
    checkpoint = subject("peagle").checkpoint
    other = with_config(checkpoint, mask_token_id=None, ptd_token_id=3)
    assert ParallelHead(other, subject("peagle").target).mask_id == 3


@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
def test_the_last_feature_is_the_input_of_the_final_norm(make: Any) -> None:
    model = tiny_llama(num_hidden_layers=3)
    runner: Runner = make(model)
    runner.allocate(2, 32)
    tokens_BT = torch.tensor([[5, 6, 7], [8, 9, 10]])
    places_BT = torch.arange(3).expand(2, -1)

    with torch.no_grad():
        out = runner.forward(tokens_BT, places_BT, 32, features=(3, 4, 1))
        normed_BTF, bare_BTF, first_BTF = out.features
        torch.testing.assert_close(model.model.norm(bare_BTF), normed_BTF)
    assert not torch.allclose(bare_BTF, normed_BTF, atol=1e-2)
    assert first_BTF.shape == bare_BTF.shape


def test_a_head_may_read_the_last_layers_bare_output() -> None:
    case = subject("eagle3")
    last = with_config(case.checkpoint, eagle_aux_hidden_state_layer_ids=[0, 1, 3])

    assert Eagle3Head(last, case.target).features == (0, 1, 4)


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({"num_hidden_layers": 2}, (None, None)),
        ({"sliding_window": 8}, (None,)),
        ({"model_type": "mistral", "sliding_window": 8, "num_hidden_layers": 2}, (8, 8)),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8}, (None,)),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0},
            (4096,),
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
            | {"num_hidden_layers": 2},
            (None, 8),
        ),
    ],
)
def test_windows_are_those_that_transformers_would_give_the_layers(
    given: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert layer_windows(Fields(source="a head", values=given)) == windows


NAMES = {
    "mtp.pre_fc_norm_embedding.": "token_layernorm.",
    "mtp.pre_fc_norm_hidden.": "hidden_layernorm.",
    "mtp.fc.": "input_proj.",
    "mtp.norm.": "final_layernorm.",
    "mtp.layers.0.": "",
}


def as_speculators(checkpoint: Checkpoint) -> Checkpoint:
    """A Qwen family's MTP layer as speculators writes it: other names, stacked experts."""
    layer = {**checkpoint.config, "model_type": f"{checkpoint.config['model_type']}_text"}
    renamed = {old: f"mtp_layers.0.{new}" for old, new in NAMES.items()}
    tensors = dict(checkpoint.renamed(renamed).tensors)
    experts = [name for name in tensors if ".experts." in name]
    if experts:
        at, count = experts[0].split(".experts.")[0] + ".experts.", len(experts) // 3
        parts = [[tensors.pop(f"{at}{e}.{p}_proj.weight") for p in ("gate", "up", "down")]
                 for e in range(count)]  # fmt: skip
        tensors[f"{at}gate_up_proj"] = torch.stack([torch.cat(part[:2]) for part in parts])
        tensors[f"{at}down_proj"] = torch.stack([part[2] for part in parts])
    config = {"speculators_model_type": "mtp", "transformer_layer_config": layer}
    return replace(checkpoint, config={**config, "num_nextn_predict_layers": 1}, tensors=tensors)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_mtp_layers_in_the_names_of_speculators_are_those_of_the_family(family: str) -> None:
    head = checkpoint_for(family, family_of(family).config)
    target = StockRunner(dense_target())
    first, other = (MtpHead(each, target) for each in (head, as_speculators(head)))

    states = first.module.state_dict()
    assert states.keys() == other.module.state_dict().keys()
    for name, tensor in other.module.state_dict().items():
        assert torch.equal(tensor, states[name]), name


def test_mtp_layers_of_a_family_that_speculators_does_not_have_are_refused_by_name() -> None:
    head = as_speculators(checkpoint_for("qwen3_5", family_of("qwen3_5").config))
    layer = {**head.config["transformer_layer_config"], "model_type": "llama"}
    with pytest.raises(ModelError, match=r"llama.*qwen3, qwen3_n"):
        MtpHead(with_config(head, transformer_layer_config=layer), StockRunner(dense_target()))
