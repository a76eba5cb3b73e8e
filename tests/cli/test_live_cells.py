"""What is shown of cells while they are measured, by hand."""

import re
from types import SimpleNamespace
from typing import Any, cast

from specbench.cli.progress import MOST_LINES, FinishedCells, LiveCells
from specbench.records import Fixed, PassRecord, RoundLog
from tests.cell_keys import BASE_KEY, KEY
from tests.made_records import made_block, made_request, steps

# 2 rounds of 4 and 2 tokens after the prefill's first.
ROUNDS = RoundLog(num_drafted=(4, 4), num_accepted=(3, 1), num_emitted=(4, 2), round_s=(0.1, 0.1))


def block_of(*keys: Any) -> Any:
    return cast(Any, SimpleNamespace(cells=[SimpleNamespace(key=key) for key in keys]))


def test_live_cells_count_a_repeated_prompt_once() -> None:
    cells = LiveCells()
    for prompt, repeat in (("p1", 0), ("p1", 1), ("p2", 0)):
        request = made_request(KEY.id, prompt, ROUNDS, decode_s=0.1 if repeat else 0.2)
        cells.add(block_of(KEY), made_block(prompt, request, repeat=repeat))
    assert cells.recent() == [f"{KEY.label}, 36.0 tok/s, 3.00 tokens per round, 2 prompts"]


def test_concurrent_requests_are_timed_by_their_pass_with_every_token() -> None:
    requests = [made_request(KEY.id, name, ROUNDS) for name in ("p1", "p2")]
    pass_record = PassRecord(cell_id=KEY.id, seconds=0.5, rounds=None)
    alone = made_request(BASE_KEY.id, "p1", steps(9))
    stray = PassRecord(cell_id="of another block", seconds=9.0, rounds=None)
    cells = LiveCells()
    block = made_block("all", alone, *requests, passes=(pass_record, stray))
    cells.add(block_of(KEY, BASE_KEY), block)
    assert cells.recent() == [
        f"{KEY.label}, 28.0 tok/s, 3.00 tokens per round, 2 prompts",
        f"{BASE_KEY.label}, 10.0 tok/s, 1 prompt",
    ]


def test_a_request_that_failed_is_counted_and_has_no_speed() -> None:
    cells = LiveCells()
    lost = made_request(KEY.id, "p1", ROUNDS, error="out of memory")
    cells.add(block_of(KEY), made_block("p1", lost))
    assert cells.recent() == [f"{KEY.label}, 1 failed, 1 prompt"]


def test_only_the_last_block_is_shown_and_no_more_than_fits() -> None:
    keys = [KEY.at(Fixed(k)) for k in range(1, 17)]
    cells = LiveCells()
    cells.add(block_of(BASE_KEY), made_block("p1", made_request(BASE_KEY.id, "p1", steps(2))))
    requests = [made_request(key.id, "p1", ROUNDS) for key in keys]
    cells.add(block_of(*keys, BASE_KEY), made_block("p1", *requests))
    lines = cells.recent()
    assert len(lines) == MOST_LINES
    assert [line.partition(",")[0] for line in lines] == [key.label for key in keys][:MOST_LINES]
    cells.add(block_of(KEY), made_block("p2"))  # not begun
    assert cells.recent() == []


def measured(purpose: str, prompt: str, *keys: Any, session: str | None = None) -> tuple[Any, Any]:
    """A block of these cells; K = 0 takes 0.4 s per token, every other K 0.1 s per round."""
    requests = [
        made_request(k.id, prompt, ROUNDS if k.draft.k else steps(6, 0.1), decode_s=None)
        if session
        else made_request(k.id, prompt, ROUNDS if k.draft.k else steps(6, 0.1))
        for k in keys
    ]
    block = SimpleNamespace(
        **vars(block_of(*keys)), condition=KEY.condition, purpose=purpose, session=session
    )
    return cast(Any, block), made_block(prompt, *requests, purpose=purpose, session=session)


def columns(line: str) -> list[str]:
    return re.split("  +", line)


def test_a_cell_is_finished_when_later_blocks_omit_it() -> None:
    cells, other = FinishedCells(), KEY.at(Fixed(1))
    assert cells.add(*measured("explore", "p1", BASE_KEY, KEY, other)) == []
    (line,) = cells.add(*measured("explore", "p2", BASE_KEY, KEY))
    time, name, workload, k, _, prompts, note = columns(line)  # without the speedup of one prompt
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
    assert (name, workload, k) == (KEY.source, KEY.condition.workload, "K=1")
    assert (prompts, note) == ("1 prompt", "too few for an interval")


def test_finished_cell_lines_are_aligned_and_name_their_phase() -> None:
    cells = FinishedCells()
    for i in range(6):
        assert cells.add(*measured("explore", f"p{i}", BASE_KEY, KEY)) == []
    base, drafted = cells.add(*measured("confirm", "p1", BASE_KEY, KEY))
    assert columns(drafted)[-3:] == ["3.00x", "[3.00, 3.00]", "6 prompts"]
    assert base.index("6 prompts") == drafted.index("6 prompts")
    assert columns(base)[1] == BASE_KEY.condition.target
    assert [columns(line)[-1] for line in cells.end()] == ["confirmation run"] * 2
    assert cells.end() == []


def test_a_finished_session_of_a_server_is_one_line() -> None:
    (line,) = FinishedCells().add(*measured("explore", "all", KEY, session="a session"))
    assert columns(line)[3:] == [KEY.draft.length.named, "1 prompt"]
