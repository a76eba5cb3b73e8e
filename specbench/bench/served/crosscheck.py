"""Compares a server's counters with the requests that were sent to it."""

from collections.abc import Iterator, Sequence

from specbench.records import RequestRecord
from specbench.servers.metrics_page import Counters


def count_problems(
    requests: Sequence[RequestRecord], counted: Counters, k: int, most_tokens: int
) -> Iterator[str]:
    """Differences between the requests of one condition at K and the server's counts meanwhile.

    `most_tokens`: the limit of an output, which a failed request may also have reached.
    """
    if k == 0 and counted.num_draft_tokens:
        yield (
            f"it drafted {counted.num_draft_tokens:,.0f} tokens, but is measured as K = 0; "
            "add its K to the address, such as #k=4"
        )
    failed = [request for request in requests if request.finish_reason == "failed"]
    if len(failed) == len(requests):
        yield f"no request was answered: {failed[0].error}"
    elif counted.spans_restart:
        yield "the server restarted while it was measured: its counters were reset"
    else:
        yield from _other_traffic(requests, counted, len(failed), most_tokens)


def _other_traffic(
    requests: Sequence[RequestRecord], counted: Counters, num_failed: int, most_tokens: int
) -> Iterator[str]:
    """Counts above or below those of our requests.

    A server may count an end-of-text token that it does not send, and a template's token that is
    not in `usage`: one per request. A failed request may have been served to its end, and a
    preempted one prefilled twice.
    """
    num = len(requests)
    excess = []
    ours = sum(request.num_output_tokens for request in requests)
    most = ours + num + num_failed * most_tokens
    if counted.num_tokens is not None and counted.num_tokens > most:
        excess.append(f"{counted.num_tokens:,.0f} output tokens (ours: {ours:,})")
    prompts = [r.num_prompt_tokens for r in requests if r.finish_reason != "failed"]
    prefilled_again = (num_failed + (counted.num_preemptions or 0.0)) * max(prompts)
    if (
        counted.num_prompt_tokens is not None
        and all(prompts)  # else usage does not report them
        and counted.num_prompt_tokens > sum(prompts) + num + prefilled_again
    ):
        excess.append(f"{counted.num_prompt_tokens:,.0f} prompt tokens (ours: {sum(prompts):,})")
    if counted.num_requests is not None and counted.num_requests > num:
        excess.append(f"{counted.num_requests:,.0f} finished requests (ours: {num:,})")
    if counted.num_in_progress:
        excess.append(f"{counted.num_in_progress:,.0f} requests still in progress (ours: 0)")
    if excess:
        yield f"another client was served meanwhile: the server counted {', '.join(excess)}"
    if counted.num_tokens is not None and counted.num_tokens < ours - num:
        yield (
            f"the server counted {counted.num_tokens:,.0f} output tokens, our requests have "
            f"{ours:,}: its counters miss some (a router in front of several servers?)"
        )


def count_warnings(requests: Sequence[RequestRecord], counted: Counters) -> Iterator[str]:
    """Warnings if the counts of drafts by requests and by the server differ."""
    counts = [r.counts for r in requests if r.counts is not None]
    if not counts or len(counts) < len(requests):
        return
    num_accepted = sum(c.num_accepted + c.num_overshot for c in counts)
    if counted.num_accepted not in (None, num_accepted):
        yield (
            f"accepted drafts: {num_accepted:,} by the requests' counts, "
            f"{counted.num_accepted:,.0f} by the server's"
        )
    drafting = [c.num_drafting for c in counts if c.num_drafting is not None]
    if len(drafting) == len(counts) and counted.num_rounds not in (None, sum(drafting)):
        yield (
            f"rounds with drafts: {sum(drafting):,} by the requests' counts, "
            f"{counted.num_rounds:,.0f} by the server's"
        )
