"""Medusa's heads in every layout that their files come in; what does not fit is named.

Shape suffixes: H heads, B rows, F hidden size, V vocabulary.
"""

import weakref
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from specbench.drafters.medusa import MedusaHeads
from specbench.errors import ModelError
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request
from tests.decoding.lossless import decode
from tests.drafters.test_medusa import NUM_HEADS, Watched, drafter_of, heads, target


def as_vllm(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    layers = {
        f"blocks.{i}.layers.0.{kind}": own[f"{i}.0.linear.{kind}"]
        for i in range(NUM_HEADS)
        for kind in ("weight", "bias")
    }
    return layers | {f"lm_heads.{i}.weight": own[f"{i}.1.weight"] for i in range(NUM_HEADS)}


def logits_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """Of all heads for three states [H, 3, V]."""
    checkpoint = Checkpoint(source="heads", config={"medusa_num_heads": 2}, tensors=tensors)
    states_BF = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    found = MedusaHeads(checkpoint, target())
    return found.logits(states_BF, found.num_heads)


def test_medusa_heads_of_every_layout_are_read_from_their_tensors() -> None:
    own = heads().tensors
    wanted = logits_of(own)
    assert len(wanted) == NUM_HEADS, "the config says 2"
    within = {f"medusa_head.{name}": tensor for name, tensor in own.items()}
    whole = within | {"model.embed_tokens.weight": torch.zeros(3, 3)}
    prefixed = {f"medusa_heads.{name}": tensor for name, tensor in as_vllm(own).items()}

    for tensors in (whole, as_vllm(own), prefixed):
        torch.testing.assert_close(logits_of(tensors), wanted, rtol=0, atol=0)


class OneByOne(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for; how many were held when another was."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._read: list[weakref.ref[Tensor]] = []
        self.most_held = 0

    def __getitem__(self, name: str) -> Tensor:
        self.most_held = max(self.most_held, sum(read() is not None for read in self._read))
        tensor = self._tensors[name].clone()
        self._read.append(weakref.ref(tensor))
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def test_tensors_are_read_one_by_one() -> None:
    own = heads().tensors
    files = OneByOne(own)
    torch.testing.assert_close(logits_of(files), logits_of(own), rtol=0, atol=0)
    assert files.most_held == 0


def test_layers_without_a_bias_add_none() -> None:
    own = heads().tensors
    bare = {name: tensor for name, tensor in own.items() if "bias" not in name}
    zero = {name: tensor * ("bias" not in name) for name, tensor in own.items()}
    torch.testing.assert_close(logits_of(bare), logits_of(zero))


def test_medusa_heads_may_share_one_output_matrix() -> None:
    own = dict(heads().tensors)
    shared = {name: tensor for name, tensor in as_vllm(own).items() if "lm_heads" not in name}
    own |= {f"{i}.1.weight": own["0.1.weight"] for i in range(NUM_HEADS)}
    shared["lm_head.weight"] = own["0.1.weight"]
    torch.testing.assert_close(logits_of(shared), logits_of(own))


def test_medusa_heads_of_a_reduced_vocabulary_draft_target_ids() -> None:
    few = torch.tensor([90, 3, 41, 7])
    own = as_vllm(heads().tensors)
    few_rows = {name: t[few] if "lm_head" in name else t for name, t in own.items()}
    checkpoint = Checkpoint(source="few", config={}, tensors=few_rows | {"token_map": few})
    drafter = drafter_of(checkpoint)

    watched = Watched(drafter)
    decode(target(), watched, [Request(prompt_ids=(5, 6, 7), max_new_tokens=12)], k=4)

    assert {token for _, tokens in watched.seen for token in tokens} <= set(few.tolist())
    assert drafter.num_drafts(1) == 4, "no more ranks than there are tokens"


SMALL = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"1.0.linear.weight": None}, "missing: 1.0.linear.weight"),
        ({"1.0.linear.bias": None}, "missing: 1.0.linear.bias"),
        ({"7.1.weight": SMALL}, "not known: 7.1.weight"),
        ({"0.1.weight": SMALL}, "vocab_size is 2, the target's is 97"),
        ({"900.0.linear.weight": SMALL}, "missing: 5.0.linear.bias, 5.0.linear.weight, 5.1.weight"),
        ({"token_map": torch.tensor([1, 97])}, "token_map names the id 97; the target has 97"),
        ({"token_map": torch.tensor([-1, 5])}, "token_map names the id -1"),
        ({"token_map": torch.tensor([0.5])}, "token_map has to hold whole numbers"),
    ],
)
def test_heads_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Tensor | None], complaint: str
) -> None:
    tensors = {**heads().tensors, **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(ModelError, match=complaint):
        drafter_of(Checkpoint(source="heads", config={}, tensors=kept))


def test_files_without_any_head_are_refused() -> None:
    with pytest.raises(ModelError, match=r"other.*Medusa"):
        drafter_of(Checkpoint(source="other", config={}, tensors={"fc.weight": SMALL}))
