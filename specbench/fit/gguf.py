"""Whether llama.cpp drafts for one GGUF file with another, and the memory of both.

Source: common/speculative.cpp of llama.cpp, October 2026.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.errors import ModelError, UsageError
from specbench.files.gguf import GgufFile, differences, gguf_of
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import (
    CandidateList,
    Discovery,
    DraftCandidate,
    SkippedModel,
    plain_name,
    with_lookup,
    with_unique_names,
)
from specbench.fit.compatibility import Compatibility, FitFinding, Level, finding
from specbench.fit.memory_plan import DeploymentSpec, MemoryPlan, Peak, longest_that_fits
from specbench.fit.weights import Weights
from specbench.inputs.pairing import TARGET_ONLY, DrafterSpec, Target
from specbench.methods import (
    LOOKUPS,
    MODEL_METHOD,
    SET_LOOKUP,
    find_method,
    gguf_draftless,
    gguf_method,
)
from specbench.stats.rounds import bytes_per_forward, roofline_s

_BATCH = 512  # prompt tokens per forward pass: llama.cpp's default
_SERVES = "llama-server starts, but drafts nothing; builds before 2026-05-16 translate the drafts"
_MISFIT = "llama-server does not start, or accepts next to nothing"
_NOTES = (
    "KV cache in f16 for the whole context in every layer; weights as stored, on one device",
    f"peak: with the logits of a batch of {_BATCH} tokens, an estimate of llama.cpp's buffers",
)


def discover_gguf(file: GgufFile, folders: Sequence[Path], lookups: Sequence[str]) -> Discovery:
    """What can draft for a GGUF file: its own MTP layers, the files next to it and below `folders`,
    both together with a lookup, and these lookups; and files that cannot. UsageError for a missing
    folder."""
    methods = [m for m in gguf_draftless(file) if m in lookups or m not in LOOKUPS]
    drafters = [DrafterSpec(name=method, method=method) for method in methods]
    left_out = []
    for path in _paths(file, folders):
        spec = ModelSpec(source=str(path), folder=path.absolute())
        try:
            draft = gguf_of(spec)
            method = gguf_method(draft)
            if method == MODEL_METHOD and draft.num_elements >= file.num_elements:
                counts = f"{draft.num_elements:,} parameters against {file.num_elements:,}"
                raise ModelError(f"not smaller than the target: {counts}")
        except ModelError as error:
            left_out.append(SkippedModel(source=str(path), reason=str(error)))
        else:
            drafters.append(DrafterSpec(name=plain_name(path.stem), method=method, model=spec))
    if SET_LOOKUP in lookups:
        drafters += [with_lookup(d, SET_LOOKUP) for d in drafters if d.method not in LOOKUPS]
    drafters.sort(key=lambda d: d.method in LOOKUPS)  # those with weights first: they gain more
    return Discovery(drafters=with_unique_names(drafters), left_out=tuple(left_out))


def _paths(target: GgufFile, folders: Sequence[Path]) -> Iterator[Path]:
    """The GGUF files next to the target and below the folders, without those of the target."""
    paths = sorted(target.path.parent.glob("*.gguf"))
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--search-dir {folder}: folder not found")
        paths += sorted(folder.rglob("*.gguf"))
    places = {tensor.file.resolve() for tensor in target.tensors.values()}
    for path in paths:
        if (place := path.resolve()) not in places:
            places.add(place)
            yield path


def prepare_gguf(
    target: Target,
    file: GgufFile,
    drafters: Sequence[DrafterSpec],
    setup: DeploymentSpec,
    *,
    left_out: Sequence[SkippedModel] = (),
) -> tuple[CandidateList, dict[str, GgufFile]]:
    """The candidates, and the readable files by name; ModelError for the target's file."""
    plain = plan_gguf(file, None, TARGET_ONLY, setup)
    files, candidates = {target.name: file}, []
    for drafter in drafters:
        plan: MemoryPlan | None = None
        draft: GgufFile | None = None
        findings: list[FitFinding] = []
        try:
            if drafter.model is not None:
                draft = gguf_of(drafter.model)
                findings += gguf_findings(file, draft)
            elif find_method(drafter.method).parts[0] not in gguf_draftless(file):
                reason = "llama.cpp does not have it, or this file lacks its layers"
                findings.append(finding("method", "refused", reason=reason))
            plan = plan_gguf(file, draft, drafter, setup)
            files |= {drafter.name: draft} if draft else {}
        except ModelError as error:
            findings = [finding("files", "refused", reason=str(error))]
        checked = Compatibility(drafter=drafter, findings=tuple(findings))
        plan = None if checked.level == "refused" else plan
        candidates.append(DraftCandidate(compatibility=checked, plan=plan))
    prepared = CandidateList(
        target=target,
        findings=(),
        target_plan=plain,
        candidates=tuple(candidates),
        experts=file.experts,
        left_out=tuple(left_out),
    )
    return prepared, files


def gguf_findings(target: GgufFile, draft: GgufFile) -> Iterator[FitFinding]:
    """Findings on the differences, most of which llama.cpp refuses; ModelError."""
    is_model = gguf_method(draft) == MODEL_METHOD
    for field, of_target, of_draft, is_refused, reason in differences(target, draft):
        level: Level = "refused" if is_refused else "warning"
        effect = (_SERVES if is_model else _MISFIT) if is_refused else "it is accepted"
        yield finding(field, level, of_target, of_draft, f"{reason}: {effect}")


def plan_gguf(
    target: GgufFile, draft: GgufFile | None, drafter: DrafterSpec, setup: DeploymentSpec
) -> MemoryPlan:
    """The memory plan of a draft model with its target, or of only the target; an upper bound.
    ModelError."""
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
    rows, memory, speed = setup.concurrency, setup.memory_bytes, setup.bytes_per_s
    k = setup.num_speculative_tokens if draft else 0
    forwards = 0
    if draft:
        shape = find_method(drafter.method).shape(drafter.parameters, k)
        forwards = shape.num_forwards - shape.num_small

    def peak(context: int) -> Peak:
        slots = rows * (context + k + 1)
        widths = (len(f.vocabulary.tokens) + f.number("embedding_length") for f in files)
        return Peak(
            weights=sum(model.nbytes for model in weights),
            kv_cache=slots * sum(model.kv_bytes_per_token for model in weights),
            rest=_BATCH * 4 * sum(widths),
        )

    planned, limit = peak(setup.context), target.longest_context
    reads = [(w.read_bytes, rows, setup.context, w.kv_bytes_per_token) for w in weights]
    seconds = [roofline_s(bytes_per_forward(*read), speed) for read in reads if speed]
    return MemoryPlan(
        drafter=drafter.name,
        method=drafter.method,
        dtype=target.quantization,
        target=weights[0],
        draft=weights[1] if draft else None,
        num_drafts=k,
        peak=planned,
        headroom_bytes=None if memory is None else memory - planned.total,
        max_context=None if memory is None else longest_that_fits(peak, memory, limit),
        step_s=seconds[0] if seconds else None,
        round_s=seconds[0] + forwards * seconds[1] if seconds and draft else None,
        notes=_NOTES,
        is_most=True,
    )
