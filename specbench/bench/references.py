"""The target's greedy answers, decoded once per run, which set the lengths of all cells."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from specbench.decode.stopping import text_before
from specbench.engines.engine import Engine
from specbench.errors import WorkloadError
from specbench.records import Message, Prompt, ReferenceRecord, Request, Sampling
from specbench.runs import RunStore

GREEDY = Sampling()
_HALF = "\ufffd"  # the decoded text of an incomplete character


class References:
    """The references of one target; `engine` decodes those that are not in `known`.

    `max_new_tokens`: by workload.
    """

    def __init__(
        self,
        target: str,
        engine: Engine,
        store: RunStore,
        known: Iterable[ReferenceRecord],
        max_new_tokens: Callable[[str], int],
    ) -> None:
        self._target = target
        self._engine = engine
        self._store = store
        self._max_new_tokens = max_new_tokens
        self._known = {
            (r.workload, r.prompt_id, r.turn, r.context): r for r in known if r.target == target
        }

    def known(
        self, workload: str, prompt_id: str, turn: int, context: int | None
    ) -> ReferenceRecord:
        """An answer decoded before; KeyError if it was not."""
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
        """Token ids of turn after turn; the caller adds each answer to `answers` in between."""
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
            max_new_tokens=self._max_new_tokens(workload),
            sampling=GREEDY,
            seed=0,
            settings=prompt.settings,
        )
        output_ids = self._engine.generate(request, self._engine.baseline).output_ids
        # Reports animate one generation per workload, so the pieces of one are enough.
        is_shown = not any(r.workload == workload and r.pieces for r in self._known.values())
        pieces = text_pieces(self._engine.tokenizer.text, output_ids) if is_shown else None
        return ReferenceRecord(
            target=self._target,
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
