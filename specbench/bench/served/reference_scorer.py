"""The built-in target looks at what servers answered: it is loaded here, and nowhere before."""

from collections.abc import Mapping, Sequence

import psutil
import torch

from specbench.bench.plan import TargetPlan
from specbench.bench.threads import idle_threads
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.fit.weights import model_weights
from specbench.probes.device import find_device
from specbench.records import Request, Sampling
from specbench.verify.evidence import GreedyEvidence, SampledEvidence, Subject
from specbench.verify.reference_model import ReferenceModel
from specbench.verify.scorer import AnsweredPrompt, TextScorer
from specbench.verify.statistics import Tally
from specbench.verify.two_samples import ServedText

WEIGHTS_SHARE = 0.8  # of the free memory that weights may take; the rest is for what is computed


class ReferenceScorer:
    """One target in memory. ModelError where it does not fit, or reads other tokens."""

    def __init__(self, plan: TargetPlan, asked: Mapping[str, Request], most_tokens: int) -> None:
        self._spec, self._asked, self._most = plan.target.model, asked, most_tokens
        settings = plan.settings
        device = find_device(settings.machine.device)
        dtype = _dtype(plan)
        _require_room(plan, dtype, device)
        torch.set_num_threads(settings.machine.threads or idle_threads())
        self._pool = ModelPool(device, dtype)
        loaded = self._pool.load(self._spec)
        self._eos_ids = loaded.eos_ids
        self._scorer = TextScorer(ReferenceModel(loaded.model), seed=settings.seed)
        self._prompt_ids: dict[str, tuple[int, ...]] = {}

    def greedy(
        self, subject: Subject, texts: Sequence[ServedText], own: Sequence[ServedText] | None
    ) -> GreedyEvidence:
        """Beside the texts of K = 0; without these, beside the target's best tokens."""
        asked = [self._as_read(text, self._asked[text.prompt].max_new_tokens) for text in texts]
        baseline = None if own is None else [self._whole(text) for text in own]
        ids = [self._whole(text) for text in texts]
        return self._scorer.greedy(subject, asked, ids, baseline, eos_ids=self._eos_ids)

    def sampled(
        self, subject: Subject, sampling: Sampling, texts: Sequence[ServedText], num_tokens: int
    ) -> tuple[SampledEvidence, Tally]:
        """Short answers in the target's distribution, and how far each position is from it."""
        tally = Tally()
        by_prompt = sorted(texts, key=lambda text: text.prompt)  # each is read once
        answers = ((self._as_read(t, self._most), self._whole(t)) for t in by_prompt)
        evidence = self._scorer.sampled(
            subject, sampling, answers, num_tokens, eos_ids=self._eos_ids, tally=tally
        )
        return evidence, tally

    def _as_read(self, text: ServedText, max_tokens: int) -> AnsweredPrompt:
        """ModelError where the server made another number of tokens of the prompt."""
        if text.prompt not in self._prompt_ids:
            asked = self._asked[text.prompt]
            tokenizer = self._pool.tokenizer(self._spec)
            self._prompt_ids[text.prompt] = tokenizer.prompt_ids(
                asked.messages, asked.tools, asked.template_args
            )
        ids = self._prompt_ids[text.prompt]
        if text.num_prompt_tokens not in (None, len(ids)):
            raise ModelError(
                f"the server makes {text.num_prompt_tokens} tokens of the prompt {text.prompt}, "
                f"the target's tokenizer and chat template here {len(ids)}"
            )
        return AnsweredPrompt(id=text.prompt, prompt_ids=ids, max_new_tokens=max_tokens)

    def _whole(self, text: ServedText) -> tuple[int, ...]:
        """With the token that ended it, which some servers leave out."""
        if text.is_ended and self._eos_ids and text.ids[-1:] not in [(i,) for i in self._eos_ids]:
            return (*text.ids, self._eos_ids[0])
        return text.ids


def _dtype(plan: TargetPlan) -> str:
    """As servers are told; else the checkpoint's, which they take."""
    asked = plan.settings.machine.dtype or plan.target.model.dtype
    return open_model(plan.target.model).stored_dtype if asked == "auto" else asked


def _require_room(plan: TargetPlan, dtype: str, device: torch.device) -> None:
    """ModelError where its weights would take more than WEIGHTS_SHARE of the free memory."""
    weights = model_weights(open_model(plan.target.model), dtype)
    free = psutil.virtual_memory().available
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    if weights is not None and weights.nbytes > WEIGHTS_SHARE * free:
        raise ModelError(
            f"the weights of {plan.target.name} take {weights.nbytes / 2**30:.1f} GiB in {dtype}, "
            f"and {free / 2**30:.1f} GiB are free"
        )
