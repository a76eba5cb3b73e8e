"""Tables of a serving engine's run: counts by request, sessions by row."""

import json

import pytest

from specbench.frames.requests import requests_frame, rounds_frame
from specbench.frames.tables import cells_frame, servers_frame
from specbench.report.document import build_document
from tests.frames.small_run import small_run
from tests.served_sessions import Sweep, key_of, served_sweep

STORED = served_sweep(Sweep(again=((4, 3, 1),)))


def test_counts_of_requests_give_the_metrics_of_the_report():
    requests = requests_frame([STORED])
    sessions = servers_frame([STORED])
    sound = sessions.loc[sessions["problems"] == "", "session"]
    rows = requests[(requests["purpose"] == "explore") & requests["session"].isin(sound)]
    sums = rows.groupby("cell_id", observed=True)[
        ["counted_num_rounds", "counted_num_accepted", "counted_num_overshot", "num_rounds"]
    ].sum()
    cells = cells_frame([build_document(STORED)]).set_index("cell_id")
    for key in (key_of(2), key_of(4), key_of(4, rows=4)):
        rounds, accepted, overshot, known = sums.loc[key.id]
        assert cells.loc[key.id, "mean_acceptance_length"] == pytest.approx(1 + accepted / rounds)
        assert cells.loc[key.id, "num_overshot"] == overshot
        assert cells.loc[key.id, "num_rounds"] == rounds == known


def test_the_request_table_has_the_session_and_the_text():
    requests = requests_frame([STORED])
    joined = requests.merge(servers_frame([STORED]), on=["run_id", "session"], validate="m:1")
    assert len(joined) == len(requests)
    assert (joined["num_speculative_tokens_x"] == joined["num_speculative_tokens_y"]).all()
    assert (joined["cycle_x"] == joined["cycle_y"]).all()
    assert requests["text"].iloc[0] == "answer 0"
    plain = requests[requests["num_speculative_tokens"] == 0]
    assert plain[["num_rounds", "counted_num_rounds"]].isna().all(axis=None)
    drafted = requests[requests["num_speculative_tokens"] == 2]
    assert set(drafted["counted_num_by_accepted"]) == {(4, 4, 4)}


def test_a_server_reports_no_single_rounds():
    assert rounds_frame([STORED]).empty


def test_a_session_is_a_row_with_its_facts_and_counts():
    sessions = servers_frame([STORED])
    assert len(sessions) == len(STORED.servers)
    first = sessions[sessions["num_speculative_tokens"] == 4].iloc[0]
    assert first["counted_num_accepted"] == STORED.servers[2].counters["num_accepted"]
    assert (first["kv_tokens"], first["num_gpus"], first["power_w"]) == (18_000, 1, 300.0)
    assert (first["client_cpu_s"], first["client_num_events"]) == (1.0, 1000)
    assert json.loads(first["settings"]) == {"dtype": "float32", "block_size": "16"}
    assert first["command"].startswith("vllm serve models/target '--spec")
    assert sessions["problems"].str.startswith("another client").sum() == 1


def test_a_run_of_our_own_engine_has_no_sessions():
    assert servers_frame([small_run()]).empty
    assert requests_frame([small_run()])[["session", "cycle", "text"]].isna().all(axis=None)
