"""The parts of a stored run that do not depend on times or on the machine."""

import json
from typing import Any

from specbench.metrics.aggregate import usable_sessions
from specbench.records import BlockRecord, Environment, ServerRecord
from specbench.runs import StoredRecord, StoredRun
from specbench.runs.codec import RunEnd, encode_line

# In addition to names that end in `_s`: attempts, and facts of a machine, a start or a moment.
OF_A_TIME = {"block_id", "command", "client", "finished_at", "log", "node", "queue_s", "seconds"}
OF_A_TIME |= {"attempt", "session", "started_at"}
OF_A_MACHINE = {"memory_bytes", "num_gpus", "power_w", "throttle_reasons", "device"}
OF_A_MACHINE |= {"device_peak_bytes", "process_peak_bytes"}


def work_of(stored: StoredRun, *, purpose: str | None = None) -> list[str]:
    """Every record that counts, without times, in an order independent of time.

    `purpose`: only records of that pass, because times decide which K are measured again.
    """
    kinds = (getattr(stored, name) for name in stored.__dataclass_fields__)
    records = [record_kind for kind in kinds if isinstance(kind, tuple) for record_kind in kind]
    sessions = {None, *usable_sessions(stored.servers)}
    return sorted(
        json.dumps(_timeless(json.loads(encode_line(record))), sort_keys=True)
        for record in records
        if _counts(record, sessions, purpose)
    )


def _counts(record: StoredRecord, sessions: set[str | None], purpose: str | None) -> bool:
    if isinstance(record, BlockRecord):
        return record.session in sessions and purpose in (None, record.purpose)
    if isinstance(record, ServerRecord):
        return record.session in sessions and (purpose is None or f"|{purpose}|" in record.place)
    return not isinstance(record, Environment | RunEnd)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            name: _timeless(item)
            for name, item in value.items()
            if not name.endswith("_s") and name not in OF_A_TIME | OF_A_MACHINE
        }
        return kept
    return [_timeless(item) for item in value] if isinstance(value, list) else value
