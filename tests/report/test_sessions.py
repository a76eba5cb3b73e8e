"""Sessions of serving engines in every report: a table, warnings, provenance, charts."""

import re
from dataclasses import replace

import pytest

from specbench.records import Kind
from specbench.report.document import Document, build_document
from specbench.report.markdown import to_markdown
from specbench.report.notes import notes
from specbench.report.provenance import provenance
from specbench.report.sessions import session_warnings, sessions_grid
from specbench.words.answers import text
from tests.decide.test_cycles import cells_of_builtin
from tests.made_records import made_block
from tests.report.conftest import SHOWN, drawn
from tests.served_sessions import Sweep, served_sweep


@pytest.fixture(scope="module")
def plain() -> Document:
    return build_document(served_sweep())


@pytest.fixture(scope="module")
def attached() -> Document:
    return build_document(served_sweep(Sweep(is_attached=True)))


def facts(document: Document) -> dict[str, str]:
    return {fact.name: fact.value for fact in provenance(document)}


def test_the_session_table_has_one_row_per_engine_and_k(sessions: Document) -> None:
    grid = sessions_grid(sessions)
    rows = [dict(zip(grid.headers, row, strict=True)) for row in grid.rows]
    assert [row["K"] for row in rows] == ["0", "2", "4"]
    # Two passes of 4 cycles, 2 sessions each, of which one at K = 4 was lost; K = 2 had one pass.
    assert [row["starts"] for row in rows] == ["16", "8", "15 of 16"]
    assert [row["KV tokens"] for row in rows] == ["20,000", "19,000", "18,000"]
    assert [row["taken by K"] for row in rows] == ["-", "1,000", "2,000"]
    assert [row["start s"] for row in rows] == ["20.0", "22.0", "24.0"]
    # One preemption in each session on the way down.
    assert [row["preempted"] for row in rows] == ["8", "4", "7"]
    assert rows[2]["queue s"] == "7.50"
    assert (rows[0]["power"], rows[0]["memory"]) == ("300 W", "16.0 GiB")
    assert (rows[0]["prefixes"], rows[0]["sees others"]) == ("off", "yes")


def test_values_that_a_server_does_not_report_are_dashes() -> None:
    unknown = {"kv_tokens": None, "num_preemptions": None, "queue_s": None, "power_w": None}
    stored = served_sweep()
    mute = replace(stored, servers=tuple(replace(s, **unknown) for s in stored.servers))
    row = dict(
        zip(
            (grid := sessions_grid(build_document(mute))).headers,
            grid.rows[1],
            strict=True,
        )
    )
    assert {row[n] for n in ("KV tokens", "taken by K", "preempted", "queue s", "power")} == {"-"}


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.usefixtures("without_charts")
def test_every_report_states_lost_sessions_and_the_acceptance_rule(
    shown: str, sessions: Document
) -> None:
    text = " ".join(SHOWN[shown](sessions).split())
    assert "15 of 16" in text
    assert "1 session lost" in text
    assert "--runs-dir reports --resume 20261122-010203-5e55" in text
    assert "another client" in text
    assert re.search("acceptance rule .*vllm: greedy: ", text)
    assert "past the ends of" in text  # the owner of the figure


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.usefixtures("without_charts")
def test_a_run_without_servers_has_no_server_table(shown: str, baseline_document: Document) -> None:
    text = SHOWN[shown](baseline_document)
    assert "starts" not in text
    assert "acceptance rule of" not in text


def test_the_command_of_the_best_k_has_version_and_settings(plain: Document) -> None:
    shown_facts = facts(plain)
    assert shown_facts["vllm of demo, version"] == "0.32.1"
    assert shown_facts["vllm of demo, settings"] == "dtype float32, block_size 16"
    assert shown_facts["vllm of demo, K=0"] == "vllm serve models/target --port 41207"
    assert '"num_speculative_tokens": 4' in shown_facts["vllm of demo, K=4, the best"]
    assert not any("K=2" in name for name in shown_facts)


def test_the_acceptance_rule_of_the_built_in_engine_is_stated(plain: Document) -> None:
    base = replace(plain.cells[1], key=cells_of_builtin(0.1)[1].key)
    sampled = replace(
        base,
        key=replace(base.key, condition=replace(base.key.condition, temperature=1.0)),
    )
    both = facts(replace(plain, cells=(*plain.cells, base, sampled)))
    assert re.fullmatch(
        r"greedy: .*argmax; min\(1, p/q\) .*\(Leviathan et al\. 2023, Alg\. 1\)",
        both["acceptance rule of builtin"],
    )


def test_running_servers_give_warnings_on_restarts_and_clients(
    plain: Document, attached: Document
) -> None:
    assert list(session_warnings(plain)) == []
    found = [*session_warnings(attached)]
    assert found == [Kind.OTHERS_UNSEEN(engine="vllm"), Kind.NOT_RESTARTED(engine="vllm")]
    assert {*map(text, found)} <= set(notes(attached)["Warnings"])
    assert facts(attached)["vllm of demo, K=0"] == "was running at http://localhost:8000"


def test_server_facts_have_the_template_date_and_omit_failed_servers() -> None:
    stored = served_sweep()
    dated = tuple(
        replace(
            server,
            template_clock="2024-07-26",
            problems=("no port",) if server.num_speculative_tokens else (),
        )
        for server in stored.servers
    )
    shown_facts = facts(build_document(replace(stored, servers=dated)))
    assert shown_facts["vllm of demo, date in its chat template"] == "2024-07-26"
    assert not [name for name in shown_facts if "K=2" in name or "K=4" in name]


def test_a_kept_prefix_cache_and_session_warnings_are_reported_once() -> None:
    stored = served_sweep()
    differ = Kind.ACCEPTED_COUNTS_DIFFER(requests=9, server=10.0)
    warned = tuple(
        replace(s, prefix_cache="on", warnings=(differ,) if i < 3 else ())
        for i, s in enumerate(stored.servers)
    )
    prefixes, counts = session_warnings(build_document(replace(stored, servers=warned)))
    assert prefixes == Kind.PREFIXES_KEPT(engine="vllm")
    assert counts == Kind.OF_SESSIONS(engine="vllm", k=0, more=2, because=(differ,))


@pytest.mark.parametrize(
    ("prefix_cache", "counters", "is_kept"),
    [
        ("unknown", {"num_cached_tokens": 9.0}, True),  # its counters state what its page does not
        ("by request", {"num_cached_tokens": 9.0}, True),
        ("on", {"num_cached_tokens": 0.0}, False),
        ("unknown", {}, False),
    ],
)
def test_cached_tokens_show_that_prefixes_were_kept(prefix_cache, counters, is_kept) -> None:
    stored = served_sweep()
    changed = {"prefix_cache": prefix_cache, "counters": counters}
    servers = tuple(replace(server, **changed) for server in stored.servers)
    warnings = [*session_warnings(build_document(replace(stored, servers=servers)))]
    assert (Kind.PREFIXES_KEPT(engine="vllm") in warnings) == is_kept


def test_cells_of_a_server_are_named_by_their_pairing(plain: Document) -> None:
    assert {cell.key.source for cell in plain.cells} == {"demo", "demo/draft"}


def test_chart_captions_state_what_the_intervals_are_over(plain: Document) -> None:
    charts = drawn(plain).all
    titles = [chart.title for chart in charts]
    assert titles.count("Speedup against K") == 2
    assert "Speedup against concurrent requests" in titles
    assert any(title.startswith("Where the round time goes") for title in titles)
    single, many = (c.caption for c in charts if c.title == "Speedup against K")
    assert re.search("95% .*over prompts and cycles", single)
    assert re.search("95% [a-z]+ over cycles", many)


def test_the_built_in_decoder_is_compared_with_the_engine_without_an_interval() -> None:
    stored = served_sweep()
    builtin_cells = cells_of_builtin(0.06)
    blocks = tuple(
        made_block(f"code-{i}", *(cell.requests[i] for cell in builtin_cells), block_id=f"own {i}")
        for i in range(6)
    )
    plans = tuple(replace(stored.run.cells[0], key=cell.key) for cell in builtin_cells)
    both = build_document(
        replace(
            stored,
            run=replace(stored.run, cells=(*plans, *stored.run.cells)),
            blocks=(*blocks, *stored.blocks),
        )
    )
    assert [(p.cell.draft.k, p.decode.low) for p in both.side_by_side] == [(0, None), (4, None)]
    assert "relative to vllm" in to_markdown([both])
