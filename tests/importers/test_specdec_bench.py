"""Figures calculated by hand from files/specdec_bench, a folder as --save_dir writes it."""

import json

import pytest

from specbench.errors import UsageError
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from tests.importers.test_wrong_files import FILES

SAVED = FILES / "specdec_bench"


def saved(folder, *, runs=({},), times=({},), **options):
    """The folder with other values of each run, its times and its options."""
    folder.mkdir(exist_ok=True)
    for name, changes in (("acceptance_rate", runs), ("timing", times)):
        (item,) = json.loads((SAVED / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps([item | values for values in changes]))
    configuration = json.loads((SAVED / "configuration.json").read_text())
    (folder / "configuration.json").write_text(json.dumps(configuration | options))
    return folder


def imported(folder):
    return import_files([folder], ImportOverrides())


def test_a_folder_is_a_cell_with_its_load():
    (cell,) = imported(SAVED)
    setting = cell.key.condition
    assert (cell.key.draft.k, setting.concurrency, setting.temperature) == (3, 4, 0)
    assert (setting.target, setting.workload, setting.engine) == ("Target-8B", "speed", "vllm")
    figures = dict(cell.record.figures)
    assert figures.pop("acceptance_rate_per_position") == (0.6, 0.3, 0.3)
    lengths = {"num_rounds": 10, "mean_acceptance_length": (4 + 6 + 12) / 10}
    times = {"request_latency_s": 1.25, "ttft_s": 0.08, "user_tokens_per_s": 44.0}
    printed = {"aggregate_tokens_per_s": 120.0, "mean_acceptance_length_per_request": 2.2}
    assert figures == pytest.approx(lengths | times | printed)


def test_a_server_without_speculation_is_k_0_and_runs_of_a_folder_are_repeats(tmp_path):
    plain = {"Average_AL": 1.0, "Acceptance_Length_Histogram": {"1": 40}}
    saved(tmp_path / "k0", runs=[plain], speculative_algorithm="NONE")
    several = {"runs": [{}, {"Average_AL": 2.3}], "times": [{}, {"Output TPS": 130.0}]}
    saved(tmp_path / "k3", **several)
    base, spec = imported(tmp_path)
    assert base.key.is_baseline
    assert "mean_acceptance_length" not in base.record.figures
    assert (spec.key.draft.k, spec.record.figures["aggregate_tokens_per_s"]) == (3, 125.0)


def test_errors_name_the_file_and_the_key(tmp_path):
    folder = saved(tmp_path, draft_length=2)
    with pytest.raises(UsageError, match=r"Histogram\.4: expected 1 to 3 tokens .* at K=2"):
        imported(folder)
    with pytest.raises(UsageError, match=r"timing\.json\[0\]: .*import its folder"):
        imported(folder / "timing.json")
    with pytest.raises(UsageError, match="#k=4"):  # a block size leaves K open
        imported(saved(tmp_path, speculative_algorithm="DFLASH"))
    with pytest.raises(UsageError, match=r"timing\.TTFT Time\.quantiles\.0\.5: expected a number"):
        imported(saved(tmp_path, times=[{"TTFT Time": {"quantiles": {"0.5": "soon"}}}]))
