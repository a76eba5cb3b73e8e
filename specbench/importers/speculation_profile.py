"""Model Optimizer's `speculation_profile.json`, a file in a draft model's checkpoint.

Sources: NVIDIA/Model-Optimizer pull requests 2247 (examples/specdec_bench), 2313 and 2315, at
edf879d3; schema_version 1.0. Lengths include the bonus token, and are over rounds. Conditional
rates are P(draft i accepted | those before it were), marginal ones P(drafts 1 .. i accepted).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from specbench.importers.imported_cell import Figures, ImportOverrides, ParsedResult, conditions
from specbench.importers.result_file import ResultObject
from specbench.importers.specdec_bench import ENGINES
from specbench.records import Kind
from specbench.settings.words import MAX_K
from specbench.stats.rounds import conditional_rates, joint_rates, mean_length_from_rates

TOOL = "speculation_profile.json"
SCHEMA_VERSION = "1.0"
CHAIN, PER_K = "chain_analytic", "measured_per_k"  # of accept_length_model

TOLERANCE = 0.02  # of the format's own check of its mean
_LENGTH, _BY_K, _K = "mean_accept_length", "accept_length_by_k", "num_speculative_tokens"
_MARGINAL, _CONDITIONAL = "marginal_accept_rates", "conditional_accept_rates"
_HISTOGRAM = "acceptance_length_histogram"
# Keys with figures of only the K that was measured round by round.
_OF_ONE_K = (_MARGINAL, _CONDITIONAL, _HISTOGRAM, "mean_accept_length_per_request")


def recognizes(result: ResultObject) -> bool:
    return result.has("schema_version") and any(
        result.has(key) for key in ("measured", _MARGINAL, _CONDITIONAL, _LENGTH)
    )


def split(result: ResultObject) -> Iterator[ResultObject]:
    """The profile, and one for each other K of which it has the mean length."""
    yield result
    by_k = result.inner(_BY_K)
    for key in by_k.values:
        if key != str(result.values.get(_K)):
            kept = {k: v for k, v in result.values.items() if k not in _OF_ONE_K}
            about = {_K: by_k.k_of(key), _LENGTH: by_k.number(key, low=1)}
            yield replace(result, values={**kept, **about})


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:  # noqa: ARG001
    """The conditions that cells need are read under the names that `export` writes."""
    version = str(result.values["schema_version"])
    if version.partition(".")[0] != "1":
        result.fail("schema_version", f"1.0 is read, not {version[:40]}")
    if result.values.get("measured") is False:
        result.fail("measured", "false: a placeholder without a measurement; take another file")
    k = result.whole(_K)
    if k is None or not 0 < k <= MAX_K:
        result.fail(_K, f"expected a whole number from 1 to {MAX_K}")
    measured_with = result.inner("measurement_conditions")
    engine = measured_with.text("engine") or "unknown"
    is_of_chunks = result.text("producer") is None and result.has(_HISTOGRAM)
    return ParsedResult(
        engine=ENGINES.get(engine, engine),
        model=_model(result, "target_model"),
        drafter=_model(result, "draft_checkpoint"),
        method=result.text("method"),
        workload=measured_with.text("dataset"),
        num_speculative_tokens=k,
        is_chain=result.text("accept_length_model") == CHAIN,
        concurrency=measured_with.whole("concurrency"),
        temperature=measured_with.number("temperature"),
        num_completed=measured_with.whole("num_samples"),
        figures=_figures(result, k),
        warnings=(*conditions(measured_with.values), *([Kind.CHUNKS()] if is_of_chunks else [])),
    )


def _figures(result: ResultObject, k: int) -> Figures:
    """Lengths and rates of K; UsageError if they contradict each other."""
    marginal, conditional = (_rates(result, key, k) for key in (_MARGINAL, _CONDITIONAL))
    length = result.number(_LENGTH, low=1)
    if marginal is None and conditional is not None:
        marginal = tuple(joint_rates(conditional))
    if marginal is None:
        if length is None or length > k + 1:
            result.fail(_LENGTH, f"without rates, expected a number from 1 to {k + 1}")
        return {"mean_acceptance_length": length, **_counts(result, k)}
    for i, (before, rate) in enumerate(pairwise((1.0, *marginal))):
        if rate > before:
            result.fail(f"{_MARGINAL}[{i}]", f"{rate:g} rises: two drafts cannot be accepted more "
                        "often than one")  # fmt: skip
    implied = mean_length_from_rates(marginal)
    if conditional is not None and _differ(
        implied, mean_length_from_rates(joint_rates(conditional))
    ):
        result.fail(_CONDITIONAL, f"contradicts {_MARGINAL}")
    if length is not None and _differ(implied, length):
        result.fail(_LENGTH, f"{length:g} contradicts the rates, which give {implied:.3f}")
    return {
        "mean_acceptance_length": length or implied,
        "mean_acceptance_length_per_request": result.number("mean_accept_length_per_request"),
        "acceptance_rate_per_position": marginal,
        "conditional_acceptance_rate": conditional or conditional_rates(marginal),
        **_counts(result, k),
    }


def _rates(result: ResultObject, key: str, k: int) -> tuple[float, ...] | None:
    rates = result.numbers(key)
    if rates is not None and len(rates) != k:
        result.fail(key, f"{len(rates)} rates for K={k}")
    for i, rate in enumerate(rates or ()):
        if rate > 1:
            result.fail(f"{key}[{i}]", f"expected a share from 0 to 1, not {rate:g}")
    return rates


def _counts(result: ResultObject, k: int) -> Figures:
    """The number of rounds of each length."""
    lengths = range(1, k + 2)
    histogram = result.inner(_HISTOGRAM).histogram(lengths, f"a length from 1 to {k + 1} at K={k}")
    counts = tuple(float(histogram.get(length, 0)) for length in lengths)
    return {"acceptance_histogram": counts, "num_rounds": sum(counts)} if any(counts) else {}


def _model(result: ResultObject, key: str) -> str | None:
    """A model, named directly or by the id in an object about it."""
    value = result.values.get(key)
    return result.inner(key).text("id") if isinstance(value, dict) else result.text(key)


def _differ(length: float, other: float) -> bool:
    return abs(length - other) > TOLERANCE
