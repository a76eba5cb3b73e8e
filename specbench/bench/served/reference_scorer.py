"""Scores servers' answers with the target's logits, for which it loads the target."""

from collections.abc import Mapping, Sequence

import torch

from specbench.bench.plan import TargetPlan
from specbench.bench.this_process import prepare_device
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError
from specbench.files.model import open_model
from specbench.fit.weights import model_weights, planned_dtype
from specbench.models.loading import compute_capability
from specbench.probes.host import host_available_bytes
from specbench.records import Request, Sampling
from specbench.verify.evidence import GreedyEvidence, SampledEvidence, Subject
from specbench.verify.reference_model import ReferenceModel
from specbench.verify.scorer import AnsweredPrompt, TextScorer
from specbench.verify.statistics import Tally
from specbench.verify.two_samples import ServedText

WEIGHTS_SHARE = 0.8  # of the free memory; the rest is for activations


class ReferenceScorer:
    """A loaded target that scores answers. ModelError if it does not fit into memory, or has
    another tokenizer than the server."""

    def __init__(self, plan: TargetPlan, requests: Mapping[str, Request], most_tokens: int) -> None:
        self._spec, self._requests, self._most = plan.target.model, requests, most_tokens
        settings = plan.settings
        device = prepare_device(settings.machine)
        # As servers choose it, whatever this device is.
        dtype = planned_dtype(
            open_model(self._spec), "cuda", plan.dtype, compute_capability(device)
        )
        _require_memory(plan, dtype, device)
        self._pool = ModelPool(device, dtype)
        loaded = self._pool.load(self._spec)
        self._eos_ids = loaded.eos_ids
        self._scorer = TextScorer(ReferenceModel(loaded.model), seed=settings.seed)
        self._prompt_ids: dict[str, tuple[int, ...]] = {}

    def greedy(
        self,
        subject: Subject,
        texts: Sequence[ServedText],
        baseline_texts: Sequence[ServedText] | None,
    ) -> GreedyEvidence:
        """Compare greedy texts with those of K = 0, or without these with the target's tokens."""
        prompts = [self._prompt(text, self._requests[text.prompt].max_new_tokens) for text in texts]
        baseline = None if baseline_texts is None else [self._whole(t) for t in baseline_texts]
        ids = [self._whole(text) for text in texts]
        return self._scorer.greedy(subject, prompts, ids, baseline, eos_ids=self._eos_ids)

    def sampled(
        self, subject: Subject, sampling: Sampling, texts: Sequence[ServedText], num_tokens: int
    ) -> tuple[SampledEvidence, Tally]:
        """Compare short answers with the target's distribution, in total and by position."""
        tally = Tally()
        by_prompt = sorted(texts, key=lambda text: text.prompt)  # each prompt is prefilled once
        answers = ((self._prompt(t, self._most), self._whole(t)) for t in by_prompt)
        evidence = self._scorer.sampled(
            subject, sampling, answers, num_tokens, eos_ids=self._eos_ids, tally=tally
        )
        return evidence, tally

    def _prompt(self, text: ServedText, max_tokens: int) -> AnsweredPrompt:
        """The prompt's token ids; ModelError if the server reports another number of them."""
        if text.prompt not in self._prompt_ids:
            request = self._requests[text.prompt]
            tokenizer = self._pool.tokenizer(self._spec)
            self._prompt_ids[text.prompt] = tokenizer.prompt_ids(
                request.messages, request.tools, request.template_args
            )
        ids = self._prompt_ids[text.prompt]
        if text.num_prompt_tokens not in (None, len(ids)):
            raise ModelError(
                f"the prompt {text.prompt} has {text.num_prompt_tokens} tokens on the server, but "
                f"{len(ids)} with the target's tokenizer and chat template on this machine"
            )
        return AnsweredPrompt(id=text.prompt, prompt_ids=ids, max_new_tokens=max_tokens)

    def _whole(self, text: ServedText) -> tuple[int, ...]:
        """The text's ids with the final EOS, which some servers leave out."""
        if text.is_ended and self._eos_ids and text.ids[-1:] not in [(i,) for i in self._eos_ids]:
            return (*text.ids, self._eos_ids[0])
        return text.ids


def _require_memory(plan: TargetPlan, dtype: str, device: torch.device) -> None:
    """Raise ModelError if the weights would take more than WEIGHTS_SHARE of the free memory."""
    weights = model_weights(open_model(plan.target.model), dtype)
    free, place = host_available_bytes(), "this machine"
    if device.type == "cuda":
        free, place = torch.cuda.mem_get_info(device)[0], "this GPU"
    if weights is not None and weights.nbytes > WEIGHTS_SHARE * free:
        raise ModelError(
            f"{plan.target.name}: its weights need {weights.nbytes / 2**30:.1f} GiB in {dtype}, "
            f"and {place} has {free / 2**30:.1f} GiB free"
        )
