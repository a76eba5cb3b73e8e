"""Measures whether speculative decoding pays, for which draft, method and K."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.notebook import LoadedRun, load

__version__ = "0.1.0"
__all__ = ["LoadedRun", "__version__", "load"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """pandas is imported when a run is first loaded, not by `import specbench`."""
        if name in __all__:
            return getattr(import_module("specbench.notebook"), name)
        raise AttributeError(f"module 'specbench' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
