"""Each format of the field becomes the prompts it means."""

import gzip
import json
from pathlib import Path

import pytest

from specbench.inputs.workloads import load_workload
from specbench.records import Message, Prompt


def read(folder: Path, *entries: object) -> tuple[Prompt, ...]:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return load_workload(str(path)).prompts


def roles_and_texts(prompt: Prompt) -> list[list[tuple[str, str]]]:
    return [[(message.role, message.content) for message in turn] for turn in prompt.turns]


def test_a_prompt_is_one_turn_of_one_user_message(tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, {"prompt": "Add one and one."})
    assert prompt == Prompt(id="1", turns=((Message(role="user", content="Add one and one."),),))


def test_the_system_prompt_precedes_the_first_of_the_turns(tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, {"turns": ["Hello", "And now?"], "system": "Be brief."})
    assert roles_and_texts(prompt) == [
        [("system", "Be brief."), ("user", "Hello")],
        [("user", "And now?")],
    ]


def test_messages_are_one_turn_and_the_answer_at_their_end_is_dropped(tmp_path: Path) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "And now?"},
    ]
    (prompt,) = read(tmp_path, {"messages": [*history, {"role": "assistant", "content": "Bye."}]})
    assert roles_and_texts(prompt) == [[(m["role"], m["content"]) for m in history]]


def test_sharegpt_names_of_speakers_are_understood(tmp_path: Path) -> None:
    messages = [
        ("system", "S"),
        ("human", "A"),
        ("gpt", "B"),
        ("user", "C"),
        ("gpt", "D"),
        ("gpt", "E"),
    ]
    conversation = [{"from": speaker, "value": text} for speaker, text in messages]
    (prompt,) = read(tmp_path, {"id": "x_0", "conversations": conversation})
    expected = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")]
    assert roles_and_texts(prompt) == [expected]


def test_a_system_prompt_is_put_before_messages_only_once(tmp_path: Path) -> None:
    user, system = {"role": "user", "content": "A"}, {"role": "system", "content": "inner"}
    without, with_own = read(
        tmp_path,
        {"system": "outer", "messages": [user]},
        {"system": "outer", "messages": [system, user]},
    )
    assert roles_and_texts(without) == [[("system", "outer"), ("user", "A")]]
    assert roles_and_texts(with_own) == [[("system", "inner"), ("user", "A")]]


def test_tool_calls_and_their_results_stay_in_the_history(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    tool = {"type": "function", "function": {"name": "weather"}}
    (prompt,) = read(
        tmp_path,
        {
            "messages": [
                {"role": "user", "content": "How is Oslo?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "name": "weather", "content": '{"degrees": 3}'},
            ],
            "tools": [tool],
            "template_args": {"enable_thinking": False},
        },
    )
    _, tool_call, answered = prompt.turns[0]
    assert tool_call == Message(role="assistant", content="", extra={"tool_calls": [call]})
    assert answered.extra == {"name": "weather"}
    assert prompt.tools == (tool,)
    assert prompt.template_args == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("prediction", "predictions"),
    [("x", ("x", None)), (["x", "y"], ("x", "y")), ([None, "y"], (None, "y")), (None, ())],
)
def test_a_prediction_is_for_the_first_turn_or_per_turn(
    tmp_path: Path, prediction: object, predictions: tuple[str | None, ...]
) -> None:
    (prompt,) = read(tmp_path, {"turns": ["A", "B"], "prediction": prediction})
    assert prompt.predictions == predictions


def test_a_replayed_history_has_a_turn_for_every_recorded_answer(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "assistant", "content": "greeting"},
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "B1"},
        {"role": "assistant", "content": "B2"},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": "the target's own"},
    ]
    whole, replayed = read(tmp_path, {"messages": messages}, {"messages": messages, "replay": True})
    assert len(whole.turns) == 1
    assert roles_and_texts(replayed) == [
        [("system", "S"), ("assistant", "greeting"), ("user", "A")],
        [("assistant", ""), ("tool", "3")],
        [("assistant", "B1"), ("assistant", "B2"), ("user", "C")],
    ]
    assert replayed.turns[1][0].extra == {"tool_calls": [call]}
    outputs = [Message(role="assistant", content="own")] * 2
    assert replayed.history(2, outputs) == whole.turns[0]
    assert replayed.history(1, outputs[:1]) == whole.turns[0][:5]
    (prompt,) = read(tmp_path, {"turns": ["A"]})
    assert prompt.history(0, ()) == prompt.turns[0]


def test_the_history_of_a_turn_contains_the_models_own_response(tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, {"turns": ["A", "B"]})
    output = Message(role="assistant", content="own")
    assert prompt.history(1, [output]) == (*prompt.turns[0], output, *prompt.turns[1])


def test_ids_come_from_the_file_else_from_the_line(tmp_path: Path) -> None:
    prompts = read(
        tmp_path, {"id": "a", "prompt": "A"}, {"question_id": 81, "turns": ["B"]}, {"prompt": "C"}
    )
    assert [prompt.id for prompt in prompts] == ["a", "81", "3"]


def test_unknown_and_null_fields_are_ignored(tmp_path: Path) -> None:
    (prompt,) = read(
        tmp_path, {"prompt": "A", "messages": None, "tools": None, "reference": ["x"], "score": 1.5}
    )
    assert roles_and_texts(prompt) == [[("user", "A")]]


def test_messages_count_before_the_prompt_they_began_with(tmp_path: Path) -> None:
    (prompt,) = read(
        tmp_path, {"prompt": "A", "messages": [{"role": "user", "content": "A, in full"}]}
    )
    assert roles_and_texts(prompt) == [[("user", "A, in full")]]


def test_a_gzipped_workload_is_recognized_by_content(tmp_path: Path) -> None:
    plain = read(tmp_path, {"prompt": "A"}, {"prompt": "B"})
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress((tmp_path / "prompts.jsonl").read_bytes()))
    assert load_workload(str(packed)).prompts == plain


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_byte_order_marks_blank_lines_and_rare_line_ends_are_read(
    tmp_path: Path, line_end: bytes
) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [b'\xef\xbb\xbf{"prompt": "A"}', b"", '{"prompt": "one\u2028line"}'.encode()]
    path.write_bytes(line_end.join(rows))
    prompts = load_workload(str(path)).prompts
    assert [prompt.id for prompt in prompts] == ["1", "3"]
    assert prompts[1].turns[0][0].content == "one\u2028line"
