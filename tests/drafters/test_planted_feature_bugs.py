"""Each bug planted here is found by one of the checks of EAGLE's drafts."""

from collections.abc import Callable
from typing import Any

import pytest

from specbench.decode import growth
from specbench.decode import round as one_round
from specbench.drafters import eagle3
from specbench.drafters.eagle import EagleHead, JoiningHead
from specbench.drafters.shared import feature_drafter
from specbench.drafters.shared.feature_drafter import FeatureDrafter, TreePlan
from specbench.errors import ModelError
from specbench.files.head_files import token_ids
from specbench.topology import EAGLE_STATIC
from tests.decoding.conftest import Plant
from tests.drafters.feature_cases import (
    BEAM,
    assert_chains,
    assert_dynamic_trees,
    assert_static_trees,
    subject,
)

pytestmark = pytest.mark.slow

Check = Callable[[str], None]


def chains(method: str) -> None:
    case = subject(method)
    assert_chains(case.plain, case.rounds([4] * 6, tree="chain")[0])


def static_trees(method: str) -> None:
    case = subject(method)
    assert_static_trees(case.plain, EAGLE_STATIC.cut(3), case.rounds([3] * 6, tree="static")[0])


def dynamic_trees(method: str) -> None:
    case = subject(method)
    assert_dynamic_trees(case.plain, 3, 4, 8, case.rounds([4] * 6, tree="dynamic", **BEAM)[0])


def deep_beams(method: str) -> None:
    case = subject(method)
    assert_dynamic_trees(case.plain, 5, 6, 2, case.deep_beams())


# Sound heads pass in test_feature_drafter.py.
# Bug: (what finds it, of which head, function, right, wrong).
BUGS: dict[str, tuple[Check, str, Any, str, str]] = {
    "a prompt's token is taken for the one after it": (
        chains,
        "eagle",
        FeatureDrafter.prefill,
        "chunk.following_BT",
        "chunk.tokens_BT",
    ),
    "a kept token is taken for the one after it": (
        chains,
        "eagle3",
        FeatureDrafter.observe,
        "outcome.following_BT",
        "outcome.following_BT.roll(1, 1)",
    ),
    "drafts are one position too far": (
        chains,
        "eagle",
        FeatureDrafter.propose,
        "step(tokens_B1, positions_B1 - 1, None)",
        "step(tokens_B1, positions_B1, None)",
    ),
    "the state kept is that of the last draft, not of the last token kept": (
        chains,
        "eagle3",
        FeatureDrafter.observe,
        "outcome.keep_last(states_BTF, state.rows_of(self._last_RF))",
        "state.rows_of(self._last_RF).copy_(states_BTF[:, -1])",
    ),
    "the first layer norms its input": (
        chains,
        "eagle",
        EagleHead.__init__,
        "self.layers = layer",
        "self._weights.layers[0].input_layernorm = nn.RMSNorm(config.hidden_size)\n"
        "    self.layers = layer",
    ),
    "the token's embedding comes after the state": (
        chains,
        "eagle",
        EagleHead._enter,
        "[embedded_BTF, states_BTF]",
        "[states_BTF, embedded_BTF]",
    ),
    "differences to the target's ids are taken for ids": (
        chains,
        "eagle3",
        token_ids,
        "[i + offset for i, offset in enumerate(d2t)]",
        "list(d2t)",
    ),
    "the head's own states are fused once more": (
        chains,
        "eagle3",
        JoiningHead.step,
        "(self._embed(tokens_BT), states_BTF)",
        "(self._embed(tokens_BT), self.fuse((states_BTF,) * 3) if depth else states_BTF)",
    ),
    "the head's own states are fed back with their norm": (
        chains,
        "eagle3",
        JoiningHead.step,
        "self._leave(states_BTF)",
        "self._weights.norm(states_BTF) if depth else states_BTF",
    ),
    "the state is added with its norm": (
        chains,
        "eagle3",
        eagle3._FusingLayer.enter,
        "if self._norm_before_residual",
        "if True",
    ),
    "a branch sees the slot of the current token, which holds a rejected draft": (
        static_trees,
        "eagle",
        feature_drafter._one_back,
        "fill_(False)",
        "fill_(True)",
    ),
    "a branch sees the node before each that it should": (
        static_trees,
        "eagle3",
        growth.grow_static,
        "whole.seen_BNN[:, nodes_I]",
        "whole.seen_BNN[:, nodes_I].roll(-1, 2)",
    ),
    "a node goes on from the state of another parent": (
        static_trees,
        "eagle",
        growth.grow_static,
        "level.parents_W[level.inner_I].expand(B, -1)",
        "torch.zeros_like(level.parents_W[level.inner_I]).expand(B, -1)",
    ),
    "a node of a beam does not see itself": (
        dynamic_trees,
        "eagle",
        growth.grow_dynamic,
        "== slots_W[:, None])",
        "== slots_W[:, None] - 1)",
    ),
    "a node of a beam sees the ancestors of another": (
        dynamic_trees,
        "eagle3",
        growth.grow_dynamic,
        "seen_BWM.gather(1, parents_BW[..., None].expand(-1, -1, num_seen))",
        "seen_BWM",
    ),
    "a beam adds up nothing": (
        dynamic_trees,
        "eagle3",
        growth.grow_dynamic,
        "scores_BW[..., None] + children.values",
        "children.values",
    ),
    "a beam writes into the next row": (
        deep_beams,
        "eagle3",
        TreePlan.spare_slots,
        "return max(num_dynamic_slots(k, self.top_k) - self.num_drafts(k), 0)",
        "return 0",
    ),
    "a draft that is certain comes before the one it follows": (
        deep_beams,
        "eagle",
        growth._ranked,
        "- _STEP_DOWN",
        "+ _STEP_DOWN",
    ),
    "the kept branch's states stay where its nodes were": (
        static_trees,
        "eagle3",
        one_round.finish_round,
        "_gather_path(verdict.path_BT, feature) for feature in features",
        "feature[:, :T] for feature in features",
    ),
    "the kept branch's slots stay where its nodes were": (
        dynamic_trees,
        "eagle",
        one_round.finish_round,
        "target.move_slots(sources_BT, positions_BT[:, 1:], state.first_row)",
        "pass",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fails_the_draft_check(bug: str, plant: Plant) -> None:
    check, method, function, right, wrong = BUGS[bug]
    plant(function, right, wrong)

    with pytest.raises((AssertionError, IndexError, RuntimeError, ModelError)):
        check(method)
