"""The machine over a run, on blocks written by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.metrics.machine import UNSTEADY, WAITED, machine_kind, moments
from specbench.records import BlockRecord, DeviceSample, RequestRecord
from specbench.report.charts.canvas import drawing
from specbench.report.charts.lines import machine_chart
from specbench.stats.machine_noise import MachineKind
from tests.cell_keys import BASE_KEY, with_axes
from tests.made_records import made_block, made_request, steps
from tests.report.test_figures import texts

DRAFTED = with_axes(BASE_KEY, drafter="draft", method="draft_model", num_speculative_tokens=3)


def request(
    cell_id: str, prompt: str, *, slow: float = 1.0, clock: int = 1700, cpu_s: float = 1.1
) -> RequestRecord:
    log = steps(10, 0.1 * slow)
    device = DeviceSample(num_samples=1, sm_clock_mhz=clock, sm_clock_default_mhz=1755)
    return made_request(cell_id, prompt, log, cpu_s=cpu_s, device=device)


def block(second: int, *requests: RequestRecord) -> BlockRecord:
    return made_block(
        f"p{second}", *requests, started_at=f"2026-11-21T01:02:{second:02d}.000+00:00"
    )


def test_a_run_reports_its_progress() -> None:
    timeline = moments(
        [
            block(0, request(BASE_KEY.id, "p0"), request(DRAFTED.id, "p0", clock=900)),
            block(10, request(BASE_KEY.id, "p10")),
            block(20, request(BASE_KEY.id, "p20", slow=2.0)),
        ],
        [BASE_KEY, DRAFTED],
        [DRAFTED],
    )
    # The second request of a block began when the first had ended, 0.1 + 10 * 0.1 s later.
    assert [round(moment.at_s) for moment in timeline] == [0, 1, 10, 20]
    assert [moment.sm_clock_mhz for moment in timeline] == [1700, 900, 1700, 1700]
    assert [moment.baseline_speed for moment in timeline] == [1.0, None, 1.0, 0.5]
    assert [moment.cpu_share for moment in timeline] == pytest.approx([1, 1, 1, 1.1 / 2.1])
    assert [moment.invalid for moment in timeline] == [(), ("demo/draft K=3",), (), ()]


def test_the_time_line_of_many_requests_is_thinned() -> None:
    blocks = [block(i % 60, request(BASE_KEY.id, f"p{i}")) for i in range(600)]
    assert len(moments(blocks, [BASE_KEY], [])) <= 200


@pytest.mark.parametrize("blocks", [[], [block(0, request(BASE_KEY.id, "p0"))]])
def test_a_single_sample_gives_no_time_line(blocks: Sequence[BlockRecord]) -> None:
    assert moments(blocks, [BASE_KEY], []) == ()
    assert machine_chart((), "cpu") is None


def test_the_chart_marks_invalid_cells_by_name() -> None:
    timeline = moments(
        [block(0, request(DRAFTED.id, "p0")), block(9, request(BASE_KEY.id, "p9"))],
        [BASE_KEY, DRAFTED],
        [DRAFTED],
    )
    with drawing():
        chart = machine_chart(timeline, "cuda:0")
    assert chart is not None
    assert {"SM clock", "MHz", "CPU of this process"} <= set(texts(chart))
    assert "speed of K=0" not in texts(chart)  # only one sample has it
    assert all("<title>0 s: demo/draft K=3</title>" in panel for panel in chart.panels)
    assert all(panel.count(" s: ") == 1 for panel in chart.panels)  # the other mark is missing


def test_a_process_with_zero_cpu_time_still_has_a_chart() -> None:
    blocks = [block(i, request(BASE_KEY.id, f"p{i}", cpu_s=0.0)) for i in range(2)]
    with drawing():
        chart = machine_chart(moments(blocks, [BASE_KEY], []), "cpu")
    assert chart is not None
    assert "CPU of this process" in texts(chart)


def steady_cell(
    slow: Sequence[float] = (1.0,) * 6, cpu_share: float = 1.0, device: str = "cpu"
) -> CellData:
    """Requests at K = 0 with 10 steps each; one takes 0.1 s to its first token, then 1 s."""
    baseline = tuple(
        request(BASE_KEY.id, f"p{i}", slow=factor, cpu_s=cpu_share * (0.1 + factor))
        for i, factor in enumerate(slow)
    )
    return CellData(key=DRAFTED, requests=(), baseline=baseline, device=device)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (steady_cell(), MachineKind.QUIET_CPU),
        (steady_cell(cpu_share=WAITED), MachineKind.QUIET_CPU),
        (steady_cell(cpu_share=0.99 * WAITED), MachineKind.SHARED_CPU),
        (steady_cell(slow=(1.0, 1.3, 0.9, 1.2, 1.0, 0.8)), MachineKind.UNSTEADY_CPU),
        (
            steady_cell(slow=(1.0,) * 4),
            MachineKind.UNSTEADY_CPU,
        ),  # four do not show that it is quiet
        (steady_cell(slow=()), MachineKind.UNSTEADY_CPU),
        (steady_cell(slow=(1.0, 3.0) * 3, device="cuda:0"), MachineKind.GPU),
        (steady_cell(slow=(1.0, 3.0) * 3, device="server"), MachineKind.SERVER),
    ],
)
def test_the_kind_of_machine_follows_from_its_device_and_from_k_0(cell, kind):
    assert machine_kind(cell) is kind


def test_a_cpu_is_quiet_up_to_a_deviation_of_the_speed_of_k_0():
    # Logs of seconds that alternate by d around their mean: deviation d * sqrt(6 / 5).
    for factor, kind in ((0.98, MachineKind.QUIET_CPU), (1.02, MachineKind.UNSTEADY_CPU)):
        d = factor * UNSTEADY / math.sqrt(6 / 5)
        slow = [math.exp(sign * d) for sign in (1, -1) * 3]
        assert machine_kind(steady_cell(slow=slow)) is kind


def test_other_speeds_of_k_do_not_make_a_machine_busy():
    drafted = [request(DRAFTED.id, f"p{i}", slow=1.0 + i) for i in range(6)]
    assert machine_kind(replace(steady_cell(), requests=tuple(drafted))) is MachineKind.QUIET_CPU
