"""Servers as people reach them: what their pages do not state is unknown, and what contradicts the
user, another page or another server of the comparison is refused."""

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace

import pytest

from specbench.bench.served.open_session import count_problems
from specbench.bench.served.running import describe_servers, running_servers
from specbench.decide.recommend import choose, decide
from specbench.engines.served import llama_cpp
from specbench.engines.served_engine import find_served
from specbench.errors import RefusedError, ServerError, UsageError
from specbench.files.model_spec import ModelSpec
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target
from specbench.metrics.server_facts import differences_in, named_facts
from specbench.metrics.summary import summarize
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import Kind
from specbench.report.document import build_document
from specbench.report.sessions import deployment_facts
from specbench.servers.client import Client
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import Counters
from specbench.words.answers import decision_text, text
from tests.bench.served.served_runs import running_settings
from tests.engines.served.replay import REQUEST, answer, facts, recorded
from tests.importers.test_formats import FILES
from tests.made_records import made_request
from tests.served_sessions import NUM_TOKENS, Sweep, cell_of, served_sweep
from tests.servers.fake_server import VLLM_PAGE, FakeServer, serving
from tests.servers.http_server import Handler, serving_with

TARGET = Target(name="big", model=ModelSpec(source="org/Llama-3-8B"), drafters=())
ROUTER = """\
vllm:num_requests_running{server="http://10.0.0.5:8000"} 0.0
vllm:healthy_pods_total{server="http://10.0.0.5:8000"} 1.0
vllm:num_incoming_requests_total{model="tiny"} 5.0
"""


def described(*fakes: FakeServer, suffixes=(), engine="vllm", names=None):
    """The servers as a run describes them; `suffixes` follow their addresses."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(fake)) for fake in fakes]
        urls = [
            url + suffix for url, suffix in zip(urls, suffixes or [""] * len(urls), strict=True)
        ]
        return asyncio.run(describe_servers(engine, urls, names or ModelNames()))


def test_a_fact_is_known_unknown_or_contradicted_by_its_places():
    one, other = Fact.read("/slots", 0), Fact.read("#k", 4)
    assert (Fact().state, Fact().value) == ("unknown", None)
    assert (one.state, one.value, one.places) == ("known", 0, "/slots")
    assert ((one + one).state, (one + Fact.read("/page", 0)).places) == ("known", "/slots, /page")
    assert ((one + other).state, (one + other).value) == ("contradicted", None)
    assert Fact.read("/slots", None).state == "unknown"


# A page of vLLM's names without an engine's counters; drafts whose positions are not counted; a
# gateway's page without the field; slots that do not report it.
UNKNOWN_K = {
    "router": ("vllm", {"/metrics": ROUTER}),
    "no positions": ("vllm", {"/metrics": VLLM_PAGE.format(drafts=1, draft_tokens=4, accepted=2)}),
    "gateway of sglang": ("sglang", {"/server_info": '{"version": "0.5.23"}'}),
    "slots": ("llama_cpp", {"/props": "{}", "/slots": '[{"id": 0}]', "/metrics": ""}),
    "tensorrt": ("tensorrt_llm", {"/prometheus/metrics": ROUTER.replace("vllm:", "trtllm_")}),
}


def test_arguments_about_drafts_are_facts_unless_k_explains_them_and_settings_never():
    given = {
        **{"version": "1", "prefix_cache": "on", "settings": {"speculative_algorithm": "EAGLE"}},
        "command": ("serve", "--speculative-num-steps", "3"),
    }
    names = [{name for name, _ in named_facts(**given, is_of_k=is_of_k)} for is_of_k in (0, 1)]
    assert names[0] - names[1] == {"--speculative-num-steps"}
    assert "speculative_algorithm" not in names[0]


def test_a_fact_that_one_server_does_not_report_is_no_difference_but_an_argument_is():
    before = {"version": "1", "prefix cache": "unknown", "block_size": "16", "--eager": "given"}
    after = {"version": "2", "prefix cache": "on", "dtype": "", "--rope-scaling": "unknown"}
    expected = {
        ("version", "1", "2"),
        ("--eager", "given", "absent"),
        ("--rope-scaling", "absent", "unknown"),
    }
    assert set(differences_in(before, after)) == expected
    assert set(differences_in(after, before)) == {(name, a, b) for name, b, a in expected}


@pytest.mark.parametrize(
    ("settings", "command", "explicit"),
    [
        ({"dtype": "bfloat16"}, (), "bfloat16"),
        ({}, ("serve", "--dtype", "float16"), "float16"),
        ({"dtype": "float32"}, ("serve", "--dtype", "float16"), "float32"),
        ({"dtype": "fp8"}, (), "auto"),
        ({}, (), "auto"),
    ],
)
def test_an_automatic_cache_dtype_is_the_setting_or_the_argument_of_the_model(
    settings, command, explicit
):
    def of_cache(value):
        given = {"version": "1", "prefix_cache": "on", "command": command}
        more = {"kv_cache_dtype": value, "load_format": value}
        found = dict(named_facts(**given, settings=settings | more))
        assert found["load_format"] == value
        return found["kv_cache_dtype"]

    assert of_cache("auto") == explicit
    assert (of_cache("bf16"), of_cache("fp8")) == ("bfloat16", "fp8")


def test_a_k_that_the_server_states_is_not_also_known_by_the_address():
    stated = ServerFacts(version="", model="m", k=Fact.read("/metrics", 4))
    known = stated.at(Address.at("http://a:1#k=4", "--base-url"))
    assert (known.k, known.places["drafting"]) == (stated.k, "/metrics")


@pytest.mark.parametrize("case", UNKNOWN_K)
def test_what_a_page_does_not_state_is_unknown_and_the_users_k_holds(case):
    engine, pages = UNKNOWN_K[case]
    fake = FakeServer(pages=pages, has_metrics=False)
    assert facts(engine, pages).k.state == "unknown"
    (server,) = described(fake, suffixes=["#k=4"], engine=engine)
    assert (server.address.k, server.facts.places["K"]) == (4, "#k")
    with pytest.raises(ServerError, match=r"K is unknown.*#k=4"):
        described(fake, engine=engine)


def test_servers_of_unknown_k_are_not_pooled_as_replicas():
    fake = FakeServer(counters=ROUTER)
    with pytest.raises(ServerError, match="K is unknown"):
        described(fake, fake)
    ks = [s.address.k for s in described(fake, fake, suffixes=["#k=0", "#k=4"])]
    assert ks == [0, 4]


def test_the_page_of_a_router_in_front_of_several_servers_is_refused():
    page = ROUTER + ROUTER.replace("10.0.0.5", "10.0.0.6")
    with pytest.raises(ServerError, match="of several servers"):
        described(FakeServer(counters=page), suffixes=["#k=4"])


IDLE_SLOTS = {"/props": "{}", "/metrics": ""}


@pytest.mark.parametrize(
    ("engine", "pages", "suffix", "values"),
    [
        ("llama_cpp", IDLE_SLOTS | {"/slots": '[{"speculative": true}]'}, "#k=0", "drafting"),
        ("llama_cpp", IDLE_SLOTS | {"/slots": '[{"speculative": false}]'}, "#k=4", "K"),
        ("sglang", {"/server_info": '{"speculative_algorithm": "NGRAM"}'}, "#k=0", "drafting"),
        (
            "vllm",
            {"/metrics": VLLM_PAGE.format(drafts=1, draft_tokens=4, accepted=2)},
            "#k=0",
            "drafting",
        ),
        (
            "vllm",
            {
                "/metrics": 'vllm:cache_config_info{engine="0",enable_prefix_caching="True"} 1\n'
                'vllm:cache_config_info{engine="1",enable_prefix_caching="False"} 1\n'
                "vllm:generation_tokens_total 3\n"
            },
            "",
            "prefix cache",
        ),
    ],
)
def test_a_contradicted_fact_is_refused_with_its_places(engine, pages, suffix, values):
    fake = FakeServer(pages=pages, has_metrics=False)
    with pytest.raises(ServerError, match=f": {values} is contradicted: ") as wrong:
        described(fake, suffixes=[suffix], engine=engine)
    assert "#k" in str(wrong.value) or not suffix
    assert next(path for path in reversed(pages)) in str(wrong.value)


@pytest.mark.parametrize(
    ("k", "drafts", "is_refused"), [(0, 1, True), (4, 40, False), (4, 41, True), (4, 0, False)]
)
def test_more_drafts_per_round_than_k_are_a_problem_of_the_session(k, drafts, is_refused):
    request = made_request("a", "p", None, output_ids=tuple(range(20)), num_prompt_tokens=1)
    counted = Counters(engine="vllm", num_rounds=10.0, num_draft_tokens=drafts)
    assert (
        any("drafted" in line for line in count_problems([request], counted, k, 48)) == is_refused
    )


# Drafts that never happened.

ONE_ROW = Sweep(rows=(1,), confirmed=None)


def without_drafts(k=4, *, counts=None, counters=None):
    """The cell at K of a server whose requests and pages count these drafts."""
    cell = cell_of(served_sweep(ONE_ROW), k)

    def idle(load):
        return replace(load, counters={"num_tokens": 500.0, **(counters or {})}, num_accepted_at=())

    servers = [replace(s, client=tuple(map(idle, s.client))) for s in cell.servers]
    requests = [replace(r, counts=counts) for r in cell.requests]
    return replace(cell, servers=tuple(servers), requests=tuple(requests))


NO_COUNTS = replace(
    cell_of(served_sweep(ONE_ROW), 4).requests[0].counts,
    **{"num_rounds": 24, "num_drafted": 0, "num_accepted": 0, "num_drafting": 0},
    **{"num_by_accepted": None, "num_overshot": 0},
)


@pytest.mark.parametrize(
    ("counts", "counters", "is_named"),
    [
        (None, {"num_draft_tokens": 0.0, "num_rounds": 0.0, "num_accepted": 0.0}, True),  # vLLM
        (NO_COUNTS, {}, True),  # llama.cpp, whose page has counters after the first draft
        (None, {"num_rounds": 0.0}, True),  # SGLang
        (None, {}, False),  # it counts no drafts, so they are unknown
        (replace(NO_COUNTS, num_drafted=None), {}, False),  # TensorRT-LLM
        (None, {"num_draft_tokens": 4.0, "num_rounds": 1.0, "num_accepted": 0.0}, False),
    ],
)
def test_a_server_at_k_that_counts_no_draft_never_drafted(counts, counters, is_named):
    cell = without_drafts(counts=counts, counters=counters)
    kinds = {reason.kind for reason in judge_cell(cell)}
    assert (Kind.NEVER_DRAFTED in kinds) == is_named
    assert all(reason.kind is not Kind.NEVER_DRAFTED for reason in judge_cell(cell_at_0()))


def cell_at_0():
    return cell_of(served_sweep(ONE_ROW), 0)


def test_never_drafted_is_the_answer_and_not_that_k_brings_nothing():
    summary = summarize([without_drafts(counts=NO_COUNTS)])
    decision = decide(choose(summary))
    (reason,) = decision.answer
    num = len(without_drafts().requests)
    assert reason == Kind.NEVER_DRAFTED(k=4, tokens=NUM_TOKENS * num, requests=num)
    assert text(reason) == decision_text(decision)  # it is no "undecided"


def lines_of_sglang(tmp_path, **server):
    """The second line of the example, without acceptance, of a server with these arguments."""
    _, line = (FILES / "sglang.jsonl").read_text().splitlines()
    result = json.loads(line) | {"accept_length": None}
    result["server_info"] |= server
    (tmp_path / "one.jsonl").write_text(json.dumps(result))
    given = ImportOverrides(temperature=0.0, num_speculative_tokens=4)
    (cell,) = import_files([tmp_path / "one.jsonl"], given)
    return cell.record.warnings


def test_missing_acceptance_is_unknown_if_the_file_says_that_its_server_speculates(tmp_path):
    for server in ({}, {"speculative_algorithm": "NGRAM", "speculative_num_steps": None}):
        algorithm = server.get("speculative_algorithm", "EAGLE3")
        place = f"server_info ({algorithm})"
        warnings = lines_of_sglang(tmp_path, **server)
        assert Kind.ACCEPTANCE_UNREPORTED(place=place) in warnings
        assert Kind.NO_ACCEPTANCE() not in warnings


def test_missing_acceptance_of_a_file_that_does_not_say_so_is_to_be_checked(tmp_path):
    _, line = (FILES / "sglang.jsonl").read_text().splitlines()
    result = json.loads(line) | {"accept_length": None, "server_info": {}}
    (tmp_path / "one.jsonl").write_text(json.dumps(result))
    given = ImportOverrides(temperature=0.0, num_speculative_tokens=4)
    (cell,) = import_files([tmp_path / "one.jsonl"], given)
    assert Kind.NO_ACCEPTANCE() in cell.record.warnings


# Facts that differ between the servers of one comparison.


def page(k, **cache):
    labels = ",".join(f'{name}="{value}"' for name, value in cache.items())
    return FakeServer(k=k).page() + (f"vllm:cache_config_info{{{labels}}} 1.0\n" if cache else "")


def compared(folder, *fakes, engine="vllm"):
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(fake)) for fake in fakes]
        settings = running_settings(folder, *urls, engines=(engine,))
        return running_servers(settings, TARGET)


INFO = json.loads(recorded("sglang_server_info.json"))
PLAIN = {"speculative_algorithm": None, "tp_size": 2, "kv_cache_dtype": "auto"}


BF16 = {"dtype": "bfloat16"}


def sglang(k, **changed):
    info = INFO | PLAIN | changed
    info |= {"speculative_algorithm": "EAGLE3", "speculative_num_steps": k} if k else {}
    return FakeServer(k=k, pages={"/server_info": json.dumps(info)}, has_metrics=False)


@pytest.mark.parametrize(
    ("engine", "plain", "drafting", "name"),
    [
        ("vllm", page(0, cache_dtype="auto"), page(4, cache_dtype="fp8"), "cache_dtype"),
        ("vllm", page(0, engine="0"), page(4, engine="0") + page(4, engine="1"), "data_parallel"),
        ("sglang", sglang(0), sglang(4, tp_size=4), "tp_size"),
        ("sglang", sglang(0), sglang(4, kv_cache_dtype="fp8_e5m2"), "kv_cache_dtype"),
        ("sglang", sglang(0), sglang(4, quantization="fp8"), ""),  # unknown at K = 0
        ("sglang", sglang(0, **BF16), sglang(4, **BF16, kv_cache_dtype="bfloat16"), ""),
        (
            "sglang",
            sglang(0, **BF16),
            sglang(4, **BF16, kv_cache_dtype="float16"),
            "kv_cache_dtype",
        ),
        # Whether `auto` is another dtype is unknown without the model's.
        ("vllm", page(0, cache_dtype="auto"), page(4, cache_dtype="bfloat16"), ""),
        ("vllm", page(0), page(4, cache_dtype="fp8"), ""),
        ("vllm", page(0, block_size="16"), page(4, block_size="32"), ""),  # explained
    ],
)
def test_servers_of_another_dtype_cache_or_parallelism_are_refused(
    tmp_path, engine, plain, drafting, name
):
    fakes = [f if isinstance(f, FakeServer) else FakeServer(counters=f) for f in (plain, drafting)]
    if not name:
        assert [s.address.k for s in compared(tmp_path, *fakes, engine=engine)] == [0, 4]
        return
    for order in (fakes, fakes[::-1]):
        with pytest.raises(UsageError, match=name):
            compared(tmp_path, *order, engine=engine)


def test_replicas_must_agree_in_every_known_fact(tmp_path):
    fakes = [FakeServer(counters=page(0, block_size=size)) for size in ("16", "32", "16")]
    assert len(compared(tmp_path, fakes[0], fakes[2])) == 2
    with pytest.raises(UsageError, match="replicas"):
        compared(tmp_path, *fakes[:2])


def with_other_server(**changed):
    """The run whose server at K = 4 has other facts than that of K = 0."""
    stored = served_sweep(ONE_ROW)
    servers = (
        replace(s, **changed) if s.num_speculative_tokens == 4 else s for s in stored.servers
    )
    return replace(stored, servers=tuple(servers))


FP8 = {"settings": {"dtype": "float32", "block_size": "16", "cache_dtype": "fp8"}}


@pytest.mark.parametrize(
    ("changed", "invalid", "warned", "facts"),
    [
        ({"version": "0.33.0"}, False, True, ["version"]),
        ({"prefix_cache": "on"}, False, True, ["prefix cache"]),
        ({"num_gpus": 2, "version": "0.33.0"}, True, False, ["version", "GPUs"]),
        ({"settings": {"dtype": "float16", "block_size": "16"}}, True, False, ["dtype"]),
        ({"prefix_cache": "unknown"}, False, False, []),
        (FP8, False, False, []),  # the server of K = 0 does not report the dtype of its cache
        (
            {"command": ("vllm", "serve", "models/target", "--port", "1", "--enforce-eager")},
            False,
            True,
            ["--enforce-eager"],
        ),
        (
            {"command": ("vllm", "serve", "models/target", "--kv-cache-dtype", "fp8")},
            True,
            False,
            ["--kv-cache-dtype"],
        ),
    ],
    ids=str,
)
def test_a_cell_names_the_facts_in_which_its_server_differs(changed, invalid, warned, facts):
    stored = with_other_server(**changed)
    cell = cell_of(stored, 4)
    found = [r for r in judge_cell(cell) if r.kind is Kind.SERVERS_UNLIKE]
    told = [r for r in cell_warnings(cell) if r.kind is Kind.SERVERS_DIFFER]
    assert (bool(found), bool(told)) == (invalid, warned)
    named = [fact.figures["name"] for reason in (*found, *told) for fact in reason.figures["facts"]]
    assert named == facts
    rows = dict(deployment_facts(build_document(stored)))
    assert ("vllm of demo, K=4, besides K" in rows) == bool(facts)
    others = cell_of(stored, 2)
    assert {r.kind for r in (*judge_cell(others), *cell_warnings(others))}.isdisjoint(
        {Kind.SERVERS_UNLIKE, Kind.SERVERS_DIFFER}
    )


def test_k_0_differs_from_no_server():
    """Its arguments may be those of hardware, and it has no baseline."""
    command = ("vllm", "serve", "models/target", "--kv-cache-dtype", "fp8", "--enforce-eager")
    stored = served_sweep()
    servers = tuple(replace(server, command=command) for server in stored.servers)
    cell = cell_of(replace(stored, servers=servers), 0)
    kinds = {r.kind for r in (*judge_cell(cell), *cell_warnings(cell))}
    assert kinds.isdisjoint({Kind.SERVERS_UNLIKE, Kind.SERVERS_DIFFER})


# The model that is measured.


def cards(*listed):
    return {
        "/v1/models": json.dumps(
            {"data": [c if isinstance(c, dict) else {"id": c} for c in listed]}
        )
    }


LORA = [
    {"id": "own", "root": "/m/llama"},
    {"id": "sql", "root": "/m/sql", "parent": "own"},
]


@pytest.mark.parametrize(
    ("listed", "served", "chosen"),
    [
        (["gemma-small", "org/Llama-3-8B"], None, "org/Llama-3-8B"),
        (["text-embedding-x", "llama-3-8b"], None, "llama-3-8b"),
        (["a", "/models/Llama-3-8B.gguf", "big"], None, "big"),  # its own name comes first
        (["other"], None, "other"),  # the only one, with a warning
        (LORA, None, "own"),
        (LORA, "sql", "sql"),
        ([{"id": "x", "root": "/m"}, {"id": "y", "root": "/m"}], None, "x"),  # one model
        (["gemma-small", "text-embedding-x"], "gemma-small", "gemma-small"),
    ],
)
def test_the_model_is_the_named_one_or_the_listed_one_that_fits(listed, served, chosen):
    names = ModelNames.of(TARGET, served)
    for engine in ("openai", "vllm"):
        assert facts(engine, cards(*listed), names).model == chosen


@pytest.mark.parametrize(
    ("listed", "served"),
    [
        (["gemma-small", "text-embedding-x"], None),
        (["a/Llama-3-8B", "b/Llama-3-8B"], None),
        (["gemma-small", "big"], "llama"),
    ],
)
def test_a_model_that_no_listed_name_decides_is_refused_with_the_names(listed, served):
    with pytest.raises(ServerError, match="--served-model-name NAME") as wrong:
        facts("openai", cards(*listed), ModelNames.of(TARGET, served))
    assert all(name in str(wrong.value) for name in listed)


def test_a_named_model_needs_no_list():
    gone = ModelNames(served="mine")
    assert facts("openai", {"/v1/models": "{}"}, gone).model == "mine"
    with pytest.raises(ServerError, match="names no model"):
        facts("openai", {"/v1/models": "{}"})


class LlamaRouter(Handler):
    """llama.cpp in router mode: every page and request needs the name of a model."""

    is_loaded = True

    def do_GET(self):
        path, _, query = self.path.partition("?")
        named = query == "model=target%20q8"
        if path == "/v1/models":
            self.send(json.dumps({"data": [{"id": "embed"}, {"id": "target q8"}]}))
        elif path == "/props" and named and self.is_loaded:
            self.send(recorded("llama_cpp_props.json"))
        elif path == "/metrics" and named:
            self.send(recorded("llama_cpp_metrics.txt"))
        else:
            self.send('{"error": {"message": "model name is missing from the request"}}', 400)

    def do_POST(self):
        pages = {"/apply-template": "template.json", "/tokenize": "tokens.json"}
        body = self.read_body()
        if body.get("model") != "target q8":
            self.send('{"error": {"message": "model name is missing from the request"}}', 400)
        else:
            self.send(recorded(f"llama_cpp_{pages.get(self.path, 'completion.sse')}"))


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_router_of_llama_cpp_gets_the_models_name_in_every_request(is_loaded):
    names = ModelNames(target=("target q8",))

    async def ask(url):

        async with Client(Address(root=url)) as client:
            found = await llama_cpp.facts(client, names)
            counters = await client.counters(
                llama_cpp.COUNTERS.path_of(found.model), [llama_cpp.COUNTERS]
            )
            return found, counters, await llama_cpp.answer(client, found.model, REQUEST)

    with serving_with(LlamaRouter, is_loaded=is_loaded) as url:
        found, counters, response = asyncio.run(ask(url))
    assert (found.model, found.k.value, found.context) == (
        "target q8",
        4,
        1024 if is_loaded else None,
    )
    assert counters.num_tokens is not None
    assert response.num_tokens == 15


# Fields that a server rejects.


class Rejecting(Handler):
    """It rejects fields, in the words of one server or another."""

    rejected = ("seed",)
    words = "Unsupported parameter: '{}' is not supported with this model."
    status = 400

    def do_POST(self):
        body = self.read_body()
        wrong = [name for name in self.rejected if name in body]
        if wrong:
            self.send(json.dumps({"error": {"message": self.words.format(wrong[0])}}), self.status)
        else:
            self.requests.append(body)
            text = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
            self.stream([text, {"choices": [], "usage": {"completion_tokens": 1}}])


def asked(request=REQUEST, engine="openai", **server):
    """The body that such a server accepted."""

    requests = []

    async def ask(url):
        async with Client(Address(root=url)) as client:
            await find_served(engine).answer(client, "tiny", request)

    with serving_with(Rejecting, requests=requests, **server) as url:
        asyncio.run(ask(url))
    return requests[-1]


@pytest.mark.parametrize(
    ("server", "omitted", "remedy"),
    [
        ({}, (), "--omit-fields seed"),
        ({"rejected": ("max_tokens",)}, ("seed",), "--omit-fields seed,max_tokens"),
        ({"words": "extra fields not permitted: body.{}", "status": 422}, (), "--omit-fields seed"),
        ({"rejected": ("temperature",)}, (), ""),  # a run would not measure what it says
        ({"rejected": ("max_tokens",), "words": "{} is above the limit of 16"}, (), ""),
        ({"status": 500}, (), ""),
    ],
    ids=str,
)
def test_a_rejected_field_has_the_option_that_leaves_it_out(server, omitted, remedy):
    with pytest.raises(RefusedError) as wrong:
        asked(replace(REQUEST, omitted=omitted), **server)
    assert str(wrong.value).endswith(remedy)
    assert ("--omit-fields" in str(wrong.value)) == bool(remedy)


@pytest.mark.parametrize(
    ("engine", "omitted", "absent"),
    [
        ("openai", ("seed",), {"seed"}),
        ("vllm", ("seed", "cache_salt", "top_k"), {"seed", "cache_salt", "top_k"}),
        ("sglang", ("min_p",), {"min_p"}),
        ("tensorrt_llm", ("seed", "top_k"), {"seed", "top_k"}),
    ],
)
def test_omitted_fields_are_not_sent(engine, omitted, absent):
    body = asked(replace(REQUEST, omitted=omitted), engine, rejected=())
    whole = asked(REQUEST, engine, rejected=())
    assert whole.keys() - body.keys() == absent


def test_the_limit_of_the_output_is_kept_under_its_newer_name():
    body = asked(replace(REQUEST, omitted=("max_tokens",)), rejected=("max_tokens",))
    assert body["max_completion_tokens"] == REQUEST.max_new_tokens
    both = ("max_tokens", "max_completion_tokens")
    assert not {*both} & asked(replace(REQUEST, omitted=both), rejected=both).keys()


def test_lost_token_ids_have_a_remedy():
    events = recorded("vllm_chat.sse").split("\n\n")
    lost = next(i for i, event in enumerate(events) if i > 2 and "token_ids" in event)
    pages = {"/v1/chat/completions": "\n\n".join(events[:lost] + events[lost + 1 :])}
    with pytest.raises(ServerError, match=r"token counts differ.*--omit-fields return_token_ids"):
        answer("vllm", pages)
    kept = replace(REQUEST, omitted=("return_token_ids",))
    with pytest.raises(ServerError, match="token counts differ"):  # this page sends them anyway
        answer("vllm", pages, kept)
    assert "return_token_ids" not in asked(kept, "vllm", rejected=())
