"""Python's cyclic garbage collector, paused while many records are read or analyzed.

Hardly any record becomes garbage, and each collection would scan all of them again: about a
quarter of the time for 100,000 requests.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause collection inside the block, or during each call if used as a decorator."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # Move everything to the oldest generation, or the next collection of the youngest scans
            # it. Skipped if the program has frozen objects, because they would be unfrozen.
            if gc.get_count()[0] > gc.get_threshold()[0] and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
