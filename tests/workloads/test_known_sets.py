"""Published data sets are read in their own formats; each file here has the format of one."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from specbench.errors import WorkloadError
from specbench.inputs.workloads import MOST_REASONS, Workload, load_workload
from specbench.records import Message, Prompt, RequestSettings
from tests.workloads.test_formats import roles_and_texts

HUMAN_EVAL = {
    "task_id": "HumanEval/7",
    "prompt": "def twice(x):\n",
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "assert twice(2) == 4",
}
SPEED_BENCH = {
    "question_id": "8f3a",
    "category": "writing",
    "sub_category": "poem",
    "source": "ours",
    "src_id": "1",
    "difficulty": "easy",
    "multiturn": True,
}
BATCH = {
    "custom_id": "request-1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ],
        "max_tokens": 10,
        "tools": None,
    },
}


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def single(workload: Workload) -> Prompt:
    (prompt,) = workload.prompts
    return prompt


@pytest.mark.parametrize(
    ("name", "content", "id_", "turns"),
    [
        ("HumanEval.jsonl.gz", lines(HUMAN_EVAL), "HumanEval/7", ["def twice(x):\n"]),
        (
            "question.jsonl",  # MT-bench, and Spec-Bench with `reference`
            lines({"question_id": 81, "category": "writing", "turns": ["A", "B"], "reference": []}),
            "81",
            ["A", "B"],
        ),
        ("speed.jsonl", lines({**SPEED_BENCH, "turns": ["A", "B"]}), "8f3a", ["A", "B"]),
        (
            "speed.jsonl",
            lines({**SPEED_BENCH, "messages": [{"role": "user", "content": c} for c in "AB"]}),
            "8f3a",
            ["A", "B"],
        ),
        (
            "gsm8k.jsonl",
            lines({"question": "1 + 1?", "answer": "It is 2.\n#### 2"}),
            "1",
            ["1 + 1?"],
        ),
        (
            "custom.jsonl",
            lines({"prompt": "Capital of Chile?", "output_tokens": 8}),
            "1",
            ["Capital of Chile?"],
        ),
        ("texts.jsonl", lines({"text": "Once", "label": 3}), "1", ["Once"]),
        (
            "alpaca_data.json",
            json.dumps(
                [{"instruction": "Sum up.", "input": "A tale.", "output": "Tale."}], indent=4
            ),
            "1",
            ["Sum up.\n\nA tale."],
        ),
        (
            "alpaca.jsonl",  # another edition also has the output in `text`
            lines({"instruction": "Name a fish.", "input": "", "output": "Cod", "text": "... Cod"}),
            "1",
            ["Name a fish."],
        ),
        (
            "batch.jsonl",
            lines({"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "Once"}}),
            "c",
            ["Once"],
        ),
    ],
)
def test_published_prompt_sets_are_read_in_their_formats(
    tmp_path: Path, name: str, content: str, id_: str, turns: Sequence[str]
) -> None:
    prompt = single(load_workload(str(write(tmp_path, name, content))))
    assert prompt.id == id_
    assert roles_and_texts(prompt) == [[("user", turn)] for turn in turns]


def test_a_batch_file_is_read_as_chat_or_response_requests(tmp_path: Path) -> None:
    response = {
        "custom_id": "request-2",
        "url": "/v1/responses",
        "body": {
            "instructions": "Be kind.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        },
    }
    workload = load_workload(str(write(tmp_path, "batch.jsonl", lines(BATCH, response))))
    assert [prompt.id for prompt in workload.prompts] == ["request-1", "request-2"]
    assert roles_and_texts(workload.prompts[0]) == [[("system", "Be brief."), ("user", "Hi")]]
    assert roles_and_texts(workload.prompts[1]) == [[("system", "Be kind."), ("user", "Hello")]]


def test_settings_of_a_batch_file_are_applied_or_reported(tmp_path: Path) -> None:
    fields = {"temperature": 0.7, "stop": ["x"], "new_setting": 1, "model": "m", "stream": True}
    body = {**BATCH["body"], **fields, "chat_template_kwargs": {"enable_thinking": False}}
    plain = {"custom_id": "request-2", "body": {"prompt": "Once"}}
    file = write(tmp_path, "batch.jsonl", lines({**BATCH, "body": body}, plain))
    workload = load_workload(str(file))
    first, second = workload.prompts
    assert first.template_args == {"enable_thinking": False}
    assert set(first.not_applied) == {"max_tokens", "temperature", "new_setting"}
    assert first.settings == RequestSettings(stop=("x",))
    assert (second.template_args, second.not_applied) == ({}, ())
    assert second.settings == RequestSettings()
    (note,) = workload.notes
    for value in ("batch.jsonl", "1 of 2 rows", "max_tokens (1)", "new_setting (1)"):
        assert value in note


def test_request_fields_in_workload_rows_are_applied_or_reported(tmp_path: Path) -> None:
    """Columns of any other name are not settings."""
    message = {"role": "user", "content": "Hi"}
    row = {"messages": [message], "max_tokens": 5, "answer": "no setting", "topic": "greetings"}
    row |= {"chat_template_kwargs": {"think": True}}
    workload = load_workload(str(write(tmp_path, "rows.jsonl", lines(row, row | {"seed": 1}))))
    assert [p.template_args for p in workload.prompts] == [{"think": True}] * 2
    (note,) = workload.notes
    assert note.endswith("max_tokens (2), seed (1)")
    bare = load_workload(str(write(tmp_path, "bare.jsonl", lines({"messages": [message]}))))
    assert bare.notes == ()


def test_template_arguments_of_a_batch_file_are_an_object(tmp_path: Path) -> None:
    body = {"prompt": "Once", "chat_template_kwargs": "think"}
    file = write(tmp_path, "batch.jsonl", lines({"custom_id": "c", "body": body}))
    with pytest.raises(WorkloadError, match="chat_template_kwargs"):
        load_workload(str(file))


def test_unusable_sharegpt_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    def row(id_: str, *speech: tuple[str, str]) -> Mapping[str, object]:
        return {"id": id_, "conversations": [{"from": who, "value": text} for who, text in speech]}

    rows = [
        row("a_0", ("human", "A"), ("gpt", "B"), ("human", "C"), ("gpt", "D")),
        row("b_0"),
        row("c_0", ("human", "A"), ("bard", "B")),
        row("d_0", ("gpt", "only an answer")),
        row("e_0", ("human", "")),
        row("a_0", ("human", "the same id")),
        row("f_0"),
        row("g_0", ("human", "E")),
    ]
    workload = load_workload(str(write(tmp_path, "ShareGPT.json", json.dumps(rows))))
    assert [prompt.id for prompt in workload.prompts] == ["a_0", "g_0"]
    assert roles_and_texts(workload.prompts[0]) == [
        [("user", "A"), ("assistant", "B"), ("user", "C")]
    ]
    (note,) = workload.notes
    assert note.startswith("ShareGPT.json: 6 of 8 rows skipped: ")
    for reason in ("an empty list (2)", "'bard' of a message (1)", "a repeated id (1)"):
        assert reason in note


def test_consecutive_user_messages_form_one_turn(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": c} for c in "AB"]
    prompt = single(
        load_workload(str(write(tmp_path, "chat.jsonl", lines({"messages": messages}))))
    )
    assert roles_and_texts(prompt) == [[("user", "A"), ("user", "B")]]


def test_a_prepared_set_keeps_dialogues_and_the_system_message(tmp_path: Path) -> None:
    system = {"role": "system", "content": "S"}
    a, b = ({"role": "user", "content": c} for c in "AB")
    answer = {"role": "assistant", "content": "X"}
    led, dialogue = load_workload(
        str(
            write(
                tmp_path,
                "speed.jsonl",
                lines(
                    {"question_id": "1", "messages": [system, a, b]},
                    {"question_id": "2", "messages": [a, answer, b]},
                ),
            )
        )
    ).prompts
    assert roles_and_texts(led) == [[("system", "S"), ("user", "A")], [("user", "B")]]
    assert roles_and_texts(dialogue) == [[("user", "A"), ("assistant", "X"), ("user", "B")]]


def test_message_content_in_parts_is_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    row = {"messages": [{"role": "user", "content": parts}]}
    prompt = single(load_workload(str(write(tmp_path, "chat.jsonl", lines(row)))))
    assert prompt.turns == ((Message(role="user", content="One\nTwo"),),)


@pytest.mark.parametrize(
    ("field", "row", "turns"),
    [
        ("story", {"story": "A", "prompt": "not this"}, [[("user", "A")]]),
        ("meta.text", {"meta": {"text": "A"}}, [[("user", "A")]]),
        ("a.b", {"a.b": "A", "a": {"b": "not this"}}, [[("user", "A")]]),
        ("asked", {"asked": ["A", "B"], "id": [1]}, [[("user", "A")], [("user", "B")]]),
        ("chat", {"chat": [{"role": "user", "content": "A"}]}, [[("user", "A")]]),
    ],
)
def test_a_nested_field_can_be_named_as_the_prompt(
    tmp_path: Path, field: str, row: object, turns: object
) -> None:
    path = str(write(tmp_path, "own.jsonl", lines(row)))
    assert roles_and_texts(single(load_workload(path, field=field))) == turns


def test_a_missing_field_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    path = str(write(tmp_path, "own.jsonl", lines({"story": "A", "meta": {"text": "B"}})))
    with pytest.raises(WorkloadError, match=r"--prompt-field tale.*story, meta\.text"):
        load_workload(path, field="tale")


def test_another_prompt_field_gives_another_workload_hash(tmp_path: Path) -> None:
    path = str(write(tmp_path, "own.jsonl", lines({"prompt": "A", "story": "B"})))
    hashes = {load_workload(path, field=field).sha256 for field in (None, "prompt", "story")}
    assert len(hashes) == 3


def test_only_the_most_frequent_reasons_for_skipped_rows_are_named(tmp_path: Path) -> None:
    def row(id_: str, who: str) -> Mapping[str, object]:
        return {"id": id_, "conversations": [{"from": who, "value": "A"}]}

    speakers = [f"speaker{i}" for i in range(MOST_REASONS + 2)]
    rows = [row("a", "human"), *(row(f"b{i}", who) for i, who in enumerate(speakers))]
    rows.append(row("c", speakers[0]))
    (note,) = load_workload(str(write(tmp_path, "ShareGPT.json", json.dumps(rows)))).notes
    assert f"{MOST_REASONS + 3} of {MOST_REASONS + 4} rows skipped" in note
    assert f"'{speakers[0]}' of a message (2)" in note
    assert note.count("of a message (1)") == MOST_REASONS - 1
    assert note.endswith("other reasons (2)")
