"""pairings.yaml ends up in the records as written; `lossy:` of a drafter is read as strictly."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from specbench.errors import ConfigError, UsageError
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import Pairings
from specbench.inputs.strict_yaml import MAX_DEPTH, read_yaml
from specbench.records import LossyRule

TWO_TARGETS = """
    default: small/copy
    defaults: {dtype: float32, device_map: cpu, num_speculative_tokens: 3}
    targets:
      big:
        model: owner/big
        revision: "12"
        dtype: bfloat16
        quantization: int4
        weights_gib: 10
        drafters:
          draft:
            method: draft_model
            model: owner/draft
            num_speculative_tokens: 7
            weights_gib: 1.5
          copy:
            method: ngram
            parameters: {max_ngram: 4, min_ngram: 2}
          heads: {method: eagle3, model: owner/heads, dtype: float16, device_map: "cuda:1"}
      small:
        model: owner/small
        note: A second target.
        drafters:
          copy: {method: ngram}
"""


def read(folder: Path, text: str) -> Pairings:
    path = folder / "pairings.yaml"
    path.write_text(dedent(text))
    return load_pairings(path)


def test_a_pairing_is_named_target_slash_drafter_in_the_order_of_the_file(tmp_path: Path) -> None:
    pairings = read(tmp_path, TWO_TARGETS)
    assert [p.name for p in pairings.all] == ["big/draft", "big/copy", "big/heads", "small/copy"]


def test_fields_of_target_and_draft_model_come_from_the_file(tmp_path: Path) -> None:
    pairing = read(tmp_path, TWO_TARGETS).select(["big/draft"])[0]
    target, draft = pairing.target.model, pairing.drafter.model
    assert draft is not None
    assert (target.location, target.revision, target.quantization) == ("owner/big", "12", "int4")
    assert (draft.location, draft.revision, draft.quantization) == ("owner/draft", None, None)
    assert pairing.drafter.num_speculative_tokens == 7
    assert pairing.target.workloads is None


def test_a_drafter_takes_dtype_and_device_map_from_its_target_unless_it_has_its_own(
    tmp_path: Path,
) -> None:
    draft, _, heads = read(tmp_path, TWO_TARGETS).targets[0].drafters
    assert draft.model is not None
    assert heads.model is not None
    assert (draft.model.dtype, draft.model.device_map) == ("bfloat16", "cpu")
    assert (heads.model.dtype, heads.model.device_map) == ("float16", "cuda:1")


def test_unset_fields_of_targets_and_drafters_come_from_the_defaults(tmp_path: Path) -> None:
    small = read(tmp_path, TWO_TARGETS).targets[1]
    assert (small.model.dtype, small.model.device_map) == ("float32", "cpu")
    assert small.drafters[0].num_speculative_tokens == 3


def test_fields_without_defaults_are_automatic(tmp_path: Path) -> None:
    only = "targets: {big: {model: owner/big, drafters: {copy: {method: ngram}}}}"
    target = read(tmp_path, only).targets[0]
    assert (target.model.dtype, target.model.device_map) == ("auto", None)
    assert target.model.trust_remote_code is False
    assert target.drafters[0].num_speculative_tokens is None


def test_parameters_reach_the_drafter_as_they_are_written(tmp_path: Path) -> None:
    copy = read(tmp_path, TWO_TARGETS).select(["big/copy"])[0].drafter
    assert copy.parameters == {"max_ngram": 4, "min_ngram": 2}

    def parameters(drafter: str) -> object:
        text = f"targets: {{b: {{model: o/b, drafters: {{s: {drafter}}}}}}}"
        return read(tmp_path, text).targets[0].drafters[0].parameters

    assert parameters("{method: suffix, parameters: {max_spec_factor: 1.5}}") == {
        "max_spec_factor": 1.5
    }
    assert parameters("{method: self_speculation, parameters: {tree: [4, 2]}}") == {"tree": (4, 2)}


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ("[0]", r"is \[0\]; expected a list of whole numbers above 0"),
        ("[2, 0]", r"is \[2, 0\]; expected a list of whole numbers above 0"),
        ("[64, 64, 64]", r"is \[64, 64, 64\]; expected at most 256 drafts"),
        ("[257]", "at most 256 drafts"),
        ("[a]", "a"),
        ("[2.5]", "2.5"),
    ],
)
def test_an_invalid_tree_is_refused_with_its_line(
    tmp_path: Path, tree: str, complaint: str
) -> None:
    drafter = f"{{method: self_speculation, parameters: {{tree: {tree}}}}}"
    text = f"targets:\n  b:\n    model: o/b\n    drafters:\n      s: {drafter}\n"

    with pytest.raises(ConfigError, match=rf":5: .*tree.*{complaint}"):
        read(tmp_path, text)


def test_a_pairing_needs_the_memory_of_both_models_if_both_are_known(tmp_path: Path) -> None:
    draft, copy, heads, _ = read(tmp_path, TWO_TARGETS).all
    assert draft.weights_gib == 11.5
    assert copy.weights_gib == 10  # no model
    assert heads.weights_gib is None  # the file does not state the size of the heads


def test_a_target_name_selects_all_its_drafters_once(tmp_path: Path) -> None:
    pairings = read(tmp_path, TWO_TARGETS)
    names = [p.name for p in pairings.select(["small", "big/heads", "big"])]
    assert names == ["small/copy", "big/heads", "big/draft", "big/copy"]


def test_no_names_select_the_default_pairing_or_the_first_target(tmp_path: Path) -> None:
    assert [p.name for p in read(tmp_path, TWO_TARGETS).select()] == ["small/copy"]
    no_default = TWO_TARGETS.replace("default: small/copy", "")
    assert [p.target.name for p in read(tmp_path, no_default).select()] == ["big"] * 3


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'big/daft'.*'big/draft'"):
        read(tmp_path, TWO_TARGETS).select(["big/daft"])


def test_a_model_folder_is_found_from_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").touch()
    text = "targets: {b: {model: ./weights, drafters: {copy: {method: ngram}}}}"
    model = read(tmp_path, text).targets[0].model
    assert (model.source, model.folder) == ("./weights", tmp_path / "weights")
    assert model.location == str(tmp_path / "weights")


def test_a_parent_folder_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").touch()
    (tmp_path / "reports" / "pairings").mkdir(parents=True)
    text = "targets: {b: {model: ../../weights, drafters: {copy: {method: ngram}}}}"
    model = read(tmp_path / "reports" / "pairings", text).targets[0].model
    assert (model.source, model.location) == ("../../weights", str(tmp_path / "weights"))


def test_a_target_can_have_its_own_workload_folder(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    text = "targets: {b: {model: o/b, workloads: prompts, drafters: {copy: {method: ngram}}}}"
    assert read(tmp_path, text).targets[0].workloads == tmp_path / "prompts"


def test_pairings_of_the_working_folder_precede_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_pairings().targets[0].name == "demo"
    read(tmp_path, TWO_TARGETS)
    assert load_pairings().targets[0].name == "big"


def test_a_given_file_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, TWO_TARGETS)
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.yaml"
    other.write_text("targets: {b: {model: o/b, drafters: {copy: {method: ngram}}}}")
    assert load_pairings(other).targets[0].name == "b"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + dedent(TWO_TARGETS).replace("\n", line_end).encode())
    assert load_pairings(path).targets[0].name == "big"


def test_an_unknown_bundled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'drat'.*'draft'"):
        read(tmp_path, "targets: {b: {model: demo:drat, drafters: {copy: {method: ngram}}}}")


def test_a_shape_is_a_config_with_the_bundled_targets_tokenizer(
    tmp_path: Path,
) -> None:
    text = "targets: {b: {model: shape:llama-8b, drafters: {copy: {method: ngram}}}}"
    model = read(tmp_path, text).targets[0].model
    assert model.is_shape
    assert [path.name for path in Path(model.location).iterdir()] == ["config.json"]
    assert Path(model.tokenizer_location).parts[-3:] == ("demo", "models", "target")


def test_every_other_model_has_its_own_tokenizer(tmp_path: Path) -> None:
    model = read(tmp_path, TWO_TARGETS).targets[0].model
    assert not model.is_shape
    assert model.tokenizer_location == model.location


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    wanted = "no shape 'llama-7b', did you mean .*; there are: llama-1b, llama-70b, llama-8b"
    with pytest.raises(ConfigError, match=wanted):
        read(tmp_path, "targets: {b: {model: shape:llama-7b, drafters: {copy: {method: ngram}}}}")


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_a_target_and_its_draft_model_may_be_packed_each_on_its_own(
    tmp_path: Path, scheme: str
) -> None:
    text = f"""
        targets:
          b:
            model: o/b
            drafters:
              packed: {{method: draft_model, model: o/d, quantization: {scheme}}}
    """
    pairing = read(tmp_path, text).all[0]
    assert pairing.target.model.quantization is None
    assert pairing.drafter.model is not None
    assert pairing.drafter.model.quantization == scheme


def test_an_unknown_quantization_is_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    text = """
        targets:
          b:
            model: o/b
            quantization: int3
            drafters: {copy: {method: ngram}}
    """
    wanted = r"pairings.yaml:5: targets.b.quantization: .*int3.*allowed: int8, int4, fp8"
    with pytest.raises(ConfigError, match=wanted):
        read(tmp_path, text)


@pytest.mark.parametrize("where", ["here", "file"])
def test_a_hub_id_is_never_an_empty_folder_of_that_name(tmp_path, monkeypatch, where):
    (tmp_path / "here" / "file").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "here" / "file" / "pairings.yaml"
    file.write_text(
        "targets: {big: {model: owner/big, drafters: {head: {method: eagle, model: my-head}}}}"
    )
    assert load_pairings(file).all[0].name == "big/head"
    place = tmp_path / "here" / ("" if where == "here" else "file") / "my-head"
    place.mkdir()
    with pytest.raises(ConfigError, match="'my-head' is a hub id"):
        load_pairings(file)


def test_a_model_named_like_a_folder_next_to_the_file_is_that_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "there" / "models" / "target"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    file = tmp_path / "there" / "pairings.yaml"
    file.write_text("targets: {big: {model: models/target, drafters: {copy: {method: ngram}}}}")
    assert load_pairings(file).all[0].target.model.folder == folder
    monkeypatch.chdir(tmp_path / "there")
    for typed in ("models/target", "models/target/", "../there/models/target"):
        assert model_spec(typed).folder.resolve() == folder
    monkeypatch.chdir(tmp_path)
    assert model_spec("there/models/target").folder == folder
    with pytest.raises(UsageError, match="there/models/ has no config"):
        model_spec("there/models/")


def test_the_only_files_that_are_models_are_gguf_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("weights.safetensors", "weights.GGUF"):
        Path(name).touch()
    assert model_spec("./weights.GGUF").folder == tmp_path / "weights.GGUF"
    with pytest.raises(UsageError, match=r"\./weights\.safetensors"):
        model_spec("./weights.safetensors")


def test_a_file_adds_to_the_shipped_pairings_and_wins_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "targets: {mine: {model: o/b, drafters: {copy: {method: ngram}}}}"
    Path("pairings.yaml").write_text(text)
    pairings = load_pairings()
    assert [pairing.name for pairing in pairings.all] == ["mine/copy"]
    assert pairings.select()[0].name == "mine/copy"
    assert pairings.select(["demo/draft"])[0].target.model.source == "demo:target"
    assert pairings.target("demo").name == "demo"

    Path("pairings.yaml").write_text(text.replace("mine", "demo"))
    assert [pairing.name for pairing in load_pairings().select(["demo"])] == ["demo/copy"]
    with pytest.raises(UsageError, match="no pairing 'demo/draft'"):
        load_pairings().select(["demo/draft"])


@pytest.mark.parametrize("name", ["owner/model", "./folder", "demo:target"])
def test_a_model_without_a_pairing_gets_a_hint_how_to_measure_it(name):
    with pytest.raises(UsageError, match=f"specbench run --target {name} --draft DRAFT"):
        load_pairings().select([name])


def test_yaml_nests_to_the_stated_depth_and_no_deeper(tmp_path):
    file = tmp_path / "deep.yaml"
    file.write_text("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
    assert read_yaml(file, ConfigError).json() == json.loads(file.read_text())
    file.write_text("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    with pytest.raises(ConfigError, match=f"deeper than {MAX_DEPTH} levels"):
        read_yaml(file, ConfigError)


def test_a_hub_id_on_the_command_line_is_refused_next_to_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_spec("org/Small-1B").folder is None
    (tmp_path / "org" / "Small-1B").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"org/Small-1B.* config\.json"):
        model_spec("org/Small-1B")


FILE = """\
targets:
  big:
    model: owner/big
    drafters:
      copy:
        method: ngram
        lossy: {}
"""


def rule_of(folder: Path, text: str) -> LossyRule | None:
    path = folder / "pairings.yaml"
    path.write_text(FILE.format(text))
    return load_pairings(path).all[0].drafter.lossy


@pytest.mark.parametrize(
    ("text", "name", "parameters", "expected"),
    [
        ("typical", "typical", {"threshold": 0.09, "alpha": 0.3}, "typical"),
        ("{rule: typical}", "typical", {"threshold": 0.09, "alpha": 0.3}, "typical"),
        (
            "{rule: typical, alpha: 0.5}",
            "typical",
            {"threshold": 0.09, "alpha": 0.5},
            "typical alpha=0.5",
        ),
        (
            "{threshold: 0.2, rule: typical, alpha: 1}",
            "typical",
            {"threshold": 0.2, "alpha": 1.0},
            "typical threshold=0.2 alpha=1",
        ),
        (
            "{rule: threshold, single: 0.4}",
            "threshold",
            {"single": 0.4},
            "threshold single=0.4",
        ),
    ],
)
def test_a_lossy_rule_has_defaults_and_shows_changed_parameters(
    text: str, name: str, parameters: dict[str, float], expected: str, tmp_path: Path
) -> None:
    rule = rule_of(tmp_path, text)
    assert rule == LossyRule(name=name, parameters=parameters)
    assert str(rule) == expected


def test_a_drafter_without_the_lossy_key_is_lossless(tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_text(FILE.replace("        lossy: {}\n", ""))
    assert load_pairings(path).all[0].drafter.lossy is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("typicl", "unknown 'typicl', did you mean 'typical'?; allowed: typical, threshold"),
        ("true", "expected text, not true or false"),
        ("threshold", "the rule threshold needs its `single`, such as {rule: threshold, single"),
        ("{alpha: 0.3}", "the key `rule` is missing"),
        ("{rule: typical, single: 0.3}", "lossy.single: unknown key; allowed: rule, threshold"),
        ("{rule: typical, alfa: 0.3}", "lossy.alfa: unknown key, did you mean 'alpha'?"),
        ("{rule: typical, alpha: 0}", "lossy.alpha: expected a number above 0 and up to 1, not 0"),
        ("{rule: typical, alpha: 1.5}", "expected a number above 0 and up to 1, not 1.5"),
        ("{rule: typical, threshold: high}", "up to 1, not text ('high')"),
        ("{rule: typical, threshold: .nan}", "up to 1, not .nan"),
        ("[typical]", "expected text, not a list"),
        ("{}", "the key `rule` is missing"),
    ],
)
def test_an_error_has_its_line_and_what_is_allowed(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        rule_of(tmp_path, text)
    assert "pairings.yaml:7: targets.big.drafters.copy.lossy" in str(wrong.value)
    assert says in str(wrong.value)


def test_a_lossy_drafter_runs_only_if_named(tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    path.write_text(FILE.format("typical") + "      exact:\n        method: ngram\n")
    pairings = load_pairings(path)
    assert [p.name for p in pairings.all] == ["big/copy", "big/exact"]
    assert [p.name for p in pairings.select(["big"])] == ["big/exact"]
    assert [p.name for p in pairings.select()] == ["big/exact"]
    assert [p.name for p in pairings.select(["big/copy"])] == ["big/copy"]
    assert [p.name for p in pairings.select(["big", "big/copy"])] == ["big/exact", "big/copy"]
