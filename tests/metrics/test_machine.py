"""The machine over a run, on blocks written by hand."""

from collections.abc import Sequence

import pytest

from specbench.metrics.machine import moments
from specbench.records import BlockRecord, DeviceSample, RequestRecord
from specbench.report.charts.canvas import drawing
from specbench.report.charts.lines import machine_chart
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
