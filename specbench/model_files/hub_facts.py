"""What the hub says of a model before anything of it is downloaded: one look, no files."""

from dataclasses import dataclass
from typing import cast

from specbench.errors import UsageError

PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFacts:
    """One model there; None: the hub does not say."""

    source: str
    revision: str | None = None  # the commit that the entry's revision, or the newest, is now
    licence: str | None = None
    is_gated: bool = False
    weight_bytes: int | None = None  # of its safetensors files, as stored
    problem: str | None = None  # why there is nothing else


def hub_facts(source: str, revision: str | None) -> HubFacts:
    """The hub's word on a model; UsageError where the hub itself cannot be asked."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 - half a second
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if constants.is_offline_mode():
        raise UsageError("--check-hub asks the hub, and HF_HUB_OFFLINE forbids it; unset it")
    # The hub's error derives from that of the HTTP client it uses, another one by release.
    unreachable = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, ValueError))
    try:
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            source, revision=revision, timeout=PATIENCE_S, files_metadata=True
        )
    except RevisionNotFoundError:
        return HubFacts(source=source, problem=f"has no revision {revision}")
    except GatedRepoError:
        return HubFacts(source=source, is_gated=True, problem="gated: accept its licence first")
    except RepositoryNotFoundError:
        return HubFacts(source=source, problem="not on the hub, or private")
    except unreachable as error:
        raise UsageError(f"{constants.ENDPOINT} cannot be asked of {source}: {error}") from error
    card = info.card_data
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    return HubFacts(
        source=source,
        revision=info.sha,
        licence=card.get("license_name") or card.get("license") if card else None,
        is_gated=bool(info.gated),
        weight_bytes=_weight_bytes(sizes),
    )


def _weight_bytes(sizes: dict[str, int | None]) -> int | None:
    """Those of `model*.safetensors`, else of any at the top; a repository may have both."""
    every = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    top = {name: size for name, size in every.items() if "/" not in name}
    own = {name: size for name, size in top.items() if name.startswith("model")} or top
    return sum(cast("int", size) for size in own.values()) if own and all(own.values()) else None
