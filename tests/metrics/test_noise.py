"""Signs of a noisy machine in what a run measured, by hand."""

from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.metrics.machine import all_signs, noise_signs
from specbench.records import Kind
from tests.cell_keys import BASE_KEY, KEY, with_axes
from tests.made_records import made_request, steps

PROMPTS = [f"p{i}" for i in range(6)]


def plain(*scales: float, cpu_share: float = 1.0, hiccup: float = 0.0, key=BASE_KEY) -> CellData:
    """Every prompt once for each scale of its 10 ms steps; `hiccup`: more seconds in one of ten."""
    requests = []
    for repeat, scale in enumerate(scales):
        for prompt in PROMPTS:
            rounds = steps(10, 0.01 * scale)
            last = rounds.round_s[-1] + hiccup
            rounds = replace(rounds, round_s=(*rounds.round_s[:-1], last))
            seconds = 0.1 + sum(rounds.round_s)
            requests.append(
                made_request(key.id, prompt, rounds, repeat=repeat, cpu_s=cpu_share * seconds)
            )
    return CellData(key=key, requests=tuple(requests))


def test_a_steady_machine_has_no_noise_signs():
    assert noise_signs([plain(1.0, 1.1)], device="cpu") == ()
    assert noise_signs([plain(1.0, hiccup=0.02)], device="cpu") == ()  # 12 ms, and 10


def test_later_turns_are_not_compared_for_drift():
    cell = plain(1.0, 1.5)
    turns = tuple(replace(r, turn=r.repeat, repeat=0) for r in cell.requests)
    assert noise_signs([replace(cell, requests=turns)], device="cpu") == ()


@pytest.mark.parametrize(
    ("cell", "device", "expected"),
    [
        (
            plain(1.0, hiccup=0.089),
            "cpu",
            Kind.UNEVEN_ROUNDS(mean_s=pytest.approx(0.0189), median_s=0.01),
        ),
        (plain(1.0, 1.5), "cpu", Kind.DRIFTED(factor=pytest.approx(1.5))),
        (plain(1.5, 1.0), "cpu", Kind.DRIFTED(factor=pytest.approx(1.5))),
        (plain(1.0, cpu_share=0.6), "cpu", Kind.WAITED(share=pytest.approx(0.6))),
    ],
)
def test_each_noise_sign_is_detected(cell, device, expected):
    assert noise_signs([cell], device=device) == (expected,)


def test_drift_between_both_measurements_of_a_winner_is_a_noise_sign():
    (sign,) = noise_signs([plain(1.0), plain(1.6)], device="cpu")
    assert sign == Kind.DRIFTED(factor=pytest.approx(1.6))


def test_a_prompt_measured_once_is_ignored_in_the_drift_check():
    once = [plain(1.0, key=with_axes(BASE_KEY, workload=name)) for name in ("chat", "creative")]
    (sign,) = noise_signs([plain(1.0, 1.5), *once], device="cpu")
    assert sign == Kind.DRIFTED(factor=pytest.approx(1.5))


def test_a_process_that_waits_for_a_gpu_is_not_disturbed():
    assert noise_signs([plain(1.0, cpu_share=0.2)], device="cuda:0") == ()


def test_varying_times_of_drafted_cells_are_no_noise_signs():
    assert noise_signs([plain(1.0, 3.0, key=KEY)], device="cpu") == ()


@pytest.mark.parametrize(
    ("cell", "device", "threads", "is_advised"),
    [
        (plain(1.0, 1.5), "cpu", 2, True),
        (plain(1.0, 1.5), "cpu", 1, False),
        (plain(1.0, 1.5), "cpu", None, False),
        (plain(1.0, 1.5), "cuda:0", 8, False),
        (plain(1.0, 1.1), "cpu", 2, False),  # quiet
    ],
)
def test_fewer_threads_are_advised_if_they_would_help(cell, device, threads, is_advised):
    signs = noise_signs([cell], device=device, threads=threads)
    assert (Kind.THREADS_WAIT(threads=threads, fewer=1) in signs) == is_advised


def test_a_number_of_threads_is_advised_once():
    later = noise_signs([plain(1.0, 1.5)], device="cpu", threads=4)
    early = (Kind.THREADS_WAIT(threads=4, fewer=2),)
    assert all_signs((), later) == later
    assert all_signs(early, later) == (*early, later[0])
