"""InferenceX's golden acceptance lengths: a mean length for each model, thinking mode and K.

Source: golden_al_distribution/ of SemiAnalysisAI/InferenceX at fb9a9ca1. A length is 1 + accepted /
drafts of vLLM's counters, with the bonus token, of heads that draft in every round. Conditions are
only in comments, and the draft model in `_metadata`.
"""

from collections.abc import Iterator
from dataclasses import replace

from specbench.errors import UsageError
from specbench.importers.imported_cell import ImportOverrides, ParsedResult, conditions
from specbench.importers.result_file import COMMENTS, ResultObject
from specbench.records import Kind
from specbench.settings.words import MAX_K

TOOL = "golden acceptance lengths"
METADATA, DRAFT_MODEL = "_metadata", "draft-model"
MODE = "thinking_"  # then on or off

_CELL = "_cell"  # the model, mode and K that `split` picked


def recognizes(result: ResultObject) -> bool:
    models = _models(result)
    return bool(models) and all(
        isinstance(model, dict) and model and all(mode.startswith(MODE) for mode in model)
        for model in models.values()
    )


def split(result: ResultObject) -> Iterator[ResultObject]:
    """A result for each length of the file."""
    for model, mode in _curves(result):
        for k in result.inner(model, mode).values:
            yield replace(result, values={**result.values, _CELL: (model, mode, k)})


def choose(result: ResultObject, curve: str) -> ResultObject:
    """The file with only the curves of a model, a mode or both: `thinking_on`, `model/thinking_on`.

    UsageError lists the curves if none has that name.
    """
    curves = _curves(result) if recognizes(result) else []
    parts = curve.split("/")
    chosen = [pair for pair in curves if all(part in pair for part in parts)]
    if not chosen:
        allowed = ", ".join(map("/".join, curves))
        allowed = allowed or f"K from 0 to {MAX_K}, as in {result.place}#k=4,"
        raise UsageError(f"{result.place}#{curve}: after # only {allowed} is allowed")
    about = {key: result.values[key] for key in (METADATA, COMMENTS) if result.has(key)}
    models = {
        model: {m: result.values[model][m] for of, m in chosen if of == model}
        for model, _ in chosen
    }
    return replace(result, values={**about, **models})


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:  # noqa: ARG001
    """The mode is the workload if none is given."""
    model, mode, key = result.values[_CELL]
    curve = result.inner(model, mode)
    k, length = curve.k_of(key), curve.number(key, low=1)
    if length is None or length > k + 1:
        curve.fail(key, f"expected a length from 1 to {k + 1}")
    about = result.inner(METADATA)
    comments = result.items(COMMENTS) or ()
    return ParsedResult(
        engine="vllm",
        model=model,
        drafter=about.text(DRAFT_MODEL),
        workload=mode,
        parameters=mode,
        num_speculative_tokens=k,
        figures={"mean_acceptance_length": length, "mean_acceptance_length_when_drafted": length},
        warnings=(*conditions({mode: "", **about.values}, *comments), Kind.PAST_THE_END()),
    )


def _models(result: ResultObject) -> dict[str, object]:
    return {n: v for n, v in result.values.items() if n not in (METADATA, COMMENTS, _CELL)}


def _curves(result: ResultObject) -> list[tuple[str, str]]:
    """Model and mode of each curve."""
    return [(model, mode) for model in _models(result) for mode in result.inner(model).values]
