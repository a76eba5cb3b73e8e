import json
import re
import shutil

import pytest

from specbench.cli.hardware import MachineSummary
from specbench.fit.memory_plan import DeploymentSpec
from tests.cli.calls import specbench

KINDS = ("pairings", "workloads", "methods", "parameters", "metrics", "families", "runs")


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_fits_80_columns_on_a_terminal(kind, tiny, finished, monkeypatch):
    assert finished.is_complete
    monkeypatch.setattr("specbench.cli.console.is_terminal", lambda **_: True)
    ran = specbench("list", kind, cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_has_a_json_form(kind, tiny, finished):
    assert finished.is_complete
    ran = specbench("list", kind, "--json", cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    rows = json.loads(ran.out)
    assert rows
    assert all(row.keys() == rows[0].keys() for row in rows)


def test_pairings_are_those_of_the_working_folder(tiny):
    rows = json.loads(specbench("list pairings --json", cwd=tiny).out)
    assert [(row["pairing"], row["method"], row["draft"]) for row in rows[:3]] == [
        ("tiny/draft", "draft_model", "./draft"),
        ("tiny/ngram", "ngram", None),
        ("demo/draft", "draft_model", "demo:draft"),  # the shipped ones follow
    ]
    assert all(row["k"] for row in rows)  # as in a run without -k if the file has none
    assert not all(row["num_speculative_tokens"] for row in rows)


def test_a_method_with_one_k_is_listed_with_it(tmp_path):
    (tmp_path / "pairings.yaml").write_text(
        "targets: {t: {model: 'demo:target', drafters: {counts: {method: ngram_cache}}}}"
    )
    (row,) = json.loads(specbench("list pairings --json -c pairings.yaml", cwd=tmp_path).out)
    assert (row["num_speculative_tokens"], row["k"]) == (None, 8)


def test_unknown_memory_of_a_gpu_is_not_shown_as_none(tmp_path, monkeypatch):
    unknown = MachineSummary("GPU", DeploymentSpec(device="cuda"), ())
    monkeypatch.setattr("specbench.cli.hardware.find_machine", lambda *_, **__: unknown)
    ran = specbench("list pairings --fits", cwd=tmp_path)
    assert ran.err.startswith("GPU, unknown memory: the weights of 0 pairings fit, those of 0 do")


def test_drafters_are_listed_with_their_parameters(tmp_path):
    methods = json.loads(specbench("list methods --json", cwd=tmp_path).out)
    assert {row["method"]: row["model"] for row in methods}["ngram"] == "refused"
    rows = json.loads(specbench("list parameters --json", cwd=tmp_path).out)
    ngram = {row["parameter"]: row["default"] for row in rows if row["method"] == "ngram"}
    assert ngram == {"max_ngram": 3, "min_ngram": 1}
    assert all(row["allowed"] and row["description"] for row in rows)
    (tree,) = (r for r in rows if (r["method"], r["parameter"]) == ("medusa", "tree"))
    assert tree["allowed"] == "auto, chain, published, stage2 or fitted"
    listed = specbench("list parameters", cwd=tmp_path).out.splitlines()
    assert any(line.startswith("lookahead\tpool_from_prompt\ttrue\ttrue or") for line in listed)
    assert any(line.startswith("draft_model\ttree\tnone\t") for line in listed)


def test_a_family_has_a_row_per_outcome_with_the_versions_that_share_it(tmp_path):
    rows = json.loads(specbench("list families --json", cwd=tmp_path).out)
    outcomes = {(row["family"], *row["transformers"]): (row["state"], row["why"]) for row in rows}
    assert outcomes["llama", "5.17.0", "5.24.0"] == ("identical", "fused")
    assert outcomes["big_bird", "5.17.0"][0] == "refused"
    assert outcomes["big_bird", "5.24.0"][0] == "identical"
    assert ("zaya", "5.17.0") not in outcomes


def test_a_metric_is_listed_with_its_header_and_formula(tmp_path):
    rows = json.loads(specbench("list metrics --json", cwd=tmp_path).out)
    rates = {row["metric"]: row for row in rows}
    assert rates["aggregate_tokens_per_s"]["header"] == "tok/s, all"
    assert rates["acceptance_rate"]["unit"] == "fraction"
    assert rates["acceptance_rate"]["formula"].startswith("sum(a) / sum(d)")


def test_runs_report_their_progress(tiny, finished):
    assert finished.is_complete
    rows = json.loads(specbench("list runs --json", cwd=tiny).out)
    assert rows[0]["state"] == "complete"
    assert rows[0]["blocks"] >= 6
    assert rows[0]["workloads"] == ["prompts.jsonl"]


def test_an_empty_folder_lists_no_runs(tmp_path):
    ran = specbench("list", "runs", cwd=tmp_path)
    assert (ran.out, ran.err) == ("", "none\n")
    assert specbench("list runs --json", cwd=tmp_path).out == "[]\n"


def test_a_damaged_run_is_listed_with_what_is_wrong(tmp_path):
    folder = tmp_path / "reports" / "a-run"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (row,) = json.loads(specbench("list runs --json", cwd=tmp_path).out)
    assert "damaged" in row["state"]


def test_doctor_checks_the_pairings_of_this_folder(tiny):
    ran = specbench("doctor", "--json", cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["free_gib"] > 0
    assert {"torch", "transformers"} <= document["packages"].keys()
    assert [(row["pairing"], row["ready"], row["problems"]) for row in document["pairings"]] == [
        ("tiny/draft", True, []),
        ("tiny/ngram", True, []),
    ]


def test_doctor_reports_what_is_missing(tiny, tmp_path):
    tokenizer = json.loads((tiny / "draft" / "tokenizer.json").read_text())
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        for file in (tiny / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    vocab = tokenizer["model"]["vocab"]
    vocab["[/b]"] = vocab.pop("A")
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "pairings.yaml").write_text(
        """\
targets:
  tiny:
    model: ./target
    weights_gib: 900000
    drafters:
      draft: {method: draft_model, model: ./draft, weights_gib: 1}
      far: {method: draft_model, model: owner/far-away, quantization: int4}
      head: {method: eagle3, model: owner/head}
      ngram: {method: ngram}
"""
    )
    ran = specbench("doctor", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["pairings"]
    problems = {row["pairing"]: row["problems"] for row in rows}
    assert re.match("needs .*900,001 GiB .*float32", problems["tiny/draft"][0])
    assert "tokenizer: 1 token ids " in problems["tiny/draft"][1]
    for name in ("tiny/far", "tiny/head"):
        at_least, not_here = problems[name]
        assert "at least 900,000 GiB" in at_least
        assert not_here == "not downloaded"
    known = {row["pairing"]: (row["weights_gib"], row["at_least_gib"]) for row in rows}
    assert [type(gib) for gib in known["tiny/far"]] == [type(None), float]
    assert [type(gib) for gib in known["tiny/draft"]] == [float, type(None)]
    (too_large,) = problems["tiny/ngram"]
    assert too_large.startswith("needs about 900,000 GiB")

    # Brackets in a token are not markup, and the table fits.
    text = specbench("doctor", cwd=tmp_path)
    assert text.code == 0
    assert "[/b]" in text.out.replace("\n", "").replace(" ", "")
    assert max(map(len, text.out.splitlines())) <= 80
    assert re.search(r"tiny/far +>= 900000", text.out)
    assert re.findall(r"\d+", text.out.splitlines()[-1]) == ["0", "4", "4"]  # ready, all, refused


def test_doctor_counts_pairings_that_are_not_downloaded_as_not_checked(tiny, tmp_path):
    (tmp_path / "pairings.yaml").write_text(
        f"targets:\n  tiny:\n    model: {tiny / 'target'}\n    drafters:\n"
        "      far: {method: draft_model, model: owner/far-away}\n      ngram: {method: ngram}\n"
    )
    last = specbench("doctor", cwd=tmp_path).out.splitlines()[-1]
    assert re.findall(r"\d+", last) == ["1", "2", "1"]  # ready, all, not checked


def test_doctor_counts_missing_models_as_this_machine_would_load_them(tmp_path):
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  far:\n    model: owner/far\n    weights_gib: 900000\n"
        "    drafters:\n      near: {method: draft_model, model: owner/near, weights_gib: 1}\n"
    )
    ran = specbench("doctor far --json", cwd=tmp_path)
    document = json.loads(ran.out)
    (row,) = document["pairings"]
    gib = 900_001 * (2 if document["device"] == "cpu" else 1)  # a CPU loads them in float32
    assert ran.code == 1
    assert row["weights_gib"] == gib
    assert f"at least {gib:,.0f} GiB" in row["problems"][0]
    assert row["problems"][1:] == ["not downloaded"]


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("mamba", "keeps recurrent state"),
        ("t5", "T5ForConditionalGeneration has an encoder"),
        ("moshi", "the decoder's logits differ"),
    ],
)
def test_doctor_reports_the_error_that_loading_would_raise(tmp_path, model_type, words):
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    names = {"t5": "T5ForConditionalGeneration", "mamba": "MambaForCausalLM"}
    config.architectures = [names.get(model_type, "MoshiForCausalLM")]
    config.save_pretrained(tmp_path / "target")
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  one:\n    model: ./target\n    drafters:\n      ngram: {method: ngram}\n"
    )
    (row,) = json.loads(specbench("doctor", "--json", cwd=tmp_path).out)["pairings"]
    assert not row["ready"]
    assert words in row["problems"][0]


def test_doctor_of_one_pairing_checks_only_that_one(tiny):
    ran = specbench("doctor tiny/ngram --json", cwd=tiny)
    assert ran.code == 0
    document = json.loads(ran.out)
    assert [row["pairing"] for row in document["pairings"]] == ["tiny/ngram"]


def test_doctor_notes_an_untested_head_layout(tmp_path):
    (eagle,) = json.loads(specbench("doctor demo/eagle --json", cwd=tmp_path).out)["pairings"]
    (note,) = eagle["notes"]
    assert note.startswith("SafeAILab's layout")
    assert "never tested" in note
    text = " ".join(specbench("doctor", "demo/eagle", cwd=tmp_path).out.split())
    assert f"demo/eagle: {note}" in text


def test_doctor_reports_the_tokens_in_common_with_another_tokenizer(tiny, tmp_path):
    for name in ("target", "draft"):
        shutil.copytree(tiny / name, tmp_path / name)
    file = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["zz"] = vocab.pop("A")
    file.write_text(json.dumps(tokenizer))
    (tmp_path / "pairings.yaml").write_text(
        """\
targets:
  tiny:
    model: ./target
    drafters:
      same: {method: draft_model, model: ./draft}
      other: {method: token_intersection, model: ./draft}
"""
    )
    same, other = json.loads(specbench("doctor", "--json", cwd=tmp_path).out)["pairings"]
    share = "258 tokens in common, 99.6% of the target's and 99.6% of the draft model's"
    assert f"{share}: method token_intersection" in same["problems"][0]
    assert (other["ready"], other["problems"]) == (True, [])
    (note,) = other["notes"]
    assert note.startswith(share)
    assert "258 tokens in common" in specbench("doctor", cwd=tmp_path).out


def test_doctor_prints_one_line_per_pairing_without_truncation(tmp_path):
    ran = specbench("doctor", cwd=tmp_path)
    rows = [line for line in ran.out.splitlines() if "/" in line.partition(" ")[0]]
    listed = json.loads(specbench("list pairings --json", cwd=tmp_path).out)
    assert [row.split()[0] for row in rows] == [entry["pairing"] for entry in listed]
    assert "`specbench doctor PAIRING`" in ran.out.splitlines()[-1]
