"""The README as a package index shows it, where a relative link would lead nowhere.

`SPECBENCH_URL=https://HOST/OWNER/REPOSITORY/blob/main python -m build` links to that address, and
adds it to the project's URLs. Without the variable links to files become plain text.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc]
    """Adds the README and, if an address is known, the URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fills in the fields that pyproject.toml declares as dynamic."""
        address = os.environ.get("SPECBENCH_URL", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = _LINK.sub(lambda link: _absolute(link, address), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = (
            {}
            if not address
            else {
                "Documentation": f"{address}/docs/README.md",
                "Changelog": f"{address}/CHANGELOG.md",
            }
        )


def _absolute(link: re.Match[str], address: str) -> str:
    is_image, text, path = link.groups()
    if address:
        return f"{is_image}[{text}]({address}/{path}{'?raw=true' if is_image else ''})"
    return "" if is_image else text
