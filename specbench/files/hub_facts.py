"""Facts about a model on the hub from one request, without a download."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from specbench.errors import UsageError
from specbench.files.headers import HEAD_WEIGHTS

PATIENCE_S = 10.0
_SMALL_FILES = (".json", ".jinja", ".model", ".tiktoken", ".txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFacts:
    """A model on the hub; None: not stated by the hub."""

    source: str
    revision: str | None = None  # the commit of the requested revision, else of the newest
    license: str | None = None
    is_gated: bool = False
    weight_bytes: int | None = None  # of its safetensors files, as stored
    problem: str | None = None  # why the other fields are unknown
    sizes: Mapping[str, int | None] = field(default_factory=dict, compare=False)  # bytes by file

    def files_to_load(self, *, weights: bool, code: bool) -> dict[str, int]:
        """Bytes of each file that loading reads: config, tokenizer, and the selected kinds."""
        kinds = (*_SMALL_FILES, ".py") if code else _SMALL_FILES
        chosen = {n: s for n, s in self.sizes.items() if "/" not in n and n.endswith(kinds)}
        if weights:
            pickle = next((name for name in HEAD_WEIGHTS if name in self.sizes), "")
            chosen |= _weight_files(self.sizes) or {n: self.sizes[n] for n in [pickle] if n}
        return {name: size or 0 for name, size in chosen.items()}


def hub_facts(source: str, revision: str | None) -> HubFacts:
    """Request the facts about a model; UsageError if the hub cannot be reached."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 - half a second
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if constants.is_offline_mode():
        raise UsageError("--check-hub needs the hub, but HF_HUB_OFFLINE is set; unset it")
    # The base class of the hub's errors depends on its HTTP client, which differs by release.
    unreachable = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, ValueError))
    try:
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            source, revision=revision, timeout=PATIENCE_S, files_metadata=True
        )
    except RevisionNotFoundError:
        return HubFacts(source=source, problem=f"has no revision {revision}")
    except GatedRepoError:
        return HubFacts(source=source, is_gated=True, problem=gated_advice(source))
    except RepositoryNotFoundError:
        return HubFacts(source=source, problem="not on the hub, or private")
    except unreachable as error:
        raise UsageError(
            f"--check-hub: no response from {constants.ENDPOINT} for {source}: {error}"
        ) from error
    card = info.card_data
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    weights = _weight_files(sizes)
    return HubFacts(
        source=source,
        revision=info.sha,
        license=card.get("license_name") or card.get("license") if card else None,
        is_gated=bool(info.gated),
        weight_bytes=sum(filter(None, weights.values()))
        if weights and all(weights.values())
        else None,
        sizes=sizes,
    )


def gated_advice(source: str) -> str:
    """Advice on how to get access to a model whose license must be accepted on its page."""
    from huggingface_hub import constants  # noqa: PLC0415 - half a second

    return f"gated: accept its license at {constants.ENDPOINT}/{source}, then run `hf auth login`"


def _weight_files(sizes: Mapping[str, int | None]) -> dict[str, int | None]:
    """Sizes of `model*.safetensors`, else of all such files in the top folder."""
    every = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    top = {name: size for name, size in every.items() if "/" not in name}
    return {name: size for name, size in top.items() if name.startswith("model")} or top
