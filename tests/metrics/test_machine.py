"""What the machine was like, by requests written by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.cell import CellData, against
from specbench.metrics.machine import (
    UNSTEADY,
    WAITED,
    machine_kind,
    machine_noise,
    machine_prior,
)
from specbench.records import RequestRecord
from specbench.stats.machine_noise import MachineKind
from tests.cell_keys import BASE_KEY, with_axes
from tests.decide.cells import draft, stream
from tests.made_records import made_request, steps
from tests.served_sessions import varied_sweep

DRAFTED = with_axes(BASE_KEY, drafter="draft", method="draft_model", num_speculative_tokens=3)


def request(cell_id: str, prompt: str, *, slow: float = 1.0, cpu_s: float = 1.1) -> RequestRecord:
    return made_request(cell_id, prompt, steps(10, 0.1 * slow), cpu_s=cpu_s)


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


def test_two_starts_of_a_server_are_not_taken_for_alike():
    cells = [c for c in aggregate_run(varied_sweep({"plain": 1.0, "graphs": 0.9})) if c.k]
    first = cells[0]
    second = next(c for c in cells if c.key.condition.variant != first.key.condition.variant)
    both = against(second, first)
    assert both.is_alike
    assert machine_prior(both).variance == machine_kind(both).assumed ** 2
    in_process = replace(both, servers=())
    assert machine_prior(in_process).variance < machine_kind(in_process).assumed ** 2


def test_at_a_request_rate_the_machine_shows_in_the_seconds_of_tokens():
    """The arrivals set the seconds of a pass, which are the same on both sides."""
    decode_s = [0.5, 0.5, 0.9, 0.9, 0.5, 0.5]
    base = stream(with_axes(BASE_KEY, request_rate=2.0), [1.0] * 6)
    spec = stream(draft(4, request_rate=2.0), decode_s)
    lasting = tuple(p._replace(record=replace(p.record, seconds=9.0)) for p in spec.passes)
    cell = against(replace(spec, passes=lasting), base)
    of_arrivals = tuple(p._replace(record=replace(p.record, seconds=9.0)) for p in base.passes)
    cell = replace(cell, baseline_passes=of_arrivals)
    expected = machine_prior(cell).with_run([math.log(1 / seconds) for seconds in decode_s])
    assert machine_noise(cell).variance == pytest.approx(expected.variance)
    assert expected.variance > machine_prior(cell).with_run([0.0] * 6).variance
