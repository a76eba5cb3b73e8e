"""The GPU suite's page for synthetic documents, and code that otherwise only runs on a GPU."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu_suite.beside_vllm import beside_vllm
from benchmarks.gpu_suite.captures import calls_of, captured
from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.decoders import medium_pair
from benchmarks.gpu_suite.failures import after_failures
from benchmarks.gpu_suite.gpu_tests import tests_of as outcome_of
from benchmarks.gpu_suite.kernel_times import OTHER, Ran, by_kind, kind_of, longest
from benchmarks.gpu_suite.machine import Machine
from benchmarks.gpu_suite.page import page
from benchmarks.gpu_suite.stage import Stage
from specbench.decode.graphs import GraphLauncher
from specbench.decode.launcher import Readback
from tests.decoding.fake_graphs import FailingGraphs, FakeGraphs


def small() -> Machine:
    return Machine(device=torch.device("cpu"), small=True, ends_s=float("inf"), kernels="torch")


def document(**sections: Any) -> dict[str, Any]:
    machine = {"gpu": "A card", "packages": {"torch": "2.11"}, "git_commit": "abc" * 10}
    facts = {"part": "speed", "small": False, "machine": machine, "seconds": 301, "limit_s": 420}
    return facts | {"sections": sections}


def first_lines(**sections: Any) -> list[str]:
    """The lines of `Look at first`."""
    text = page(document(**sections))
    return text.partition("## Look at first\n\n")[2].partition("\n\n")[0].splitlines()


def test_the_gpu_page_states_where_it_was_measured() -> None:
    text = page(document())
    assert re.match(r"# GPU suite: speed\n\nA card, torch 2\.11, .*abcabcabcabc, 301 s ", text)
    assert "show nothing" not in text
    assert "show nothing" in page(document() | {"small": True})


def test_missed_claims_are_listed_first_on_the_gpu_page() -> None:
    missed = claim("share of copy bandwidth", 0.712, at_least=0.85)
    held = claim("launches a layer", 10, at_most=10)
    open_ = claim("times as fast", None, at_least=5, reason="not both were measured")
    lines = first_lines(
        late={"reason": "no time was left for it"},
        steps={"claims": [held, missed, open_], "left_out_for_time": ["span 256"]},
    )
    values = (
        r"\*\*steps\*\*: share of copy bandwidth: .*0\.85, .*0\.712",
        "late .*: no time was left for it",
        "steps .*: span 256",
        "claims .*: 1; .*",
    )
    for value, line in zip(values, lines, strict=True):
        assert re.fullmatch(f"- {value}", line)
    text = page(document(steps={"claims": [held, missed, open_]}))
    assert "| steps | launches a layer | at most 10 | 10 | yes |" in text
    assert "| steps | times as fast | at least 5 | - | not both were measured |" in text


def test_the_gpu_page_lists_failures_winners_and_time_by_class() -> None:
    contenders = [
        {"name": "flash", "seconds": 12e-6, "refusal": None},
        {"name": "cudnn", "seconds": None, "refusal": "it is wrong: off by 2 | of"},
    ]
    choice = {"subject": "attention, chain", "chosen": "flash", "contenders": contenders}
    classes = {"products": 600e-6, "gaps": 100e-6, "copies": 50e-6, "attention": 250e-6}
    shares = {"what": "span 256", "round_s": 1e-3, "classes": classes}
    sections = {"contests": {"choices": [choice]}, "steps": {"shares": [shares]}}
    nothing, kernel, spent = first_lines(**sections)
    assert nothing.startswith("- nothing failed: ")
    assert re.fullmatch(r"- attention, chain .*\*\*flash\*\*", kernel)
    assert re.fullmatch(
        "- .*1000 us, span 256: products 600 us, 60 %; attention 250 us, 25 %; gaps 100 us, 10 %",
        spent,
    )
    text = page(document(**sections))
    assert "  - flash: 12 us\n  - cudnn: it is wrong: off by 2 / of\n" in text
    assert "| products | 600 us, 60 % |\n| attention | 250 us, 25 % |" in text


def test_the_gpu_page_shows_ratios_points_and_tables() -> None:
    interval = {"estimate": 5.25, "low": None, "high": None}
    ratio = {"own": "builtin", "peer": "vLLM", "decode": None, "end_to_end": interval}
    point = {"name": "K=0", "tokens_per_s": 1234.5, "round_s": 0.002, "idle_share": 0.01}
    point |= {"bandwidth_utilization": None, "graph": "round"}
    table = {"columns": ["T", "flash"], "rows": [[1, 2.5], [5, None]]}
    text = page(document(a={"ratios": [ratio]}, b={"points": [point]}, c={"table": table}))
    assert re.search(r"- a: builtin .*5\.25x .*vLLM \[-, -\]", text)
    assert "| K=0 | 1234 | 2000 | 0.01 | - | round |" in text
    assert "| T | flash |\n| --- | --- |\n| 1 | 2.5 |\n| 5 | - |" in text


@pytest.mark.parametrize(
    ("measured", "holds"), [(1, True), (0.5, False), (2, False), (float("nan"), False)]
)
def test_a_claim_holds_within_its_bounds(measured: float, holds: bool) -> None:
    assert claim("it", measured, at_least=1, at_most=1.5)["holds"] is holds


def test_a_claim_with_a_reason_neither_passes_nor_fails() -> None:
    open_ = claim("it", 3, at_least=5, reason="no CUDA device")
    assert (open_["measured"], open_["holds"]) == (None, None)
    assert all_of("texts", 3, 3)["holds"]
    assert not all_of("texts", 2, 3)["holds"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "products"),
        ("void gemvNSP_kernel<__nv_bfloat16, ...>", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "products"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<...>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "attention"),
        ("_part", "attention"),
        ("_turn_and_keep", "norms and rotary"),
        ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16>", "norms and rotary"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps>>", "sampling"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, MulFunctor>", OTHER),
        ("void at::native::multiplicative_common_kernel", OTHER),
    ],
)
def test_a_kernel_is_classed_by_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_times_are_summed_by_class_for_one_round() -> None:
    ran = [Ran("_part", 3e-6), Ran("gemm", 8e-6), Ran("_together", 1e-6), Ran("gemm", 4e-6)]
    assert by_kind(ran, 2) == pytest.approx({"attention": 2e-6, "products": 6e-6})
    (most,) = longest(ran, 2, most=1)
    assert (most["name"], most["times"], most["seconds"]) == ("gemm", 1, pytest.approx(6e-6))


class NoWaits(TorchDispatchMode):
    """Reading a number back raises, as during a capture on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            raise RuntimeError("operation not permitted when stream is capturing")
        return func(*args, **(kwargs or {}))


class StrictGraphs(FakeGraphs):
    """Shows when it captures, and refuses waits then."""

    is_capturing = False

    def capture(self, run: Any, *, num_warm_ups: int = 3) -> Any:
        self.is_capturing = True
        try:
            with NoWaits():
                return super().capture(run, num_warm_ups=num_warm_ups)
        finally:
            self.is_capturing = False


def after_failures_of(graphs: FakeGraphs) -> dict[str, Any]:
    launchers = partial(GraphLauncher, graph="round", graphs=graphs, readback=Readback())
    pair = medium_pair(small(), torch.float32, layers=2)
    return after_failures(pair, launchers, lambda: getattr(graphs, "is_capturing", False))


@pytest.mark.slow
def test_failed_captures_are_reported_separately_from_later_errors() -> None:
    section = after_failures_of(StrictGraphs())
    assert [claim["holds"] for claim in section["claims"]] == [True, True]
    assert "not permitted" in section["ways"]["waits in every capture"]["graph_reason"]
    assert "K=2" in section["ways"]["no memory for K = 2"]["graph_reason"]


@pytest.mark.slow
def test_a_capture_failure_that_spreads_is_a_missed_claim() -> None:
    section = after_failures_of(FailingGraphs())
    assert [claim["holds"] for claim in section["claims"]] == [True, False]


@pytest.mark.long
@pytest.mark.slow
def test_planted_capture_failures_that_do_not_occur_are_missed_claims() -> None:
    section = after_failures_of(FakeGraphs())
    assert section["claims"][1]["measured"] == 3  # all but the two that report a refusal
    assert section["claims"][1]["holds"] is False


@pytest.mark.long
@pytest.mark.slow
def test_graph_captures_are_counted_by_purpose() -> None:
    graphs: Any = FakeGraphs()
    graphs.capture_s = 0.0
    launchers = partial(GraphLauncher, graph="round", graphs=graphs, readback=Readback())
    section = captured(medium_pair(small(), torch.float32, layers=2), launchers, graphs)
    assert [claim["holds"] for claim in section["claims"]] == [True, True]
    assert sum(bucket["num_captures"] for bucket in section["buckets"]) == graphs.num_captures > 9
    refusing: Any = FailingGraphs(2)
    refusing.capture_s = 0.0
    launchers = partial(GraphLauncher, graph="round", graphs=refusing, readback=Readback())
    section = captured(medium_pair(small(), torch.float32, layers=2), launchers, refusing)
    assert [claim["holds"] for claim in section["claims"]] == [True, False]


@pytest.mark.long
@pytest.mark.slow
def test_sync_claims_are_open_if_a_planted_wait_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    section = calls_of(medium_pair(small(), torch.float32, layers=2))
    assert [claim["holds"] for claim in section["claims"]] == [None] * 3
    assert "planted wait" in section["claims"][2]["reason"]
    launches = sum(entry["num_launches"] for entry in section["watch"].values())
    assert modes == ["error", "default"] * (launches + 1)  # and the planted one


@pytest.mark.slow
def test_the_gpu_page_keeps_the_summary_of_the_gpu_tests(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    assert outcome_of(folder, 60)["reason"].startswith("no tests ")
    (folder / "test_other.py").write_text("import nothing_that_is_here\n")
    lines = "import pytest\npytestmark = pytest.mark.gpu\n\ndef test_right(): pass\n"
    (folder / "test_card.py").write_text(lines)
    outcome = outcome_of(folder, 60)
    assert outcome["files"] == ["test_card.py"]
    assert "1 passed" in outcome["summary"]
    assert outcome["claims"][0]["holds"]
    (folder / "test_card.py").write_text(lines + "\ndef test_wrong(): assert False\n")
    outcome = outcome_of(folder, 60)
    assert "1 failed" in outcome["summary"]
    assert outcome["claims"][0]["holds"] is False
    assert any("test_wrong" in line for line in outcome["last_lines"])


FAKE_VLLM = """
import json, pathlib
class SamplingParams:
    def __init__(self, **how): self.how = how
class LLM:
    def __init__(self, *, model, **how):
        assert json.loads((pathlib.Path(model) / "config.json").read_text())["num_hidden_layers"]
    def generate(self, prompts, how, use_tqdm):
        assert prompts[0]["prompt_token_ids"]
        tokens = type("Tokens", (), {"token_ids": [1] * how.how["max_tokens"]})
        return [type("Answer", (), {"outputs": [tokens]})]
"""


@pytest.mark.slow
def test_vllm_is_queried_in_a_separate_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE_VLLM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    section = beside_vllm(Stage(), small())
    assert len(section["ours_s"]) == len(section["vllm_s"]) == 6
    assert section["ratios"][0]["end_to_end"]["estimate"] < 1  # it decodes nothing

    (package / "__init__.py").write_text("raise RuntimeError('no card')")
    assert "no card" in beside_vllm(Stage(), small())["reason"]
    assert "vllm" not in sys.modules
