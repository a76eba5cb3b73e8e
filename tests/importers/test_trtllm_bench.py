"""Figures worked out by hand: two requests of 20 tokens at K = 3 took 8 and 10 iterations."""

import json
from dataclasses import replace

import pytest

from specbench.errors import UsageError
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from tests.importers.test_wrong_files import FILES

GIVEN = ImportOverrides(temperature=0.0, concurrency=8)


def imported(tmp_path, given=GIVEN, **stats):
    """The report with other decoding statistics; without any if `mode` is None."""
    report = json.loads((FILES / "trtllm.json").read_text())
    report["decoding_stats"] = report["decoding_stats"] | stats if stats.get("mode", 1) else None
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    (cell,) = import_files([file], given)
    return cell


def test_k_and_acceptance_follow_from_the_means_over_requests(tmp_path):
    cell = imported(tmp_path)
    assert (cell.key.draft.k, cell.key.condition.target) == (3, "Target-8B")
    figures = cell.record.figures
    assert figures["mean_acceptance_length"] == pytest.approx(40 / 18)
    assert figures["mean_acceptance_length_per_request"] == 2.25  # as printed: [AL] AVERAGE
    assert figures["acceptance_rate"] == pytest.approx(22 / 54)
    assert (figures["request_latency_s"], figures["tpot_s"]) == pytest.approx((0.950, 0.045))
    assert (figures["ttft_s"], figures["ttft_s_p95"]) == pytest.approx((0.080, 0.120))
    assert (figures["requests_per_s"], figures["aggregate_tokens_per_s"]) == (2.0, 40.0)


def test_errors_name_the_missing_option_and_the_broken_key(tmp_path):
    with pytest.raises(UsageError, match=r"report\.json#k=0 for a server without speculation"):
        imported(tmp_path, mode=None)
    assert imported(tmp_path, replace(GIVEN, num_speculative_tokens=0), mode=None).key.is_baseline
    with pytest.raises(UsageError, match="--concurrency 8"):
        imported(tmp_path, ImportOverrides(temperature=0.0))
    with pytest.raises(UsageError, match=r"acceptance_length_percentiles\.average: expected"):
        imported(tmp_path, acceptance_length_percentiles={"average": "long"})
