"""MTP layers as students: pass i trains layer i; a single layer goes on from its own states.

Shape suffixes: B rows, T tokens, F the head's states.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from specbench.drafters.heads.feature_drafter import FeatureHead
from specbench.drafters.heads.mtp import MtpHead
from specbench.drafters.heads.mtp_layouts import split_experts
from specbench.forward.runner import Runner
from specbench.model_files.mtp_families import file_name
from specbench.models.checkpoint import Checkpoint
from specbench.training.chain_student import ChainStudent
from specbench.training.student import Agreement
from specbench.training.teacher import Lesson


class MtpStudent(ChainStudent):
    """As DeepSeek-AI 2024 (arXiv:2412.19437), 2.2, beside a target that stays as it is."""

    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """To the depth of the layers: of several, drafts deeper than that are not trained."""
        layers = self._mtp.num_layers
        return super().agreement(lesson, depth if layers == 1 else min(depth, layers))

    def _open(self, checkpoint: Checkpoint, target: Runner) -> tuple[FeatureHead, nn.Module]:
        self._mtp = MtpHead(checkpoint, target)
        return self._mtp, self._mtp.modules

    def _files(self, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        files: dict[str, Tensor] = {}
        for name, tensor in trained.items():
            files |= split_experts(file_name(self._initial, name), tensor)
        return files

    def _logits(self, states_BTF: Tensor, depth: int) -> Tensor:
        return self._mtp.logits(states_BTF, depth)
