"""Measurements: blocks, requests, rounds, memory; results imported from other tools."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, Self

from specbench.doc import Doc
from specbench.records.reasons import Reason
from specbench.records.requests import Request
from specbench.stats.summaries import Interval

ALL_PROMPTS = "*"  # in place of the prompt of a block that serves all prompts


def _require_equal_lengths(rounds: "RoundLog | RoundTimeline", *columns: Sized | None) -> None:
    """`columns` are passed because looking them up takes longer than comparing them."""
    if len({len(column) for column in columns if column is not None}) > 1:
        named = ((field.name, getattr(rounds, field.name)) for field in fields(rounds))
        lengths = {name: len(column) for name, column in named if column is not None}
        raise ValueError(f"columns of rounds differ in length: {lengths}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLog:
    """The rounds of one request, a column per quantity; all columns have equal length.

    num_drafted counts a tree's nodes; in a chain it is <= K (a lookup can miss). num_accepted is
    at most K, and excludes the bonus / recovered token. num_emitted = num_accepted + 1, or fewer
    if EOS or the budget cut the round. Prefill is not a round. draft_s and verify_s are None if
    the engine does not time them separately.
    """

    num_drafted: Annotated[tuple[int, ...], Doc("tokens drafted; of a tree its nodes", "tokens")]
    num_accepted: Annotated[
        tuple[int, ...], Doc("of them accepted, without the bonus or recovered token", "tokens")
    ]
    num_emitted: Annotated[
        tuple[int, ...], Doc("output tokens: accepted + 1, fewer if the output ended", "tokens")
    ]
    round_s: Annotated[tuple[float, ...], Doc("the whole round", "s")]
    draft_s: Annotated[
        tuple[float, ...] | None,
        Doc("of it spent on drafting; absent if the engine does not time it separately", "s"),
    ] = None
    verify_s: Annotated[
        tuple[float, ...] | None,
        Doc("of it spent on the target's forward and the acceptance test", "s"),
    ] = None

    def __post_init__(self) -> None:
        """ValueError if the columns differ in length, as in a file that was edited."""
        counts = self.num_drafted, self.num_accepted, self.num_emitted
        _require_equal_lengths(self, *counts, self.round_s, self.draft_s, self.verify_s)

    @property
    def timed_s(self) -> tuple[float, ...]:
        """`round_s` without rounds of 0 seconds, which were verified together with the prompt."""
        return tuple(seconds for seconds in self.round_s if seconds)

    def __len__(self) -> int:
        return len(self.num_drafted)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestCounts:
    """A server's counts of the rounds of one request; None if it does not report one.

    As in a RoundLog, nothing past the end of the output counts: num_rounds + num_accepted are its
    tokens after the first.
    """

    num_rounds: Annotated[
        int, Doc("rounds that a server counted, those without a draft included", "rounds")
    ]
    num_drafted: Annotated[int | None, Doc("drafted in them", "tokens")]
    num_accepted: Annotated[int, Doc("of them accepted, up to the end of the output", "tokens")]
    num_drafting: Annotated[int | None, Doc("rounds that drafted anything", "rounds")] = None
    num_rejecting: Annotated[
        int | None, Doc("rounds in which a draft token was tested and not accepted", "rounds")
    ] = None
    num_by_accepted: Annotated[
        tuple[int, ...] | None, Doc("rounds that accepted 0, 1 .. K, a tuple", "rounds")
    ] = None
    num_overshot: Annotated[
        int,
        Doc(
            "accepted past the end of the output: in the engine's own figures, not in ours",
            "tokens",
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCheck:
    """A predicted output that is verified between prefill and the first round; not a round.

    num_emitted counts accepted draft tokens and the target's token after the last one of each
    forward, or fewer if EOS cut the output.
    """

    num_drafted: Annotated[
        int, Doc("tokens of a predicted output checked before the first round", "tokens")
    ]
    num_accepted: Annotated[int, Doc("of them accepted", "tokens")]
    num_emitted: Annotated[int, Doc("output tokens that came from it", "tokens")]
    seconds: Annotated[float, Doc("spent on it, part of `decode_s`", "s")]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSample:
    """NVML samples while one request ran; None if the device does not report it."""

    num_samples: Annotated[int, Doc("times that NVML was read", "samples")]
    device_used_bytes: Annotated[int | None, Doc("peak memory in use on the GPU", "bytes")] = None
    process_used_bytes: Annotated[int | None, Doc("peak GPU memory of this process", "bytes")] = (
        None
    )
    power_w: Annotated[float | None, Doc("mean power", "W")] = None
    sm_clock_mhz: Annotated[int | None, Doc("lowest SM clock", "MHz")] = None
    sm_clock_default_mhz: Annotated[int | None, Doc("default SM clock", "MHz")] = None
    temperature_c: Annotated[int | None, Doc("highest temperature", "degrees C")] = None
    throttle_reasons: Annotated[
        tuple[str, ...], Doc("why the clock was lowered; empty if it was not")
    ] = ()
    num_other_processes: Annotated[int | None, Doc("other processes on the GPU", "processes")] = (
        None
    )


FinishReason = Literal["eos", "length", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a request in any engine; None if the engine does not report it."""

    output_ids: tuple[int, ...]  # the first is from prefill, the rest from the check and rounds
    finish_reason: Annotated[FinishReason, Doc("`eos`, `length` or `failed`")]
    prefill_s: Annotated[float | None, Doc("to prefill target and drafter", "s")]
    ttft_s: Annotated[float | None, Doc("start to first token, prefill included", "s")]
    decode_s: Annotated[float | None, Doc("first token to last", "s")]
    total_s: Annotated[float | None, Doc("start to last token", "s")]
    cpu_s: Annotated[float | None, Doc("CPU time of the decoding thread over the same span", "s")]
    rounds: RoundLog | None
    error: Annotated[str | None, Doc("why it failed; absent if it did not", is_text=True)] = None
    arrived_s: Annotated[
        float | None, Doc("since its pass began; `ttft_s` and `total_s` count from here", "s")
    ] = None
    queue_s: Annotated[float | None, Doc("arrival to the start of its prefill", "s")] = None
    answer_check: AnswerCheck | None = None  # None: no predicted output was checked
    num_tokens: int | None = None  # if a server counts them and gives no ids
    num_first: Annotated[
        int, Doc("tokens that came with the first one: not counted in `decode_s`", "tokens")
    ] = 1
    num_unstreamed: Annotated[
        int, Doc("of the output, those that a server counts as hidden reasoning", "tokens")
    ] = 0
    num_uncounted: Annotated[
        int,
        Doc("by a server's total, beyond those of prompt and output; 0: it agrees", "tokens"),
    ] = 0
    text: Annotated[
        str | None,
        Doc("response text of a server; absent if the engine gives only ids", is_text=True),
    ] = None
    counts: RequestCounts | None = None  # of a server that does not report single rounds
    # The part of its rounds that one graph captured: off, step or round; all of these if rounds
    # differ, such as "off, round". None: without rounds, or not reported.
    graph: Annotated[
        str | None, Doc("how much of its rounds one graph held; absent if unknown", is_text=True)
    ] = None
    chunk_s: Annotated[
        tuple[float, ...] | None,
        Doc("between two streamed chunks with tokens, a tuple; of a server", "s"),
    ] = None
    paused_s: Annotated[
        float | None,
        Doc("of `total_s`, in which the client stood still; absent if not measured", "s"),
    ] = None

    @classmethod
    def failed(cls, error: str, **keys: Any) -> Self:
        """The result of a failed request, and why; `keys` are its other fields."""
        absent = dict.fromkeys(("prefill_s", "ttft_s", "decode_s", "total_s", "cpu_s", "rounds"))
        ended = {"output_ids": (), "finish_reason": "failed", "error": error}
        return cls(**{**absent, **ended, **keys})

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start of the pass until the first token arrived."""
        if self.arrived_s is None or self.ttft_s is None:
            return None
        return self.arrived_s + self.ttft_s

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_ids) if self.num_tokens is None else self.num_tokens

    @property
    def num_timed_tokens(self) -> int:
        """Number of output tokens that decode_s covers."""
        return self.num_output_tokens - self.num_first

    @property
    def num_checked_at_once(self) -> int:
        """Number of output tokens from the check of a predicted output."""
        return self.answer_check.num_emitted if self.answer_check else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord(Result):
    """The result of one turn of one prompt, decoded once in one cell."""

    cell_id: str
    prompt_id: Annotated[str, Doc("the prompt, as the workload names it")]
    turn: Annotated[int, Doc("of a conversation, from 0")]
    repeat: Annotated[int, Doc("of the same prompt; those of the confirmation run count on")]
    seed: Annotated[int, Doc("of sampling")]
    num_prompt_tokens: Annotated[int, Doc("earlier turns included", "tokens")]
    sample: Annotated[int, Doc("which of several outputs of the same turn, from 0")] = 0
    energy_j: Annotated[float | None, Doc("of the GPU over the same span", "J")] = None
    device: DeviceSample | None = None
    prompt_sha256: Annotated[
        str | None, Doc("of the prompt's token ids; absent if a server gave none", is_text=True)
    ] = None

    @classmethod
    def of(cls, cell_id: str, request: Request, result: Result, **more: Any) -> "RequestRecord":
        """A request's result in a cell; `more` are fields of the record."""
        known = {field.name: getattr(result, field.name) for field in fields(Result)}
        known |= {key: getattr(request, key) for key in _KEYS}
        return cls(
            **{"cell_id": cell_id, "num_prompt_tokens": len(request.prompt_ids), **known, **more}
        )


_KEYS = ("prompt_id", "turn", "repeat", "seed", "sample")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimeline:
    """The rounds of a batch in order, a column per quantity; all columns have equal length.

    A row is live while it still emits; `num_rows` of them were computed, including idle ones.
    """

    at_s: tuple[float, ...]  # start, since the pass began
    seconds: tuple[float, ...]
    num_speculative_tokens: tuple[int, ...]
    num_live: tuple[int, ...]
    num_rows: tuple[int, ...]
    num_emitted: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = self.num_speculative_tokens, self.num_live, self.num_rows, self.num_emitted
        _require_equal_lengths(self, self.at_s, self.seconds, *counts)

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRecord:
    """All requests of a block in one cell, decoded concurrently: the whole, and each round."""

    cell_id: str
    seconds: float  # first arrival to last token
    rounds: RoundTimeline | None  # None: not reported by a server
    calibration_s: float = 0.0  # for measuring round costs for an adaptive K; part of `seconds`
    kv_bytes: int | None = None  # allocated for the whole batch, target and drafter


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesRecord:
    """Several outputs of one cell for one turn, decoded together, and the chosen one.

    The requests of its cell, prompt, turn and repeat are the samples, in order of `sample`.
    """

    prompt_id: str
    turn: int
    repeat: int
    served: PassRecord  # the decoding
    log_probs: tuple[float, ...]  # of each sample: mean of its tokens, nats, at temperature 1
    picked: int  # the sample with the highest one
    scoring_s: float  # for `log_probs`, after decoding

    @property
    def seconds(self) -> float:
        """Seconds until the output is chosen."""
        return self.served.seconds + self.scoring_s


BlockPurpose = Literal["explore", "confirm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRecord:
    """The unit of running, storing and resuming: one prompt, every K, one repeat.

    With concurrent requests it is one pass over all prompts; `prompt_id` is then ALL_PROMPTS.
    """

    block_id: str
    workload: str
    prompt_id: str
    repeat: int
    purpose: BlockPurpose  # "confirm": repeats of a winner that decisions quote
    order: tuple[str, ...]  # cell ids in the order they ran, drawn with the seed
    started_at: str  # ISO 8601, UTC
    requests: tuple[RequestRecord, ...]
    passes: tuple[PassRecord, ...] = ()
    samples: tuple[SamplesRecord, ...] = ()
    # For a server, one session decodes a block under one condition. Together, the blocks of a cycle
    # have every K and K = 0, as a single block has without a server.
    session: str | None = None  # of a ServerRecord
    cycle: int | None = None
    node: str | None = None  # of a cluster, on which it was measured


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceRecord:
    """The target's own greedy output of one turn: it fixes the lengths of all cells.

    The next turn of the conversation continues this text in every cell.
    """

    target: str
    workload: str
    prompt_id: str
    turn: int
    num_prompt_tokens: int
    output_ids: tuple[int, ...]
    context: int | None = None  # as in CellKey
    # The text of each id; joined, that of the output. Only of one output per workload.
    pieces: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRecord:
    """Memory of a target, or of target and drafter together, after a warm pass."""

    target: str
    drafter: str  # NO_DRAFTER without a drafter
    weights_bytes: int
    kv_bytes_per_token: int
    peak_allocated_bytes: int | None = None  # torch allocator (CUDA)
    peak_reserved_bytes: int | None = None
    process_peak_bytes: int | None = None  # NVML process memory, or host RSS on a CPU
    device_peak_bytes: int | None = None  # NVML device memory, or host memory in use
    state_bytes_per_row: int = 0  # of recurrent layers; a row keeps K + 3 states


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCost:
    """A forward of one model, timed between rounds: a lower bound of a round."""

    cell_id: str  # of the cell whose rounds contain this forward
    role: Literal["target", "drafter"]
    num_tokens: int  # tokens fed per row: 1 for a baseline step, K + 1 for verification
    num_per_round: int
    seconds: float  # median of the samples
    num_samples: int
    part: str = ""  # of a head: the part of its work; "" for the forward of a model
    round_s: float | None = None  # median of the rounds between


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRecord:
    """A cell, pairing or model that could not be measured: a result, not a crash."""

    pairing: Annotated[str, Doc("the pairing, or the target if the target itself failed")]
    workload: Annotated[str, Doc("the workload; empty if it is not about one")]
    stage: Annotated[
        Literal["load", "warm_up", "decode"],
        Doc("`load`, `warm_up` or `decode`"),
    ]
    reason: Annotated[str, Doc("the first line of the error")]
    # The cells that were not measured; a later block with one of them replaces the failure.
    cell_ids: tuple[str, ...] = field(default=(), compare=False)
    ended_process: bool = False  # the device was lost: a resumed run tries it once more


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitRecord:
    """Lower bounds of a cell's round, measured in the same run; None if unknown."""

    cell_id: str
    device: str  # "cpu" or "cuda:0"
    copy_bytes_per_s: float | None = None  # read + written, measured on the spot
    bytes_per_round: int | None = None  # read by its forwards: weights, and the used KV cache
    launches_per_round: float | None = None  # kernels or graphs started by the host
    syncs_per_round: float | None = None  # waits of the host for the device


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstDifference:
    """The target's logits at the first token that differs from the output at K = 0."""

    cell_id: str
    prompt_id: str
    turn: int
    repeat: int
    position: int  # in the output, from 0
    gap: float  # between the logits of the two tokens
    spacing: float  # of two neighboring numbers of the target's dtype at the largest logit


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedAnswer:
    """An answer that somebody else measured with specbench, as the row of it states."""

    speedup: Annotated[Interval | None, Doc("of decoding; absent if unknown", "x")]
    end_to_end: Annotated[Interval | None, Doc("of whole requests; absent if unknown", "x")]
    num_prompts: Annotated[int | None, Doc("behind them; absent if unknown", "prompts")]
    invalid_reasons: Annotated[
        tuple[Reason, ...], Doc("why the measurement is not valid; empty if it is, or if unknown")
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRecord:
    """The figures of one cell from a result file of another tool.

    `figures` has the names and units of our metrics, without those that the file does not have.
    `requests` are in the order they were sent, if the file has each one's times; without them
    nothing has an interval.
    """

    cell_id: Annotated[str, Doc("the cell")]
    tool: Annotated[str, Doc("such as `vllm bench serve`")]
    tool_version: Annotated[str | None, Doc("absent if unknown")]
    file: Annotated[str, Doc("name of the result file, without its folder")]
    file_sha256: Annotated[str, Doc("hash of the file")]
    measured_at: Annotated[str | None, Doc("ISO 8601, as the file has it")]
    num_requests: Annotated[int | None, Doc("sent", "requests")]
    num_failed: Annotated[int | None, Doc("failed", "requests")]
    figures: Annotated[
        Mapping[str, float | tuple[float, ...]],
        Doc("figures under the names and in the units of our metrics; the mean over repeats"),
    ] = field(default_factory=dict)
    num_repeats: Annotated[int, Doc("results of this cell that are pooled", "repeats")] = 1
    deviations: Annotated[
        Mapping[str, float],
        Doc("standard deviation of each figure over the repeats; empty for one result"),
    ] = field(default_factory=dict)
    requests: Annotated[
        tuple[RequestRecord, ...],
        Doc("in the order they were sent; empty if the file has no times of single requests"),
    ] = ()
    warnings: Annotated[
        tuple[Reason, ...], Doc("what the tool's way of counting means for them")
    ] = ()
    stated: Annotated[
        StatedAnswer | None, Doc("the answer in a row of `report --row`; else absent")
    ] = None
