"""A loaded target at work: references, single requests and whole blocks, each recorded."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import torch

from specbench.bench.plan import Block, Cell, TargetPlan, request_seed
from specbench.engines.engine import Engine, EngineRequest, EngineResult
from specbench.errors import ModelError, WorkloadError
from specbench.probes.probe import Probe
from specbench.records import (
    NO_DRAFTER,
    BlockRecord,
    Message,
    Prompt,
    ReferenceRecord,
    RequestRecord,
    Sampling,
)
from specbench.store import RunWriter

DEFAULT_MAX_NEW_TOKENS = 128  # of a file without a card
GREEDY = Sampling()


class Session:
    """One target's engine with the probe beside it and the run that keeps what happens."""

    def __init__(
        self,
        engine: Engine,
        probe: Probe,
        writer: RunWriter,
        references: Iterable[ReferenceRecord],
        plan: TargetPlan,
    ) -> None:
        self.target = plan.target.name
        self.engine = engine
        self._probe = probe
        self._writer = writer
        self._max_new_tokens = plan.settings.max_new_tokens
        self._workloads = {workload.name: workload for workload in plan.workloads}
        self._seed = plan.settings.seed
        self._references = {
            (r.workload, r.prompt_id, r.turn): r for r in references if r.target == self.target
        }

    def run_block(self, block: Block) -> BlockRecord:
        """Measure every cell of the block, in its own order; saved before it returns."""
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        order = block.order(self._seed)
        requests = tuple(r for cell in order for r in self._conversation(block, cell))
        record = BlockRecord(
            block_id=block.id,
            workload=block.workload,
            prompt_id=block.prompt.id,
            repeat=block.repeat,
            purpose=block.purpose,
            order=tuple(cell.key.id for cell in order),
            started_at=started_at,
            requests=requests,
        )
        self._writer.append(record)
        return record

    def reference(self, workload: str, prompt: Prompt) -> list[ReferenceRecord]:
        """The target's own greedy answers to the turns of a prompt, decoded once a run."""
        answers: list[ReferenceRecord] = []
        for turn, ids in enumerate(self._turns(workload, prompt, answers)):
            known = self._references.get((workload, prompt.id, turn))
            if known is None:
                result = self.engine.generate(
                    EngineRequest(
                        prompt_ids=ids,
                        max_new_tokens=self.max_new_tokens(workload),
                        sampling=GREEDY,
                        seed=0,
                    ),
                    NO_DRAFTER,
                    0,
                )
                known = ReferenceRecord(
                    target=self.target,
                    workload=workload,
                    prompt_id=prompt.id,
                    turn=turn,
                    num_prompt_tokens=len(ids),
                    output_ids=result.output_ids,
                )
                self._writer.append(known)
                self._references[workload, prompt.id, turn] = known
            answers.append(known)
        return answers

    def first_turn(self, workload: str, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt's first turn; WorkloadError where the template refuses it."""
        return next(self._turns(workload, prompt, []))

    def max_new_tokens(self, workload: str) -> int:
        own = self._workloads[workload].max_new_tokens
        return self._max_new_tokens or own or DEFAULT_MAX_NEW_TOKENS

    def _turns(
        self, workload: str, prompt: Prompt, answers: list[ReferenceRecord]
    ) -> Iterator[tuple[int, ...]]:
        """Token ids of turn after turn; each needs the answers so far, which the caller adds."""
        history: list[Message] = []
        for turn, messages in enumerate(prompt.turns):
            if turn:
                text = self.engine.tokenizer.text(answers[turn - 1].output_ids)
                history.append(Message(role="assistant", content=text))
            history += messages
            try:
                yield self.engine.tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
            except WorkloadError as error:
                raise WorkloadError(f"{workload}, prompt {prompt.id}: {error}") from error

    def _conversation(self, block: Block, cell: Cell) -> Iterator[RequestRecord]:
        """One record a turn; a failure is recorded and ends the conversation."""
        answers: list[ReferenceRecord] = []
        try:
            answers = self.reference(block.workload, block.prompt)
            turns = list(self._turns(block.workload, block.prompt, answers))
        except (WorkloadError, ModelError, torch.OutOfMemoryError) as error:
            yield self._failed(block, cell, 0, 0, error)
            return
        for turn, ids in enumerate(turns):
            try:
                yield self._measure(block, cell, turn, ids, len(answers[turn].output_ids))
            except (ModelError, torch.OutOfMemoryError) as error:
                yield self._failed(block, cell, turn, len(ids), error)
                return

    def _measure(
        self, block: Block, cell: Cell, turn: int, ids: tuple[int, ...], reference_length: int
    ) -> RequestRecord:
        # Greedy cells all emit as many tokens as the reference, so that seconds compare;
        # sampled ones end where they end, and are compared per token.
        is_greedy = cell.sampling.temperature == 0
        seed = request_seed(self._seed, block.prompt.id, block.repeat, turn)
        request = EngineRequest(
            prompt_ids=ids,
            max_new_tokens=reference_length if is_greedy else self.max_new_tokens(block.workload),
            sampling=cell.sampling,
            seed=seed,
            stop_at_eos=not is_greedy,
        )
        self._probe.start()
        energy_j = self._probe.energy_j()
        try:
            result = self.engine.generate(request, cell.drafter, cell.key.num_speculative_tokens)
        finally:
            after_j = self._probe.energy_j()
            device = self._probe.stop()
        record = _record(block, cell, turn, seed, len(ids), result)
        used_j = None if energy_j is None or after_j is None else after_j - energy_j
        return replace(record, energy_j=used_j, device=device)

    def _failed(
        self, block: Block, cell: Cell, turn: int, num_prompt_tokens: int, error: Exception
    ) -> RequestRecord:
        return RequestRecord(
            cell_id=cell.key.id,
            prompt_id=block.prompt.id,
            turn=turn,
            repeat=block.repeat,
            seed=request_seed(self._seed, block.prompt.id, block.repeat, turn),
            num_prompt_tokens=num_prompt_tokens,
            output_ids=(),
            finish_reason="failed",
            prefill_s=None,
            ttft_s=None,
            decode_s=None,
            total_s=None,
            cpu_s=None,
            rounds=None,
            error=first_line(error),
        )


def first_line(error: Exception) -> str:
    """What an error says, short enough for a table; its kind where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _record(
    block: Block, cell: Cell, turn: int, seed: int, num_prompt_tokens: int, result: EngineResult
) -> RequestRecord:
    return RequestRecord(
        cell_id=cell.key.id,
        prompt_id=block.prompt.id,
        turn=turn,
        repeat=block.repeat,
        seed=seed,
        num_prompt_tokens=num_prompt_tokens,
        output_ids=result.output_ids,
        finish_reason="eos" if result.hit_eos else "length",
        prefill_s=result.prefill_s,
        ttft_s=result.ttft_s,
        decode_s=result.decode_s,
        total_s=result.total_s,
        cpu_s=result.cpu_s,
        rounds=result.rounds,
    )
