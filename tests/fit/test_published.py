"""Published draft models: the catalog in the package, and what a hub reports about them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import close_session, constants

from specbench.errors import UsageError
from specbench.files.hub_facts import HubFacts, hub_facts
from specbench.fit.candidates import catalog_drafters
from specbench.fit.pairings_file import differences, filled
from specbench.inputs.config import load_pairings
from specbench.shipped import shipped
from tests.cli.calls import specbench
from tests.servers.http_server import Handler, serving_with

GIB = 2**30
REVISION = "0123456789abcdef0123456789abcdef01234567"
# The hub's answers. Files that copy the weights in another format or folder must not be counted.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "org/big": {
        "sha": REVISION,
        "gated": "manual",
        "cardData": {"license": "apache-2.0"},
        "siblings": [
            {"rfilename": "model-00001-of-00002.safetensors", "size": 9 * GIB},
            {"rfilename": "model-00002-of-00002.safetensors", "size": 6 * GIB},
            {"rfilename": "consolidated.safetensors", "size": 15 * GIB},
            {"rfilename": "original/model.safetensors", "size": 15 * GIB},
        ],
    },
    "org/head": {
        "sha": REVISION[::-1],
        "gated": False,
        "cardData": {"license": "other", "license_name": "head-license"},
        "siblings": [
            {"rfilename": "head.safetensors", "size": GIB},
            {"rfilename": "notes.bin", "size": 5 * GIB},
            {"rfilename": "epoch_1/head.safetensors", "size": GIB},
        ],
    },
    "org/bare": {"sha": REVISION, "gated": False, "siblings": [{"rfilename": "a.bin", "size": 1}]},
}
PAIRINGS = """\
targets:
  big:
    # what is written by hand stays
    model: org/big
    weights_gib: 15.1  # close enough
    drafters:
      head:
        method: eagle3
        model: org/head
        source: https://example.org/heads
        checked: "2026-11-23"
      copy: {method: ngram}
"""


class Hub(Handler):
    """Answers as the hub's API does about a model, a missing model and a missing revision."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/models/")
        source, _, revision = path.partition("/revision/")
        known = MODELS.get(source)
        error = "RepoNotFound" if known is None else "RevisionNotFound"
        exists = known is not None and revision in ("", REVISION)
        body = json.dumps({"id": source, **(known or {})} if exists else {"error": "x"})
        headers = {"Content-Type": "application/json"}
        if not exists:
            headers["X-Error-Code"] = error
        self.send(body, 200 if exists else 404, headers)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_with(Hub) as url:
        yield url


@pytest.fixture
def hub(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    close_session()
    yield
    close_session()


@pytest.mark.usefixtures("hub")
def test_the_hub_gives_revision_license_and_size() -> None:
    assert hub_facts("org/big", None) == HubFacts(
        source="org/big",
        revision=REVISION,
        license="apache-2.0",
        is_gated=True,
        weight_bytes=15 * GIB,
    )
    head = hub_facts("org/head", None)
    assert (head.license, head.weight_bytes, head.is_gated) == ("head-license", GIB, False)
    assert hub_facts("org/bare", REVISION).weight_bytes is None


@pytest.mark.usefixtures("hub")
def test_a_missing_model_is_reported_and_an_unreachable_hub_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (hub_facts("org/nothing", None).problem or "").startswith("not on")
    assert hub_facts("org/big", "v9").problem == "has no revision v9"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9.*org/big"):
        hub_facts("org/big", None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        hub_facts("org/big", None)


@pytest.mark.usefixtures("hub")
def test_checking_fills_in_only_missing_fields(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    words = ("--check-hub", "--json", "--output", "full.yaml")
    ran = specbench("list", "pairings", *words, cwd=tmp_path)
    assert ran.code == 0, ran.err
    rows = {row["model"]: row for row in json.loads(ran.out)}
    assert rows["org/big"]["gib"] == 15.0
    full = (tmp_path / "full.yaml").read_text()
    assert [line for line in full.splitlines() if line in PAIRINGS.splitlines()] == (
        PAIRINGS.splitlines()
    )
    target = load_pairings(tmp_path / "full.yaml").target("big")
    assert (target.model.revision, target.model.weights_gib) == (REVISION, 15.1)
    head = target.drafters[0]
    assert head.model is not None
    assert head.origin is not None
    assert (head.model.revision, head.model.weights_gib) == (REVISION[::-1], 1.0)
    assert head.origin.license == "head-license"


@pytest.mark.usefixtures("hub")
def test_checking_reports_entries_that_differ_from_the_hub(tmp_path: Path) -> None:
    pairings = yaml.safe_load(PAIRINGS)
    pairings["targets"]["packed"] = {
        **pairings["targets"]["big"],
        "quantization": "int8",
        "weights_gib": 8,
    }
    pairings["targets"]["packed"]["drafters"] = {"copy": {"method": "ngram"}}
    pairings["targets"]["big"]["weights_gib"] = 12
    head_entry = pairings["targets"]["big"]["drafters"]["head"]
    head_entry["license"] = "mit"
    pairings["targets"]["big"]["drafters"]["gone"] = {"method": "eagle3", "model": "org/gone"}
    (tmp_path / "pairings.yaml").write_text(yaml.safe_dump(pairings))
    ran = specbench("list pairings --check-hub", cwd=tmp_path)
    assert ran.code == 1
    gone, big, head = ran.err.splitlines()
    assert gone.startswith("org/gone: not on")
    assert re.fullmatch(r"org/big: .*12, .*15\.0 GiB", big)
    assert re.fullmatch("big/head: .*mit, .*head-license", head)
    assert REVISION[:12] in ran.out


@pytest.mark.parametrize(("gib", "differs"), [(15.7, False), (15.8, True), (14.2, True)])
def test_weights_within_five_percent_are_those_of_the_hub(gib, differs, tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_text(PAIRINGS.replace("15.1", f"{gib}"))
    facts = {("org/big", None): HubFacts(source="org/big", weight_bytes=15 * GIB)}
    assert any(differences(load_pairings(path), facts)) == differs


def test_missing_fields_are_written_next_to_their_entry() -> None:
    targets = (
        "  a:\n    quantization: int8\n    model: org/a\n  b:\n    model: org/a\n    revision: v1\n"
    )
    newest = HubFacts(source="org/a", revision=REVISION, weight_bytes=1000)
    older = replace(newest, revision=REVISION[::-1], weight_bytes=2 * GIB)
    facts = {("org/a", None): newest, ("org/a", "v1"): older}
    quantized, unquantized = filled(targets, facts).split("  b:\n")
    assert quantized.endswith(f'int8\n    model: org/a\n    revision: "{REVISION}"\n')
    assert unquantized == "    model: org/a\n    weights_gib: 2.0\n    revision: v1\n"


@pytest.mark.parametrize(
    ("num_bytes", "line"),
    [(1000, "weights_gib: 0.1"), (226 * GIB // 100, "weights_gib: 2.3"), (None, "revision: v1")],
)
def test_a_written_size_is_rounded_and_at_least_a_tenth(num_bytes, line) -> None:
    text = "  b:\n    revision: v1\n    model: org/a\n"
    facts = {("org/a", "v1"): HubFacts(source="org/a", weight_bytes=num_bytes)}
    assert set(filled(text, facts).splitlines()) == {*text.splitlines(), f"    {line}"}


@pytest.mark.usefixtures("hub")
def test_every_revision_is_requested_and_a_missing_one_fails(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  a: {model: org/bare, revision: v9, drafters: {copy: {method: ngram}}}\n"
        "  b: {model: org/bare, drafters: {copy: {method: ngram}}}\n"
    )
    ran = specbench("list pairings --check-hub", cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "org/bare: has no revision v9\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fits", "--check-hub"), "leave out --fits"),
        (("--gpu", "L4"), "add --fits"),
        (("--output", "x.yaml"), "add --check-hub"),
        (("--fits", "--gpu", "abacus"), "--gpu 'abacus' is unknown"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    ran = specbench("list", "pairings", *words, cwd=tmp_path)
    assert (ran.code, message in ran.err) == (2, True)


def test_a_model_without_a_catalog_entry_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'Qwen/Qwen3-8B'"):
        catalog_drafters("Qwen/Qwen3-8b")


def test_a_model_that_is_a_target_twice_has_each_draft_once() -> None:
    drafts = catalog_drafters("meta-llama/Llama-3.3-70B-Instruct")
    sources = [drafter.model.source for drafter in drafts if drafter.model]
    assert len(set(sources)) == len(sources) > 3
    (demo,) = (t for t in load_pairings(shipped("pairings.yaml")).targets if t.name == "demo")
    assert catalog_drafters("demo:target") == demo.drafters


def test_pair_with_published_refuses_a_model_without_drafts(tmp_path: Path) -> None:
    words = ("--published", "--dry-run", "--json")
    ran = specbench("pair", "demo:target", *words, cwd=tmp_path)
    assert ran.code == 0, ran.err
    drafters = {row["drafter"] for row in json.loads(ran.out)["drafters"]}
    assert {"eagle3", "medusa-tree", "ngram"} <= drafters
    ran = specbench("pair", "demo:draft", *words, cwd=tmp_path)
    assert (ran.code, "demo:draft" in ran.err) == (2, True)
