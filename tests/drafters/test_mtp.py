"""MTP layers: every family's layout against a plain implementation, and layers beyond the first.

Shape suffixes: T tokens, F hidden size, V vocabulary, K drafts.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, modeling_utils
from transformers.integrations import hub_kernels

from specbench.decode.round import run_round
from specbench.decode.sampling import Sampler
from specbench.drafters.mtp import Mtp, MtpHead, _is_same
from specbench.errors import ModelError
from specbench.files import mtp
from specbench.forward.attention import stock
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, parts_of
from tests.decoding.models import build, generated, random_prompt
from tests.drafters.changed_heads import with_config, with_tensors
from tests.drafters.feature_cases import (
    GREEDY,
    SPAN,
    Guide,
    Recorder,
    assert_chains,
    num_kept,
    prefilled,
    run_rounds,
)
from tests.drafters.mtp_families import (
    PlainLayer,
    PlainMtp,
    checkpoint_for,
    dense_target,
    family_of,
)

ROLLED_BACK = ("deepseek_v3", "glm4_moe", "mimo")
FAMILIES = (*ROLLED_BACK, "qwen3_next", "qwen3_5", "qwen3_5_moe")
T = 12
TOKENS_T = torch.tensor(random_prompt(T, seed=1, vocab_size=61))
PLACES_1T = torch.arange(T)[None]
PROMPTS = [random_prompt(n, seed=n, vocab_size=61) for n in (11, 5, 8)]


@torch.no_grad()
def check_layout(name: str, *, tolerance: float = 2e-4) -> None:
    """AssertionError if the head's states or logits are not those of the plain implementation."""
    family = family_of(name)
    checkpoint, model = checkpoint_for(name, family.config), dense_target()
    plain = PlainLayer(family, checkpoint.tensors, model)
    states_TF = torch.randn(T, 32, generator=torch.Generator().manual_seed(5))
    expected = plain(TOKENS_T, states_TF)
    head = MtpHead(checkpoint, StockRunner(model))
    head.layers.allocate(1, 64)

    made_1TF = head.step(TOKENS_T[None], states_TF[None], PLACES_1T, 64)

    assert float((made_1TF[0] - expected[0]).abs().max()) < tolerance, "the state that goes on"
    worst = float((head.logits(made_1TF)[0] - expected[1]).abs().max())
    assert worst < tolerance * float(expected[1].abs().max()), "the logits"


@pytest.mark.parametrize("name", FAMILIES)
def test_an_mtp_layer_equals_the_reference_in_every_family(name: str) -> None:
    check_layout(name)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("fault", ["is_state_first", "recycles_normed"])
def test_the_layout_check_fails_for_another_order_or_another_state(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = mtp.FAMILIES[name]
    wrong = replace(right, **{fault: not getattr(right, fault)})
    monkeypatch.setitem(mtp.FAMILIES, name, wrong)

    with pytest.raises(AssertionError, match="the state that goes on"):
        check_layout(name)


@pytest.mark.sampled(one_in=2, every=["name", "k"])
@pytest.mark.slow
@pytest.mark.parametrize("name", ROLLED_BACK)
@pytest.mark.parametrize("k", [1, 3])
def test_text_with_mtp_drafts_equals_generate_in_every_family(name: str, k: int) -> None:
    config = family_of(name).config
    model = build(config)
    texts = [generated(model, prompt, 16) for prompt in PROMPTS]
    target = StockRunner(model)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint_for(name, config)))

    requests = [Request(prompt_ids=prompt, max_new_tokens=16) for prompt in PROMPTS]
    results = decode(target, drafter, requests, k=k, prefill_chunk=4)

    assert_texts(results, texts)
    assert acceptance_rate(results) < 1


class Subject(NamedTuple):
    """A target of a family with MTP layers, and its plain reference."""

    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainMtp
    texts: list[tuple[int, ...]]


@cache
def subject(name: str, num_layers: int) -> Subject:
    config = family_of(name).config
    model = build(config)
    texts = [(*prompt, *generated(model, prompt, 48)) for prompt in PROMPTS]
    checkpoint = checkpoint_for(name, config, num_layers=num_layers)
    layers = [PlainLayer(family_of(name, i), checkpoint.tensors, model) for i in range(num_layers)]
    target = StockRunner(build(family_of(name).config))  # the config is changed by a runner
    return Subject(target, checkpoint, PlainMtp(layers, model), texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_layers", "ks"),
    [
        ("deepseek_v3", 1, [4, 4, 0, 3, 0, 0, 4, 1, 4, 4, 4]),
        ("mimo", 1, [4, 4, 0, 3, 0, 0, 4, 1, 4, 4, 4]),
        ("mimo", 3, [3, 3, 0, 3, 0, 0, 3, 1, 3, 2, 3]),
        ("deepseek_v3", 2, [2, 2, 0, 2, 0, 0, 2, 1, 2, 2, 2]),
    ],
)
def test_mtp_drafts_equal_the_reference_for_any_acceptance(
    name: str, num_layers: int, ks: list[int]
) -> None:
    """Prefilled in chunks of 4, with some rounds without drafts."""
    target, checkpoint, plain, texts = subject(name, num_layers)
    watched = Recorder(Mtp(parts_of(target, checkpoint=checkpoint)))

    ends = run_rounds(target, Guide(watched, texts), PROMPTS, ks, prefill_chunk=4)

    for end, text in zip(ends, texts, strict=True):
        assert end == text[: len(end)]
    assert set(num_kept(ends, watched.seen)) >= set(range(max(ks) + 1))
    assert_chains(plain, watched.seen)


def test_a_moved_row_keeps_its_hidden_states() -> None:
    target, checkpoint, plain, _ = subject("mimo", 3)
    watched = Recorder(Mtp(parts_of(target, checkpoint=checkpoint)))
    rows = prefilled(target, watched, PROMPTS)

    with torch.no_grad():
        rows.move_row(2, 0, len(PROMPTS[2]))
        watched.propose(rows.state.rows(0, 1), 3, SPAN, Sampler(GREEDY))

    assert watched.seen[0].text[:-1] == PROMPTS[2]
    assert_chains(plain, watched.seen)


def test_a_row_without_new_tokens_keeps_its_states() -> None:
    target, checkpoint, _, _ = subject("mimo", 3)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint))
    rows = prefilled(target, drafter, PROMPTS)
    rows.state.budget_B[1] = 0
    before_RF = drafter.buffers[1].clone()

    with torch.no_grad():
        run_round(target, drafter, rows.state, Sampler(GREEDY), k=3, span=SPAN)

    changed_R = (drafter.buffers[1] != before_RF).any(-1)
    assert changed_R.tolist() == [True, False, True]


def test_mtp_drafts_of_one_token_prompts_leave_the_text_unchanged() -> None:
    target, checkpoint, _, texts = subject("mimo", 3)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint))
    model = build(family_of("mimo").config)
    prompts = [texts[0][:1], texts[1]]
    expected = [generated(model, prompt, 20) for prompt in prompts]

    requests = [Request(prompt_ids=prompt, max_new_tokens=20) for prompt in prompts]
    results = decode(target, drafter, requests, k=8)

    assert_texts(results, expected)


def test_other_tensors_of_the_targets_files_are_not_read() -> None:
    """Only names are read from them: a target's files may be larger than the memory."""
    checkpoint = checkpoint_for("mimo", family_of("mimo").config)

    class Files(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            assert "mtp" in name, f"{name} was read"
            return super().__getitem__(name)

    extra = {
        "model.layers.0.mlp.up_proj.weight": torch.zeros(1),
        "model.norm.weight": torch.ones(1),
    }
    MtpHead(replace(checkpoint, tensors=Files({**checkpoint.tensors, **extra})), target_of("mimo"))


def target_of(name: str) -> StockRunner:
    return StockRunner(build(family_of(name).config))


AT = "model.mtp_layers.0."

WRONG: dict[str, tuple[dict[str, Any], dict[str, Tensor | None], str]] = {
    "another width": ({"hidden_size": 64}, {}, "hidden_size is 64, the target's is 32"),
    "another depth": ({"num_hidden_layers": 9}, {}, "num_hidden_layers is 9, the target's is 2"),
    "another vocabulary": ({"vocab_size": 60}, {}, "vocab_size is 60, the target's is 61"),
    "another family": (
        {"model_type": "llama"},
        {},
        "model type llama .* deepseek_v3, glm4_moe",
    ),
    "no layers by its config": ({"num_nextn_predict_layers": 0}, {}, "has no MTP layers"),
    "fewer layers": (
        {"num_nextn_predict_layers": 2},
        {},
        r"missing: model\.mtp_layers\.1\.final_layernorm",
    ),
    "a tensor less": (
        {},
        {f"{AT}input_proj.weight": None},
        r"missing: .*\.0\.input_proj\.weight",
    ),
    "a tensor more": (
        {},
        {f"{AT}gate.weight": torch.ones(1)},
        r"unknown: model\.mtp_layers\.0\.gate\.weight",
    ),
    "another shape": (
        {},
        {f"{AT}input_proj.weight": torch.ones(32, 32)},
        r"0\.input_proj\.weight is \(32, 32\)",
    ),
    "quantized": ({}, {f"{AT}mlp.up_proj.weight_scale_inv": torch.ones(1)}, "stored quantized"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_head_that_does_not_fit_is_refused_with_what_differs(fault: str) -> None:
    fields, tensors, message = WRONG[fault]
    right = checkpoint_for("mimo", family_of("mimo").config)
    wrong = with_config(with_tensors(right, **tensors), **fields)

    with pytest.raises(ModelError, match=message):
        Mtp(parts_of(target_of("mimo"), checkpoint=wrong))


def test_files_that_lost_their_mtp_layers_are_refused_with_what_to_do() -> None:
    right = checkpoint_for("glm4_moe", family_of("glm4_moe").config)
    saved = replace(right, tensors={"model.norm.weight": torch.ones(32)})

    with pytest.raises(ModelError, match=r"model\.layers\.2"):
        Mtp(parts_of(target_of("glm4_moe"), checkpoint=saved))


IMPLEMENTATIONS = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
)


@pytest.mark.parametrize("name", ["mimo", "deepseek_v3", "glm4_moe"])
def test_a_kernel_named_in_a_config_is_not_downloaded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would download and import the repository that a config names."""
    calls: list[object] = []

    def fetch(*arguments: object, **options: object) -> None:
        calls.append((arguments, options))
        raise AssertionError(f"a kernel was asked for: {arguments}")

    for module in (hub_kernels, modeling_utils):
        for loader in ("load_and_register_attn_kernel", "lazy_load_kernel", "get_kernel"):
            monkeypatch.setattr(module, loader, fetch, raising=False)
    target, checkpoint = target_of(name), checkpoint_for(name, family_of(name).config)
    before = MtpHead(checkpoint, target)
    kernel = f"someone/{name}"  # transformers 5.17 asks for each once in a process
    config = {**dict.fromkeys(IMPLEMENTATIONS, kernel), "auto_map": {"AutoModel": "own.Own"}}
    named = MtpHead(with_config(checkpoint, **config), target)

    assert not calls
    block: Any = named.layers.layers[0]
    assert block.self_attn.config._attn_implementation == stock.NAME
    assert [w.shape for w in named.weights] == [w.shape for w in before.weights]
    evil = AutoConfig.for_model("qwen2", attn_implementation=kernel)
    with torch.device("meta"), pytest.raises(AssertionError, match="a kernel was asked for"):
        AutoModel.from_config(evil)  # what the files' own config would have led to


@pytest.mark.parametrize("is_stored", [True, False], ids=["in its files", "in the model alone"])
def test_a_head_that_is_the_targets_own_is_not_kept_twice(is_stored: bool) -> None:
    """A target whose files name its head differently, or tie it, has it only in the model."""
    config = family_of("glm4_moe").config
    model = build(config)
    made = checkpoint_for("glm4_moe", config)
    name = "model.layers.2.shared_head.head.weight"
    head_VF = model.get_output_embeddings().weight.data.clone()
    tensors = {**made.tensors, name: head_VF}
    if is_stored:
        tensors["lm_head.weight"] = head_VF.clone()
    else:
        tensors.pop("lm_head.weight", None)
    same = MtpHead(replace(made, tensors=tensors), StockRunner(model))
    other = MtpHead(replace(made, tensors={**tensors, name: head_VF + 1}), StockRunner(model))
    sizes = [sum(weight.numel() for weight in head.weights) for head in (other, same)]
    assert sizes[0] - sizes[1] == head_VF.numel()


def test_only_a_plain_tensor_of_the_same_numbers_and_dtype_is_a_copy() -> None:
    class Packed(torch.Tensor):
        pass

    ones = torch.ones(2, 3)
    assert _is_same(ones, ones.clone())
    assert _is_same(ones, torch.nn.Parameter(ones.clone()))
    different = (None, ones + 1, ones[:1], ones.bfloat16(), ones.clone().as_subclass(Packed))
    assert not any(_is_same(ones, other) for other in different)
