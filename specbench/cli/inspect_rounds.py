"""`specbench inspect`: shows one answer while it is decoded, with drafts in color."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import AdhocPairing
from specbench.cli.preflight import preflight
from specbench.errors import UsageError
from specbench.settings import DraftSettings, MachineSettings, RunSettings
from specbench.settings.groups import (
    DEFAULT_WORKLOADS,
    NEW_TOKENS,
    PAIRINGS,
    K,
    ModelImplementation,
    PairingsFile,
    Seed,
)

if TYPE_CHECKING:
    from specbench.bench.generation import Generation, WatchedRound
    from specbench.inputs.pairing import Pairing

MAX_NEW_TOKENS = 128
_CONTEXT = 4  # tokens before a new one that its text may depend on
_STYLES = {"accepted": "green", "rejected": "strike red", "own": "bold cyan", "round": "dim"}
_MARKS = {"accepted": "+", "rejected": "-", "own": "="}


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """The options that `inspect` shares with `run`."""

    pairings: Annotated[
        tuple[str, ...], replace(PAIRINGS, help="target/drafter, a single one.", shown=False)
    ]
    draft: Annotated[DraftSettings, replace(K, help="K: a number.")] = field(
        default_factory=DraftSettings
    )
    max_new_tokens: Annotated[int | None, replace(NEW_TOKENS, shown=f"{MAX_NEW_TOKENS}")] = None
    forward: ModelImplementation = "auto"
    machine: MachineSettings
    seed: Seed = 0
    pairings_file: PairingsFile = None


def inspect_rounds(
    pair: AdhocPairing,
    call: InspectOptions,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", help="The prompt; - reads it from standard input.", metavar="TEXT"
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 is greedy.")] = 0.0,
    skip_memory_check: options.SkipMemoryCheck = False,
) -> None:
    """Show round by round which draft tokens of one output are accepted.

    Nothing is stored. Decoding is slower than in `run`, which measures speed.
    """
    from specbench.cli.checks import checked

    settings = checked(
        RunSettings.with_options(
            call,
            workloads=DEFAULT_WORKLOADS[:1],
            temperatures=(temperature,),
            max_new_tokens=call.max_new_tokens or MAX_NEW_TOKENS,
            graph="off",
        )
    )
    pairing, ks = _chosen(settings, pair), settings.draft.num_speculative_tokens
    if settings.draft.adaptive or (ks is not None and len(ks) != 1):
        raise UsageError("-k: inspect takes one fixed K, such as -k 4")
    text = sys.stdin.read() if prompt == "-" else prompt
    if not (text or "").strip():
        raise UsageError('--prompt: say what to ask, as in --prompt "Write a haiku"')
    (plan,) = preflight(settings, [pairing], skip_memory_check=skip_memory_check).targets
    (k,) = plan.ks(pairing)
    from specbench.cli.progress import ProgressWatch

    with ProgressWatch(lambda _: "\ninterrupted") as progress:
        progress.stage("starting")
        from specbench.bench.generation import watched_generation

        show = _RoundPrinter(progress.close)
        done = watched_generation(settings, pairing, text or "", k, progress, show)
    typer.echo("\n" + summary(done, k))


def _chosen(settings: RunSettings, pair: AdhocPairing) -> "Pairing":
    if pair.target is None and not pair.drafts and not settings.workload.pairings:
        raise UsageError("name one pairing, as in `specbench inspect demo/draft`")
    pairings = pair.pairings(settings, ())
    if len(pairings) > 1:
        several = ", ".join(pairing.name for pairing in pairings)
        raise UsageError(f"inspect shows one pairing; name one of {several}")
    return pairings[0]


class _RoundPrinter:
    """Prints rounds as they come: colored text on a terminal, else a line of marks for each."""

    def __init__(self, begin: Callable[[], None]) -> None:
        from specbench.cli.console import is_terminal, open_console

        self._console = open_console(soft_wrap=True)
        self._is_colored = is_terminal() and self._console.color_system is not None
        self._begin: Callable[[], None] | None = begin
        self._known: list[int] = []
        self._number = 0

    def __call__(self, watched: "WatchedRound", text: Callable[[tuple[int, ...]], str]) -> None:
        if self._begin is not None:
            self._begin()
            self._begin = None
            self._print(LEGEND_OF_COLORS if self._is_colored else LEGEND_OF_MARKS, _STYLES["round"])
            self._print("\n", "")
        pieces = list(self._pieces(watched, text))
        if self._is_colored:
            for kind, piece in pieces:
                self._print(piece, _STYLES[kind])
            if self._number:
                self._print(f"[{len(watched.accepted)}/{watched.num_drafted}]", _STYLES["round"])
        else:
            marked = " ".join(f"{_MARKS[kind]}{piece!r}" for kind, piece in pieces)
            counts = f"{len(watched.accepted)} of {watched.num_drafted} accepted"
            start = f"round {self._number}, {counts}: " if self._number else "prefill: "
            self._print(f"{start}{marked}\n", "")
        self._number += 1

    def _pieces(
        self, watched: "WatchedRound", text: Callable[[tuple[int, ...]], str]
    ) -> Iterator[tuple[str, str]]:
        tokens = [*(("accepted", token) for token in watched.accepted)]
        tokens += (("rejected", token) for token in watched.rejected)
        tokens += [] if watched.extra is None else [("own", watched.extra)]
        for kind, token in tokens:
            yield kind, self._piece(token, text)
            if kind != "rejected":
                self._known.append(token)

    def _piece(self, token: int, text: Callable[[tuple[int, ...]], str]) -> str:
        """The text that a token adds. Tokens with a part of a character show their id, except the
        last of them, which shows the whole character."""
        before = tuple(self._known[-_CONTEXT:])
        old, new = text(before).rstrip("\ufffd"), text((*before, token))
        piece = new[len(old) :] if new.startswith(old) else text((token,))
        return piece if piece and "\ufffd" not in piece else f"<{token}>"

    def _print(self, text: str, style: str) -> None:
        self._console.print(text, style=style or None, end="")


LEGEND_OF_COLORS = (
    "green: accepted draft tokens; red: rejected ones; cyan: the target's token at the end of each "
    "round; [accepted/drafted]"
)
LEGEND_OF_MARKS = "+ accepted draft token, - rejected one, = the target's token at the round's end"


def summary(done: "Generation", k: int) -> str:
    """One line of counts, then K round by round."""
    rounds = done.rounds[1:]
    num_drafted = sum(watched.num_drafted for watched in rounds)
    num_accepted = sum(len(watched.accepted) for watched in rounds)
    tokens = len(done.output_ids)
    counts = f"{tokens} tokens in {len(rounds)} rounds"
    if num_drafted:
        share = num_accepted / num_drafted
        length = (tokens - 1) / len(rounds)
        counts += (
            f": {num_accepted} of {num_drafted} drafts accepted ({share:.0%}), "
            f"{length:.2f} tokens per round"
        )
    by_round = " ".join(f"{len(watched.accepted)}/{watched.num_drafted}" for watched in rounds)
    return f"{counts}, K={k}\naccepted/drafted by round: {by_round}"
