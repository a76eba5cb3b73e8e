"""Whether llama.cpp drafts for one GGUF file with another, and the memory of both.

Source: common/speculative.cpp of llama.cpp, October 2026.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.errors import ModelError
from specbench.files.gguf import FIRST_COMPARED_ID, MAX_VOCAB_DIFFERENCE, GgufFile, read_gguf
from specbench.fit.candidates import DraftCandidate, Prepared
from specbench.fit.compatibility import Compatibility, FitFinding, Level, finding
from specbench.fit.memory_plan import DeploymentSpec, MemoryPlan, Peak, longest_that_fits
from specbench.fit.weights import Weights
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.methods import METHODS
from specbench.stats.rounds import bytes_per_forward, roofline_s

_BATCH = 512  # tokens of a forward of a prompt: llama.cpp's default
_SERVES = "llama-server starts, but drafts nothing; builds before 2026-05-16 translate the drafts"
_NOTES = (
    "KV cache in f16 for the whole context in every layer; weights as stored, on one device",
    f"peak: with the logits of a batch of {_BATCH} tokens, an estimate of llama.cpp's buffers",
)


def prepare_gguf(
    target: Target, file: GgufFile, drafters: Sequence[DrafterSpec], setup: DeploymentSpec
) -> tuple[Prepared, dict[str, GgufFile]]:
    """Verdicts, plans, and the files that can be read by name; ModelError for the target's."""
    alone = plan_gguf(file, None, DrafterSpec(name="none", method="none"), setup)
    files, candidates = {target.name: file}, []
    for drafter in drafters:
        assert drafter.model is not None
        plan = None
        try:
            draft = read_gguf(Path(drafter.model.source).expanduser())
            plan = plan_gguf(file, draft, drafter, setup)
            findings, files[drafter.name] = tuple(gguf_findings(file, draft)), draft
        except ModelError as error:
            findings = (finding("files", "refused", reason=str(error)),)
        checked = Compatibility(drafter=drafter, findings=findings)
        plan = None if checked.level == "refused" else plan
        candidates.append(DraftCandidate(compatibility=checked, plan=plan))
    return Prepared(target=target, findings=(), alone=alone, candidates=tuple(candidates)), files


def gguf_findings(target: GgufFile, draft: GgufFile) -> Iterator[FitFinding]:
    """Differences, most of which llama.cpp refuses; ModelError."""
    ours, theirs = target.vocabulary, draft.vocabulary
    sizes = len(ours.tokens), len(theirs.tokens)
    is_too_far = abs(sizes[0] - sizes[1]) > MAX_VOCAB_DIFFERENCE
    compared = range(FIRST_COMPARED_ID, min(sizes))
    different = [i for i in compared if ours.tokens[i] != theirs.tokens[i]]
    first = different[0] if different else 0
    tokens = (repr(ours.tokens[first]), repr(theirs.tokens[first])) if different else ("", "")
    kind = "head" if draft.architecture in METHODS else "draft model"
    rules: tuple[tuple[str, object, object, bool, str], ...] = (
        ("kind", "draft model", kind, True, "heads are not compared here"),
        ("tokenizer", ours.tokenizer, theirs.tokenizer, True, "another kind"),
        ("add_bos_token", ours.add_bos, theirs.add_bos, True, "only one adds it to prompts"),
        ("add_eos_token", ours.add_eos, theirs.add_eos, True, "only one adds it to prompts"),
        ("bos_token_id", ours.bos, theirs.bos, ours.add_bos, "another token"),
        ("eos_token_id", ours.eos, theirs.eos, ours.add_eos, "another token"),
        ("vocab_size", *sizes, is_too_far, f"may differ by {MAX_VOCAB_DIFFERENCE} tokens"),
        ("tokens", *tokens, True, f"ids with other tokens: {len(different):,}, first {first}"),
    )
    for field, of_target, of_draft, is_refused, reason in rules:
        level: Level = "refused" if is_refused else "warning"
        effect = _SERVES if is_refused else "it is accepted"
        if of_target != of_draft:
            yield finding(field, level, of_target, of_draft, f"{reason}: {effect}")


def plan_gguf(
    target: GgufFile, draft: GgufFile | None, drafter: DrafterSpec, setup: DeploymentSpec
) -> MemoryPlan:
    """The plan of a draft model with its target, or of the target only; ModelError."""
    files = [target, *([draft] if draft else [])]
    weights = [
        Weights(
            num_parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            nbytes=file.nbytes,
            read_bytes=file.read_bytes,
            kv_bytes_per_token=file.kv_bytes_per_token,
            is_exact=True,
            basis="headers",
        )
        for file in files
    ]
    rows, room, speed = setup.concurrency, setup.memory_bytes, setup.bytes_per_s
    k = setup.num_speculative_tokens if draft else 0

    def peak(context: int) -> Peak:
        slots = rows * (context + k + 1)
        widths = (len(f.vocabulary.tokens) + f.number("embedding_length") for f in files)
        return Peak(
            weights=sum(model.nbytes for model in weights),
            kv_cache=slots * sum(model.kv_bytes_per_token for model in weights),
            rest=_BATCH * 4 * sum(widths),
        )

    at, limit = peak(setup.context), target.number("context_length", 0) or None
    reads = [(w.read_bytes, rows, setup.context, w.kv_bytes_per_token) for w in weights]
    seconds = [roofline_s(bytes_per_forward(*read), speed) for read in reads if speed]
    return MemoryPlan(
        drafter=drafter.name,
        method=drafter.method,
        dtype=target.quantization,
        target=weights[0],
        draft=weights[1] if draft else None,
        num_drafts=k,
        peak=at,
        headroom_bytes=None if room is None else room - at.total,
        max_context=None if room is None else longest_that_fits(peak, room, limit),
        step_s=seconds[0] if seconds else None,
        round_s=seconds[0] + k * seconds[1] if seconds and draft else None,
        notes=_NOTES,
    )
