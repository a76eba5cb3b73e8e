"""A loaded target: it serves blocks, single requests and references, and makes their records.

References are its greedy answers. They are decoded once per run, and all cells have their lengths.

Work that loses the device is tried in two processes, then left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Literal, NamedTuple

from specbench.bench.blocks import Block, Cell, request_seed, work_of
from specbench.bench.plan import TargetPlan
from specbench.bench.units import Reporter
from specbench.decode.serving import text_before
from specbench.engines.engine import Engine, Load, ServedPass
from specbench.errors import DeviceLostError, ModelError, WorkloadError, first_line
from specbench.forward.scoring import likeliest
from specbench.inputs.lengthening import TextSource, lengthen
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.probes.gpu import Probe
from specbench.records import (
    BlockRecord,
    DeviceSample,
    FailureRecord,
    Message,
    PassRecord,
    Prompt,
    ReferenceRecord,
    Request,
    RequestRecord,
    Result,
    SamplesRecord,
    ids_sha256,
)
from specbench.runs import RunStore
from specbench.tracing.trace import TargetText

_FENCED = re.compile(r"^(```+|~~~+)[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class _CellRecords(NamedTuple):
    """The records of one cell in a block."""

    requests: list[RequestRecord]
    passes: list[PassRecord]
    samples: list[SamplesRecord]


class OpenTarget:
    """One target's loaded engines by name; the first one decodes the references."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        probe: Probe,
        store: RunStore,
        plan: TargetPlan,
        reporter: Reporter,
    ) -> None:
        self.engines = engines
        self.engine = next(iter(engines.values()))
        self.plan = plan
        self.store, self.reporter = store, reporter
        self._probe = probe
        self._seed = plan.settings.seed
        self._references = References(self.engine, store, plan)
        self._lengthened: dict[tuple[str, str, int], Prompt] = {}

    def remove_drafter(self, name: str) -> None:
        """Remove the drafter from every engine."""
        for engine in self.engines.values():
            engine.remove_drafter(name)

    def serve(self, block: Block) -> BlockRecord:
        """Serve the block's prompts in each of its cells, in the block's order."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        order = block.order(self._seed)
        cells = [self._run_cell(block, cell) for cell in order]
        return block.record(
            order,
            list(chain.from_iterable(cell.requests for cell in cells)),
            list(chain.from_iterable(cell.passes for cell in cells)),
            list(chain.from_iterable(cell.samples for cell in cells)),
            started_at=started_at,
            node=self.store.node,
        )

    def first_turn(self, workload: str, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt's first turn; WorkloadError if the chat template fails."""
        return next(self._references.turns(workload, prompt, []))

    def request(self, block: Block, cell: Cell) -> Request:
        """The first request of a block in one of its cells."""
        return next(self._requests(block, cell))

    def texts(self, block: Block, cell: Cell) -> list[TargetText]:
        """The target's answers to a block's prompts, without drafts: the references at temperature
        0, and otherwise outputs sampled by the seed."""
        texts = []
        for request in self._requests(block, cell):
            at = block.condition
            if cell.sampling.temperature == 0:
                turn = at.workload, request.prompt_id, request.turn, at.context
                output_ids = self._references.known(*turn).output_ids
            else:
                single = replace(request, conversation=None)
                output_ids = self.engine.generate(single, self.engine.baseline).output_ids
            texts.append(
                TargetText.of(
                    request, output_ids=output_ids, workload=at.workload, context=at.context
                )
            )
        return texts

    def _in_context(self, workload: str, prompt: Prompt, context: int | None) -> Prompt:
        """The prompt, lengthened with real text up to `context` tokens if it is given."""
        if context is None:
            return prompt
        key = (workload, prompt.id, context)
        if key not in self._lengthened:
            source = TextSource.starting_with(self.plan.workload(workload), seed=self._seed)
            self._lengthened[key] = lengthen(
                prompt, context, source, lambda longer: len(self.first_turn(workload, longer))
            )
        return self._lengthened[key]

    def _run_cell(self, block: Block, cell: Cell) -> _CellRecords:
        """Serve the block's requests in one cell: together, or turn by turn with several samples.

        Requests that cannot be decoded are recorded as failed.
        """
        num_samples = cell.key.condition.num_samples
        done = _CellRecords([], [], [])
        requests: list[Request] = []
        try:
            for request in self._requests(block, cell):
                requests.append(replace(request, is_sample=num_samples > 1))
            step = num_samples if num_samples > 1 else len(requests)
            with losses_kept(self.store, [cell], "decode"):
                for i in range(0, len(requests), step):
                    self._serve_together(block, cell, requests[i : i + step], done)
        except EXPECTED_ERRORS as error:
            first = Request(prompt_id=block.prompts[0].id, repeat=block.repeat, max_new_tokens=0)
            failed = Result.failed(first_line(error))
            records = [RequestRecord.of(cell.key.id, r, failed) for r in requests or [first]]
            return _CellRecords(records, [], [])
        return done

    def _serve_together(
        self, block: Block, cell: Cell, requests: Sequence[Request], done: _CellRecords
    ) -> None:
        served, device, energy_j = self._serve(cell, requests, block)
        done.requests.extend(
            _make_records(cell, requests, served, device=device, energy_j=energy_j)
        )
        if served.scores is not None:
            done.samples.append(_make_samples(cell, requests, served))
        elif block.condition.is_stream or cell.key.draft.is_adaptive:
            done.passes.append(_make_pass(cell, served))

    def _requests(self, block: Block, cell: Cell) -> Iterator[Request]:
        """The requests of a block, in order."""
        # Greedy cells all emit as many tokens as the reference, so that seconds are comparable;
        # sampled and lossy cells end at EOS, and are compared per token.
        is_known = cell.has_known_text
        context, num_samples = block.condition.context, block.condition.num_samples
        for original, repeat in block.numbered_prompts():
            prompt = self._in_context(block.condition.workload, original, context)
            answers = self._references.answers(block.condition.workload, prompt, context)
            turns_ids = self._references.turns(block.condition.workload, prompt, answers)
            for turn, ids in enumerate(turns_ids):
                # The samples of a turn are served separately, before those of the next turn.
                is_chained = len(prompt.turns) > 1 and num_samples == 1
                length = len(answers[turn].output_ids)
                request = Request(
                    prompt_ids=ids,
                    max_new_tokens=length
                    if is_known
                    else self.plan.max_new_tokens(block.condition.workload),
                    sampling=cell.sampling,
                    stop_at_eos=not is_known,
                    settings=prompt.settings,
                    conversation=f"{prompt.id}|{repeat}" if is_chained else None,
                    prediction_ids=self._prediction(original, turn, answers),
                    prompt_id=prompt.id,
                    turn=turn,
                    repeat=repeat,
                )
                for sample in range(num_samples):
                    seed = request_seed(self._seed, prompt.id, repeat, turn, sample)
                    yield replace(request, seed=seed, sample=sample)

    def _prediction(
        self, prompt: Prompt, turn: int, answers: Sequence[ReferenceRecord]
    ) -> tuple[int, ...]:
        """A text that the answer to a turn may resemble: the workload's prediction, or else the
        previous answer, or in the first turn the text that it quotes."""
        text = prompt.predictions[turn] if prompt.predictions else None
        if text is None and turn:
            return answers[turn - 1].output_ids
        return self.engine.tokenizer.ids(quoted_text(prompt.turns[0]) if text is None else text)

    def _serve(
        self, cell: Cell, requests: Sequence[Request], block: Block
    ) -> tuple[ServedPass, DeviceSample | None, float | None]:
        key = cell.key
        load = Load(
            concurrency=key.condition.batch_size,
            request_rate=key.condition.request_rate,
            seed=request_seed(self._seed, block.prompt_id, block.repeat, 0),
        )
        self._probe.start()
        before_j = self._probe.energy_j()
        try:
            served = self.engines[key.condition.engine].serve(requests, work_of(cell), load)
        finally:
            after_j = self._probe.energy_j()
            device = self._probe.stop()
        has_other_work = served.num_discarded > 0 or served.calibration_s > 0
        if before_j is None or after_j is None or has_other_work:
            return served, device, None
        return served, device, after_j - before_j


def quoted_text(messages: Sequence[Message]) -> str:
    """The largest fenced block of the last user message, or else all of it; "" without one.

    The fences are included, since an answer also has them.
    """
    texts = [message.content for message in messages if message.role == "user"]
    if not texts:
        return ""
    blocks = [match.group() for match in _FENCED.finditer(texts[-1])]
    return max(blocks, key=len, default=texts[-1])


def _make_pass(cell: Cell, served: ServedPass) -> PassRecord:
    """The rounds that served a cell's requests together."""
    return PassRecord(
        cell_id=cell.key.id,
        seconds=served.seconds,
        rounds=served.rounds,
        calibration_s=served.calibration_s,
        kv_bytes=served.kv_bytes,
    )


def _make_samples(cell: Cell, requests: Sequence[Request], served: ServedPass) -> SamplesRecord:
    """The samples of one turn, and the likeliest of them, or the first of a tie."""
    assert served.scores is not None, "samples have scores"
    first, log_probs = requests[0], served.scores.log_probs
    return SamplesRecord(
        prompt_id=first.prompt_id,
        turn=first.turn,
        repeat=first.repeat,
        served=_make_pass(cell, served),
        log_probs=log_probs,
        picked=likeliest(log_probs),
        scoring_s=served.scores.seconds,
    )


def _make_records(
    cell: Cell,
    requests: Sequence[Request],
    served: ServedPass,
    *,
    device: DeviceSample | None,
    energy_j: float | None,
) -> list[RequestRecord]:
    """The requests of a cell, each with its share of the energy and, unless requests overlap, of
    the CPU seconds."""
    is_shared = cell.key.condition.overlaps
    sizes = [len(r.output_ids) if is_shared else r.total_s or 0.0 for r in served.results]
    whole = sum(sizes) or 1
    records = []
    for i, (request, result, size) in enumerate(zip(requests, served.results, sizes, strict=True)):
        part = size / whole
        records.append(
            RequestRecord.of(
                cell.key.id,
                request,
                result,
                cpu_s=None if is_shared else served.cpu_s * part,
                energy_j=None if energy_j is None else energy_j * part,
                device=None if is_shared and i else device,  # of the whole pass, kept once
                arrived_s=result.arrived_s if is_shared else None,
                queue_s=result.queue_s if is_shared else None,
                prompt_sha256=ids_sha256(request.prompt_ids),
            )
        )
    return records


MOST_LOSSES = 2  # per cell; each ends a process


@contextmanager
def losses_kept(
    store: RunStore, cells: Sequence[Cell], stage: Literal["load", "warm_up", "decode"]
) -> Iterator[None]:
    """Store a failure if work for cells of one pairing loses the device, and stop the run.

    ModelError if all of the cells have lost the device `MOST_LOSSES` times.
    """
    losses = Counter(
        cell_id for f in store.stored.failures if f.ended_process for cell_id in f.cell_ids
    )
    if cells and all(losses[cell.key.id] >= MOST_LOSSES for cell in cells):
        raise ModelError(f"the device was lost here {MOST_LOSSES} times; it is not tried again")
    try:
        yield
    except DeviceLostError as error:
        failure = FailureRecord(
            pairing=cells[0].key.pairing if cells else "",
            workload="",
            stage=stage,
            reason=first_line(error),
            cell_ids=tuple(cell.key.id for cell in cells),
            ended_process=True,
        )
        store.append(failure)
        raise


_HALF = "\ufffd"  # the decoded text of an incomplete character


class References:
    """The references of one target; `engine` decodes those that are not stored."""

    def __init__(self, engine: Engine, store: RunStore, plan: TargetPlan) -> None:
        self._engine = engine
        self._store = store
        self._plan = plan
        self._known = {
            (r.workload, r.prompt_id, r.turn, r.context): r
            for r in store.stored.references
            if r.target == plan.target.name
        }

    def known(
        self, workload: str, prompt_id: str, turn: int, context: int | None
    ) -> ReferenceRecord:
        """The answer to a turn, which must have been decoded; KeyError otherwise."""
        return self._known[workload, prompt_id, turn, context]

    def answers(
        self, workload: str, prompt: Prompt, context: int | None = None
    ) -> list[ReferenceRecord]:
        """The answers to the turns of a prompt."""
        answers: list[ReferenceRecord] = []
        for turn, ids in enumerate(self.turns(workload, prompt, answers)):
            known = self._known.get((workload, prompt.id, turn, context))
            if known is None:
                known = self._decoded(workload, prompt, turn, ids, context)
                self._store.append(known)
                self._known[workload, prompt.id, turn, context] = known
            answers.append(known)
        return answers

    def turns(
        self, workload: str, prompt: Prompt, answers: list[ReferenceRecord]
    ) -> Iterator[tuple[int, ...]]:
        """Token ids of one turn after another; the caller adds to `answers` in between."""
        known: list[Message] = []
        for turn in range(len(prompt.turns)):
            if turn:
                text = self._engine.tokenizer.text(answers[turn - 1].output_ids)
                text = text_before(prompt.settings.stop, text)
                known.append(Message(role="assistant", content=text))
            history = prompt.history(turn, known)
            try:
                yield self._engine.tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
            except WorkloadError as error:
                raise WorkloadError(f"{workload}, prompt {prompt.id}: {error}") from error

    def _decoded(
        self, workload: str, prompt: Prompt, turn: int, ids: Sequence[int], context: int | None
    ) -> ReferenceRecord:
        request = Request(
            prompt_ids=tuple(ids),
            max_new_tokens=self._plan.max_new_tokens(workload),
            settings=prompt.settings,
        )
        output_ids = self._engine.generate(request, self._engine.baseline).output_ids
        # Reports animate one generation per workload, so the pieces of one are enough.
        is_shown = not any(r.workload == workload and r.pieces for r in self._known.values())
        pieces = text_pieces(self._engine.tokenizer.text, output_ids) if is_shown else None
        return ReferenceRecord(
            target=self._plan.target.name,
            workload=workload,
            prompt_id=prompt.id,
            turn=turn,
            num_prompt_tokens=len(ids),
            output_ids=output_ids,
            context=context,
            pieces=pieces,
        )


def text_pieces(text: Callable[[Sequence[int]], str], ids: Sequence[int]) -> tuple[str, ...]:
    """A text for each id; joined they are `text(ids)`. `text` decodes ids.

    A token that only begins a character has an empty piece; the token that completes it has the
    whole character. The text of a token may depend on the token before it, so each is decoded
    together with the ids of the piece before; decoding from the start would be quadratic.
    """
    pieces: list[str] = []
    before, begun = 0, 0  # starts of the previous piece and of the current one
    for end in range(1, len(ids) + 1):
        known, longer = text(ids[before:begun]), text(ids[before:end])
        if longer.endswith(_HALF) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(longer[len(known) :])
        before, begun = begun, end
    return tuple(pieces)
