"""Every rule about a draft model: its text, and the two values that it names."""

import json
import re
from pathlib import Path

import pytest

from specbench.errors import CompatibilityError
from specbench.files.model import ModelFiles
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import prepare
from specbench.fit.compatibility import (
    Compatibility,
    FitFinding,
    check_drafter,
    check_target,
    context_findings,
)
from specbench.fit.memory_plan import DeploymentSpec
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.tokenizer import ChatTokenizer, require_same_vocabulary
from tests.tiny_models import (
    change_config,
    change_json,
    files_of,
    rename_end_of_turn,
    replace_weights,
    swap_tokens,
    write_model,
)


@pytest.fixture
def target(tmp_path: Path) -> ModelFiles:
    return write_model(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> ModelFiles:
    return write_model(tmp_path / "draft", num_hidden_layers=1)


def check(target: ModelFiles, draft: ModelFiles) -> Compatibility:
    spec = ModelSpec(source=str(draft.folder), folder=draft.folder)
    return check_drafter(target, DrafterSpec(name="draft", method="draft_model", model=spec))


def single(checked: Compatibility, level: str) -> FitFinding:
    """The one finding that is not ok."""
    (finding,) = [finding for finding in checked.findings if finding.level != "ok"]
    assert finding.level == level
    return finding


def change_tokenizer(model: ModelFiles, change) -> ModelFiles:
    change_json(model.folder / "tokenizer.json", change)
    return files_of(model.folder)


def test_a_draft_of_the_same_family_fits(target, draft):
    checked = check(target, draft)
    assert checked.level == "ok"
    fields = {finding.field for finding in checked.findings}
    assert fields == {
        *("weights", "tokenizer", "special_tokens", "chat_template", "tensors"),
        *("eos", "vocab_size", "context"),
    }


def test_an_id_that_means_another_token_is_refused_with_both_tokens(target, draft):
    changed = change_tokenizer(draft, swap_tokens)
    finding = single(check(target, changed), "refused")
    a = target.vocabulary.ids_by_token["A"]
    assert finding.field == "tokenizer"
    assert re.search(rf"2 token ids .*\({a}: 'A' .*'B', {a + 1}: 'B' .*'A'\)", finding.text)
    assert (finding.target, finding.draft) == ("259 tokens", "259 tokens")
    tokenizers = (
        ChatTokenizer(str(model.folder), revision=None, trust_remote_code=False)
        for model in (target, changed)
    )
    with pytest.raises(CompatibilityError, match=re.escape(finding.reason)):  # and so does loading
        require_same_vocabulary(*tokenizers)


def test_a_token_that_the_draft_lacks_is_a_warning_that_names_it(target, draft):
    changed = change_tokenizer(draft, lambda content: content["model"]["vocab"].pop("A"))
    finding = single(check(target, changed), "warning")
    assert (finding.target, finding.draft) == ("259 tokens", "258 tokens")
    assert re.search("1 of .*tokens", finding.reason)
    assert "'A'" in finding.reason
    assert "None" not in finding.text
    assert check(changed, target).level == "ok"  # the target never takes what it does not know


def test_a_special_token_of_another_name_is_a_warning_with_both_names(target, draft):
    finding = single(check(target, change_tokenizer(draft, rename_end_of_turn)), "warning")
    assert finding.field == "special_tokens"
    assert (finding.target, finding.draft) == ("<|im_end|>", "<|turn|>")


def test_a_draft_without_a_tokenizer_is_refused(target, draft):
    for file in draft.folder.glob("tokenizer*"):
        file.unlink()
    refused = check(target, files_of(draft.folder)).of_level("refused")
    assert [f.field for f in refused] == ["tokenizer"]
    assert "tokenizer.json" in refused[0].reason


def test_equal_files_of_an_older_tokenizer_are_equal_vocabularies(target, draft):
    for model, content in ((target, b"pieces"), (draft, b"pieces")):
        (model.folder / "tokenizer.json").unlink()
        (model.folder / "tokenizer.model").write_bytes(content)
    checked = check(files_of(target.folder), files_of(draft.folder))
    (finding,) = [f for f in checked.findings if f.field == "tokenizer"]
    assert (finding.level, finding.reason) == ("ok", "the same tokenizer.model")
    (draft.folder / "tokenizer.model").write_bytes(b"others")
    changed = check(files_of(target.folder), files_of(draft.folder))
    assert single(changed, "warning").field == "tokenizer"


def test_another_chat_template_is_a_warning(target, draft):
    (draft.folder / "chat_template.jinja").write_text("{{ messages }}")
    finding = single(check(target, files_of(draft.folder)), "warning")
    assert finding.field == "chat_template"
    assert None not in (finding.target, finding.draft)
    assert finding.target != finding.draft


def test_other_ends_of_text_are_a_warning(target, draft):
    change_json(draft.folder / "generation_config.json", lambda c: c.update(eos_token_id=[0, 2]))
    finding = single(check(target, files_of(draft.folder)), "warning")
    assert (finding.field, finding.target, finding.draft) == ("eos", "0", "0, 2")
    assert "end the text" in finding.reason


def test_padding_of_the_embedding_is_allowed_and_reported(tmp_path, target):
    draft = write_model(tmp_path / "padded", num_hidden_layers=1, vocab_size=320)
    checked = check(target, draft)
    assert checked.level == "ok"
    (finding,) = [f for f in checked.findings if f.field == "vocab_size"]
    assert (finding.target, finding.draft) == ("272", "320")
    assert "padding of 259 ids" in finding.reason


def test_a_draft_that_lacks_rows_for_tokens_is_a_warning_with_both_sizes(tmp_path, target):
    draft = write_model(tmp_path / "short", num_hidden_layers=1, vocab_size=250)
    finding = single(check(target, draft), "warning")
    assert (finding.field, finding.target, finding.draft) == ("vocab_size", "272", "250")
    assert re.search(r"250 .*259 ids \(97%\)", finding.reason)


def test_a_draft_of_fewer_tokens_needs_rows_only_for_its_own(tmp_path, target):
    def drop_tokens(content):
        vocab = content["model"]["vocab"]
        content["model"]["vocab"] = {token: i for token, i in vocab.items() if i < 250}

    draft = change_tokenizer(write_model(tmp_path / "fewer", vocab_size=250), drop_tokens)
    (finding,) = [f for f in check(target, draft).findings if f.field == "vocab_size"]
    assert (finding.level, finding.target, finding.draft) == ("ok", "272", "250")


def test_a_shorter_context_is_a_warning_with_both_lengths(tmp_path, target):
    draft = write_model(tmp_path / "short", num_hidden_layers=1, max_position_embeddings=64)
    finding = single(check(target, draft), "warning")
    assert (finding.field, finding.target, finding.draft) == ("context", "128", "64")
    assert "rotary positions go on" in finding.reason


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # As published: GPT-2, OPT, GPT-J; Llama 1, Pythia, Qwen2, Phi-3.
        ({"model_type": "gpt2", "n_positions": 1024, "n_ctx": 1024}, 1024),
        ({"model_type": "opt", "max_position_embeddings": 2048}, 2048),
        ({"model_type": "gptj", "n_positions": 2048, "rotary": True, "rotary_dim": 64}, 2048),
        ({"model_type": "llama", "max_position_embeddings": 2048}, None),
        ({"model_type": "gpt_neox", "max_position_embeddings": 2048, "rotary_emb_base": 1e4}, None),
        ({"model_type": "qwen2", "max_position_embeddings": 32768, "rope_theta": 1e6}, None),
        (
            {
                **{"model_type": "phi3", "max_position_embeddings": 131072, "rope_theta": 1e4},
                **{"original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope"}},
            },
            4096,
        ),
    ],
)
def test_only_learned_and_switching_positions_end(target, fields, expected):
    (target.folder / "config.json").write_text(json.dumps(fields))
    assert files_of(target.folder).num_positions == expected


def test_a_draft_of_learned_positions_says_that_they_end(target, draft):
    change_config(
        draft, model_type="gpt2", architectures=["GPT2LMHeadModel"], max_position_embeddings=64
    )
    change_json(
        draft.folder / "config.json", lambda c: [c.pop(n) for n in list(c) if n.startswith("rope")]
    )
    (finding,) = context_findings(target, files_of(draft.folder))
    assert (finding.level, finding.target, finding.draft) == ("warning", "128", "64")
    assert "positions end after 64 tokens" in finding.reason


def test_pickled_weights_are_refused_and_not_opened(target, draft, tmp_path):
    changed = replace_weights(draft, "pytorch_model.bin", Mark(tmp_path / "ran"))
    finding = single(check(target, changed), "refused")
    assert (finding.field, finding.draft) == ("weights", "pytorch_model.bin")
    assert not (tmp_path / "ran").exists()


class Mark:
    """A pickle that creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_loading_the_planted_pickle_runs_its_code(tmp_path):
    import pickle

    pickle.loads(pickle.dumps(Mark(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def test_a_config_without_weights_can_be_planned_and_not_measured(target, draft):
    (draft.folder / "model.safetensors").unlink()
    finding = single(check(target, files_of(draft.folder)), "warning")
    assert (finding.field, finding.draft) == ("weights", "none")
    spec = ModelSpec(source=str(draft.folder), folder=draft.folder)
    drafters = (
        DrafterSpec(name="draft", method="draft_model", model=spec),
        DrafterSpec(name="ngram", method="ngram"),
    )
    own_target = Target(name="t", model=target.spec, drafters=())
    prepared = prepare(own_target, target, drafters, DeploymentSpec(device="cpu"))
    assert [c.drafter.name for c in prepared.fitting] == ["draft", "ngram"]
    assert [c.drafter.name for c in prepared.measurable] == ["ngram"]
    (target.folder / "model.safetensors").unlink()
    bare = prepare(own_target, files_of(target.folder), drafters, DeploymentSpec(device="cpu"))
    assert (len(bare.fitting), bare.measurable) == (2, ())
    assert bare.target_plan is not None


def test_code_that_transformers_does_not_have_is_refused_and_never_run(target, draft, tmp_path):
    (draft.folder / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    auto_map = {"AutoModelForCausalLM": "modeling_own.Own"}
    changed = change_config(draft, model_type="own", auto_map=auto_map)
    finding = single(check(target, changed), "refused")
    assert (finding.field, finding.draft) == ("code", "auto_map")
    assert "trust_remote_code: true " in finding.reason
    assert not (tmp_path / "ran").exists()


def test_code_of_a_known_architecture_is_reported_and_not_run(target, draft):
    changed = change_config(draft, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    finding = single(check(target, changed), "warning")
    assert "was not run" in finding.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic"),
        ({"layer_types": ["indexed_attention"]}, "layers of type indexed_attention"),
        ({"model_type": "mamba2"}, "keeps recurrent state"),
        ({"alibi": True}, "uses ALiBi"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_attention_that_cannot_be_rolled_back_is_refused(target, draft, fields, reason):
    finding = single(check(target, change_config(draft, **fields)), "refused")
    assert finding.field == "attention"
    assert reason in finding.reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"architectures": 3}', "null"])
def test_a_damaged_config_is_refused(target, draft, content):
    (draft.folder / "config.json").write_text(content)
    assert check(target, files_of(draft.folder)).level == "refused"


def test_a_missing_model_is_refused_with_what_to_do(target):
    spec = ModelSpec(source="nobody/has-this-draft")
    checked = check_drafter(target, DrafterSpec(name="far", method="draft_model", model=spec))
    assert re.search("hub's cache .*download", single(checked, "refused").text)


def test_a_target_that_is_a_head_is_refused(target):
    changed = change_config(target, architectures=["LlamaForCausalLMEagle3"])
    assert [f.field for f in check_target(changed)] == ["kind"]
    spec = ModelSpec(source=str(target.folder), folder=target.folder)
    message = "t cannot be a target: kind: does not write text by itself: .*`method: eagle3`"
    with pytest.raises(CompatibilityError, match=message):
        prepare(
            Target(name="t", model=spec, drafters=()), changed, (), DeploymentSpec(device="cpu")
        )


@pytest.mark.parametrize(("layers", "level"), [(0, "ok"), (6, "ok"), (7, "refused")])
def test_self_speculation_has_as_many_layers_as_the_target(target, layers, level):
    drafter = DrafterSpec(name="self", method="self_speculation", parameters={"num_layers": layers})
    (finding,) = check_drafter(target, drafter).findings
    assert (finding.level, finding.target) == (level, "6")
    assert finding.draft == str(layers or 1)
