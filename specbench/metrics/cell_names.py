"""What a cell is called where a person reads of it."""

from specbench.metrics.setting import Setting, marked, overlaps
from specbench.records import CellKey

OWN_ENGINE = "builtin"


def short_k(key: CellKey) -> str:
    """`4`, or `auto` of an adaptive cell."""
    return "auto" if key.adaptive else str(key.num_speculative_tokens)


def label_of(key: CellKey) -> str:
    """The pairing, and in an engine that has several methods for it the method, too."""
    name = marked(key.pairing, key)
    return name if key.engine == OWN_ENGINE else f"{name}, {key.method}"


def cell_name(key: CellKey) -> str:
    """Such as `demo/draft K=4 on code`, with whatever is out of the ordinary."""
    extra = [
        requests_at_once(key) if overlaps(key) else "",
        f"temperature {key.temperature:g}" if key.temperature else "",
        f"context {key.context:,}" if key.context is not None else "",
    ]
    name = f"{label_of(key)} K={short_k(key)} on {key.workload}"
    return ", ".join(filter(None, (name, *extra)))


def requests_at_once(setting: Setting | CellKey) -> str:
    """The batch size in words, and the arrivals where they set the pace."""
    if setting.request_rate is not None:
        return f"up to {setting.concurrency} at once, {setting.request_rate:g} requests per second"
    if setting.num_samples > 1:
        return f"best of {setting.num_samples} samples"
    if setting.concurrency == 1:
        return "one request at a time"
    return f"{setting.concurrency} requests at once"
