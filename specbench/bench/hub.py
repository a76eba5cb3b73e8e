"""Downloads missing models from the hub, and warns of the size first."""

from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any, cast
from urllib.parse import urlsplit

from huggingface_hub import constants, get_session, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
from tqdm.auto import tqdm

from specbench.errors import UsageError, first_line
from specbench.files.hub_facts import HubFacts, gated_advice, hub_facts
from specbench.files.model import has_weights, is_here
from specbench.files.model_spec import ModelSpec
from specbench.fit.demand import gib
from specbench.models.library_output import report_progress

PATIENCE_S = 5.0  # for the hub's response
# The base class of the hub's errors depends on its HTTP client, which differs by release.
# ValueError is for an invalid address.
_UNREACHABLE = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, ValueError))


def download_missing(
    models: Iterable[ModelSpec], warn: Callable[[str], None], *, weights: bool = True
) -> None:
    """Download missing models, with their weights if `weights`, after a warning with the size.

    If the hub cannot be reached, warn and go offline, so that loading a missing model fails
    immediately instead of retrying for minutes. A failed download is only a warning: loading the
    model then fails.
    """
    is_present = has_weights if weights else is_here
    hub_models = {(spec.source, spec.revision): spec for spec in models if spec.folder is None}
    missing = [spec for spec in hub_models.values() if not is_present(spec)]
    if not missing or constants.is_offline_mode():
        return
    names = ", ".join(spec.source for spec in missing)
    if not _is_reachable():
        warn(f"{names}: not on this machine, and {constants.ENDPOINT} cannot be reached")
        constants.HF_HUB_OFFLINE = True
        return
    downloads = {}
    for spec in missing:
        try:
            facts = hub_facts(spec.source, spec.revision)
        except UsageError as error:
            facts = HubFacts(source=spec.source, problem=first_line(error))
        if facts.problem:
            warn(f"{spec.source}: {facts.problem}")
            continue
        files = facts.files_to_load(weights=weights, code=spec.trust_remote_code)
        downloads[spec] = {
            name: size
            for name, size in files.items()
            if not isinstance(
                try_to_load_from_cache(spec.source, name, revision=facts.revision), str
            )
        }
    if downloads:
        sizes = {spec.source: sum(files.values()) for spec, files in downloads.items()}
        shown = ", ".join(f"{source} ({gib(size)})" for source, size in sizes.items())
        total = f", {gib(sum(sizes.values()))} in all" if len(sizes) > 1 else ""
        warn(f"not on this machine yet, downloading: {shown}{total}")
    for spec, files in downloads.items():
        try:
            _download(spec, files)
        except GatedRepoError:
            warn(f"{spec.source}: {gated_advice(spec.source)}")
        except Exception as error:  # from the connection, the disk or the client
            warn(f"{spec.source}: the download failed: {first_line(error)}")
    report_progress("")


def _download(spec: ModelSpec, files: dict[str, int]) -> None:
    """Download files, given with their sizes, and report the progress in bytes."""
    num_bytes, shown = sum(files.values()), f"downloading {spec.source}"
    report_progress(f"{shown}: {gib(0)} of {gib(num_bytes)}")

    class Bar(tqdm):  # type: ignore[misc]  # untyped
        """Reports bytes instead of drawing: the client has two bars of bytes and one of files."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": StringIO(), "disable": False})

        def display(self, *_: object, **__: object) -> bool:
            if self.unit == "B" and self.n:
                report_progress(f"{shown}: {gib(min(self.n, num_bytes))} of {gib(num_bytes)}")
            return True

    snapshot_download(
        spec.source, revision=spec.revision, allow_patterns=list(files), tqdm_class=Bar
    )


def _is_reachable() -> bool:
    """Whether the hub responds at all, even with an error."""
    try:
        _ = urlsplit(constants.ENDPOINT).port
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S)
    except _UNREACHABLE:
        return False
    return True
