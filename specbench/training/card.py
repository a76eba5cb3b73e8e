"""The training card: what a head was made from, how, and how well it drafts."""

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specbench.models.loading import LoadedModel
from specbench.probes.environment import cpu_model, git_commit, package_versions, program_name
from specbench.shipped import PACKAGE
from specbench.training.acceptance import Acceptance
from specbench.training.progress import Progress
from specbench.training.texts import Text

if TYPE_CHECKING:
    from specbench.training.settings import TrainSettings


def training_card(
    settings: "TrainSettings",
    command: Sequence[str],
    *,
    loaded: LoadedModel,
    progress: Progress,
    acceptance: Acceptance,
    texts: Sequence[Text],
    sources: Mapping[str, str],
    num_parameters: int,
    device: torch.device,
    seconds: float,
    weights_sha256: str,
) -> dict[str, Any]:
    """Plain values, as training.json has them. No host, user or folder names of its own."""
    return {
        "method": settings.method,
        "command": [program_name(command[0]), *command[1:]],
        "target": {
            "source": settings.target.source,
            "sha256": loaded.content_sha256,
            "dtype": loaded.dtype,
        },
        "head": {
            "parameters": num_parameters,
            "sha256": weights_sha256,
            "stored_as": "bfloat16",
        },
        "texts": {
            "sources": dict(sources),
            "temperatures": list(settings.temperatures),
            "count": len(texts),
            "held_out": sum(text.is_held_out for text in texts),
            "answer_tokens": sum(len(text.ids) - text.num_prompt for text in texts),
        },
        "training": {
            **settings.asked,
            "steps": progress.steps,
            "answer_tokens": progress.tokens,
            "losses_per_100_steps": [round(loss, 4) for loss in progress.losses],
            "seconds": round(progress.seconds, 1),
        },
        "held_out": {
            "acceptance_per_position": list(acceptance.per_position),
            "mean_length_of_the_chain": round(acceptance.mean_length, 4),
            "contexts": acceptance.contexts,
            "text": "greedy answers to prompts that were not trained on",
        },
        "seconds": round(seconds, 1),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "commit": git_commit(PACKAGE),
    }
