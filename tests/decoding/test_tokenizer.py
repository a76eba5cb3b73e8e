import json
import re
import signal
from pathlib import Path

import pytest

from specbench.errors import CompatibilityError, ModelError, WorkloadError
from specbench.files import tokenizer as tokenizer_files
from specbench.models.tokenizer import ChatTokenizer, require_same_vocabulary
from specbench.records import Message
from tests.tiny_models import rename_end_of_turn, swap_tokens
from tests.tiny_pair import make_tokenizer

PLAIN = make_tokenizer()
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function.name') | join(',') }};{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools, please') }}{% endif %}"
    "{{ m.role }}={{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.name }}>{% endfor %};"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'thinking' if think else 'answer' }}={% endif %}"
)


def load(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(str(folder), revision=None, trust_remote_code=False)


def write(folder: Path, *, template: str | None = TEMPLATE) -> ChatTokenizer:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return load(folder)


def rewrite(folder: Path, change) -> ChatTokenizer:
    """The tokenizer after `change` was made to the contents of tokenizer.json."""
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return load(folder)


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return write(tmp_path)


def turn(role: str, content: str, **extra) -> Message:
    return Message(role=role, content=content, extra=extra)


def test_prompt_ids_come_from_the_templated_conversation(tokenizer):
    messages = [turn("system", "S"), turn("user", "A"), turn("assistant", "B"), turn("user", "C")]
    ids = tokenizer.prompt_ids(messages)
    assert PLAIN.decode(ids) == "system=S;user=A;assistant=B;user=C;answer="


@pytest.mark.parametrize(
    ("template", "printed", "clock"),
    [
        ("{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}", "26 Jul 2024 00:00:00.000000", "2024-07-26"),
        ("{% set d = strftime_now('%Y-%m-%d').split('-') %}{{ d[0] }}", "2024", "2024-07-26"),
        (
            "{% if strftime_now is defined %}{{ strftime_now('%A') }}{% endif %}",
            "Friday",
            "2024-07-26",
        ),
        ("{{ date_string or strftime_now('%d') }}", "26", "2024-07-26"),
        ("A{{ date_string }}", "A", ""),
    ],
)
def test_a_template_sees_the_same_time_on_every_day(tmp_path, template, printed, clock):
    tokenizer = write(tmp_path, template=template)
    assert PLAIN.decode(tokenizer.prompt_ids([turn("user", "A")])) == printed
    assert tokenizer.template_clock == clock


def test_the_hash_of_a_chat_template_is_empty_without_one(tmp_path):
    hashes = [
        write(tmp_path / str(i), template=template).template_sha256
        for i, template in enumerate((TEMPLATE, TEMPLATE + " ", None))
    ]
    assert len({*hashes}) == 3
    assert hashes[2] == ""


def test_tools_arguments_and_further_fields_reach_the_template(tokenizer):
    messages = [turn("user", "A"), turn("assistant", "", tool_calls=[{"name": "now"}])]
    ids = tokenizer.prompt_ids(messages, TOOLS, {"think": True})
    assert PLAIN.decode(ids) == "now;user=A;assistant=<now>;thinking="


def test_a_chat_template_error_is_a_workload_error_with_its_reason(tokenizer):
    with pytest.raises(WorkloadError, match="no tools, please"):
        tokenizer.prompt_ids([turn("user", "A"), turn("tool", "12:00")])


def test_a_template_without_any_text_is_a_workload_error(tmp_path):
    tokenizer = write(tmp_path, template="")
    with pytest.raises(WorkloadError, match="renders no token"):
        tokenizer.prompt_ids([turn("user", "A")])


@pytest.mark.parametrize("arguments", [{"return_dict": False}, {"tokenize": False}])
def test_template_arguments_that_the_program_needs_itself_are_refused(tokenizer, arguments):
    with pytest.raises(WorkloadError, match="refuses the conversation"):
        tokenizer.prompt_ids([turn("user", "A")], template_args=arguments)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}a{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{{ messages.append(messages) }}{{ messages | tojson }}",
    ],
)
def test_a_broken_or_hostile_template_is_a_workload_error_and_runs_nothing(
    template, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tokenizer = write(tmp_path / "model", template=template)
    with pytest.raises(WorkloadError, match="refuses the conversation"):
        tokenizer.prompt_ids([turn("user", "A")])
    assert not (tmp_path / "ran").exists()


ENDLESS = "{% for i in range(9 ** 5) %}{% for j in range(9 ** 5) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set n = namespace(s='a' * 2 ** 20) %}"
    "{% for i in range(99) %}{% set n.s = (n.s ~ n.s)[: 2 ** 27] %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "message"),
    [(ENDLESS, "0.3 s of processor time"), (DOUBLED, "0.0625 GiB of memory")],
)
def test_an_endless_template_is_a_clear_error(template, message, tmp_path, monkeypatch):
    seconds = 0.3 if template == ENDLESS else 60.0
    monkeypatch.setattr("specbench.models.tokenizer.MOST_S", seconds)
    monkeypatch.setattr("specbench.models.tokenizer.MOST_GROWTH", 2**26)
    tokenizer = write(tmp_path, template=template)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(WorkloadError, match=f"{message}"):
        tokenizer.prompt_ids([turn("user", "A")])
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is before or before == signal.SIG_DFL
    PLAIN.decode(write(tmp_path, template="a").prompt_ids([turn("user", "A")]))


def test_without_a_template_the_text_itself_is_the_prompt(tmp_path):
    tokenizer = write(tmp_path, template=None)
    ids = tokenizer.prompt_ids([turn("system", "Be kind."), turn("user", "Hello")])
    assert PLAIN.decode(ids) == "Be kind.\n\nHello"


def test_tokens_of_a_text_have_no_special_tokens_added(tokenizer):
    assert tokenizer.ids("A b.") == tuple(PLAIN("A b.", add_special_tokens=False)["input_ids"])
    assert tokenizer.text(tokenizer.ids("A b.")) == "A b."


def test_decoded_text_omits_special_tokens(tokenizer):
    ids = PLAIN("Hello<|im_end|>")["input_ids"]
    assert tokenizer.text(ids) == "Hello"


def test_the_hash_follows_the_template_and_the_vocabulary(tmp_path):
    hashes = {write(tmp_path / "a").sha256, write(tmp_path / "b", template="{{ 1 }}").sha256}
    assert write(tmp_path / "c").sha256 in hashes

    hashes.add(rewrite(tmp_path / "c", swap_tokens).sha256)
    assert len(hashes) == 3


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"{}", b'{"model": 3}'], ids=lambda value: repr(value)
)
def test_a_broken_or_missing_tokenizer_is_a_model_error(tmp_path, content):
    write(tmp_path)
    if content is None:
        for file in tmp_path.iterdir():
            file.unlink()
    else:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match="tokenizer cannot"):
        load(tmp_path)


def test_a_file_too_large_for_a_tokenizer_is_not_read(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(tokenizer_files, "LARGEST_JSON", 10)
    with pytest.raises(ModelError, match=r"tokenizer\.json.* 10 bytes"):
        tokenizer_files.read_tokenizer(tmp_path)


def test_a_missing_tokenizer_and_a_wrong_config_give_different_errors(tmp_path):
    write(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match=r"tokenizer.json"):
        load(tmp_path)
    config.write_text('{"model_type": "llama", "rms_norm_eps": "x"}')
    with pytest.raises(ModelError, match="Field 'rms_norm_eps' expected float") as refused:
        load(tmp_path)
    assert "tokenizer" not in str(refused.value).replace(str(tmp_path), "")


def test_equal_vocabularies_fit_despite_different_templates(tmp_path):
    first, other = write(tmp_path / "one"), write(tmp_path / "other", template=None)
    assert require_same_vocabulary(first, other) == ((), (), ())


def test_differing_token_ids_are_refused_with_the_first_three(tmp_path):
    def shift(content):
        vocab = content["model"]["vocab"]
        a, b, c, d = (vocab[letter] for letter in "ABCD")
        vocab.update({"A": b, "B": c, "C": d, "D": a})

    target = write(tmp_path / "target")
    write(tmp_path / "draft")
    draft = rewrite(tmp_path / "draft", shift)
    a = target.ids_by_token["A"]
    with pytest.raises(CompatibilityError) as refused:
        require_same_vocabulary(target, draft)
    text = str(refused.value)
    assert "4 token ids " in text
    assert re.search(rf"\({a}: 'A' .*'D', {a + 1}: 'B' .*'A', {a + 2}: 'C' .*'B'\)", text)
    assert "(ngram)" in text


def test_a_token_that_the_draft_lacks_fits_and_is_named(tmp_path):
    target = write(tmp_path / "target")
    write(tmp_path / "draft")
    draft = rewrite(tmp_path / "draft", lambda content: content["model"]["vocab"].pop("A"))
    assert require_same_vocabulary(target, draft).unknown == ("A",)
    assert require_same_vocabulary(draft, target) == ((), (), ())


def test_special_tokens_with_other_names_fit_and_are_reported(tmp_path):
    target = write(tmp_path / "target")
    write(tmp_path / "draft")
    config = json.loads((tmp_path / "draft" / "tokenizer_config.json").read_text())
    text = json.dumps(config).replace("<|im_end|>", "<|turn|>")
    (tmp_path / "draft" / "tokenizer_config.json").write_text(text)
    draft = rewrite(tmp_path / "draft", rename_end_of_turn)
    ((i, *names),) = require_same_vocabulary(target, draft).renamed
    assert (i, names[0]) == (target.ids_by_token["<|im_end|>"], "<|im_end|>")
