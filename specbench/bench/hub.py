"""Models of the hub that are not on this machine: one short look whether they can be had."""

from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError

from specbench.inputs.pairing import Pairing
from specbench.model_files.model import is_here

PATIENCE_S = 5.0  # a hub that answers at all answers sooner
# The hub's error derives from that of the HTTP client it uses, which is another one by release.
# ValueError is for what is no address at all.
_UNREACHABLE = cast("tuple[type[Exception], ...]", (*HfHubHTTPError.__bases__, ValueError))


def look_for_hub(pairings: Sequence[Pairing], warn: Callable[[str], None]) -> None:
    """Say what will be downloaded; where the hub cannot be reached, say so and go offline.

    Offline means that loading fails at once for what is not here, in place of retrying for
    minutes what one try has shown; what is here loads as ever.
    """
    specs = [spec for pairing in pairings for spec in pairing.models]
    of_hub = {(spec.source, spec.revision): spec for spec in specs if spec.folder is None}
    missing = [spec.source for spec in of_hub.values() if not is_here(spec)]
    if not missing or constants.is_offline_mode():
        return
    names = ", ".join(missing)
    if _is_reachable():
        warn(f"not on this machine yet, downloading: {names}")
        return
    warn(f"{names}: not on this machine, and {constants.ENDPOINT} cannot be reached")
    constants.HF_HUB_OFFLINE = True


def _is_reachable() -> bool:
    """Whether anything answers there, whatever it says."""
    try:
        _ = urlsplit(constants.ENDPOINT).port
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S)
    except _UNREACHABLE:
        return False
    return True
