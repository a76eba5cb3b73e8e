"""Whether a server counted what was asked of it, and nothing else."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.records import RequestRecord
from specbench.servers.metrics_page import Counters


class Checked(NamedTuple):
    """`problems` make a session unusable; a reader should know the `warnings`."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def checked(requests: Sequence[RequestRecord], counted: Counters, k: int) -> Checked:
    """Holds the requests of one condition at K against what the server counted meanwhile."""
    return Checked(tuple(_problems(requests, counted, k)), tuple(_warnings(requests, counted)))


def _problems(requests: Sequence[RequestRecord], counted: Counters, k: int) -> Iterator[str]:
    if k == 0 and counted.num_draft_tokens:
        yield (
            f"it drafted {counted.num_draft_tokens:,.0f} tokens, and is measured as K = 0; "
            "say its K after the address, such as #k=4"
        )
    failed = [request for request in requests if request.finish_reason == "failed"]
    if len(failed) == len(requests):
        yield f"no request was answered: {failed[0].error}"
    if counted.is_of_a_restart:
        yield "the server restarted while it was measured: its counters began anew"
    elif counted.num_tokens is not None and not failed:
        ours = sum(request.num_output_tokens for request in requests)
        # A last token that ends the text may be counted and not be sent.
        if counted.num_tokens > ours + len(requests):
            yield (
                f"another client was served meanwhile: the server counted "
                f"{counted.num_tokens:,.0f} tokens, our requests have {ours:,}"
            )
        elif counted.num_tokens < ours - len(requests):
            yield (
                f"the server counted {counted.num_tokens:,.0f} tokens, our requests have "
                f"{ours:,}: its counters miss some (a router in front of several servers?)"
            )


def _warnings(requests: Sequence[RequestRecord], counted: Counters) -> Iterator[str]:
    """Where requests and server both count drafts: whether they agree."""
    counts = [r.counts for r in requests if r.counts is not None]
    if not counts or len(counts) < len(requests):
        return
    own = sum(one.num_accepted + one.num_overshot for one in counts)
    if counted.num_accepted not in (None, own):
        yield (
            f"requests accepted {own:,} drafts by their own counts, "
            f"{counted.num_accepted:,.0f} by the server's"
        )
    drafting = [one.num_drafting for one in counts if one.num_drafting is not None]
    if len(drafting) == len(counts) and counted.num_rounds not in (None, sum(drafting)):
        yield (
            f"requests count {sum(drafting):,} rounds that drafted, the server "
            f"{counted.num_rounds:,.0f}"
        )
