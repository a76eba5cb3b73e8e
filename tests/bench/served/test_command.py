import pytest

from specbench.bench.served.host import command_line
from specbench.errors import UsageError

DEFAULT = ["python", "-m", "engine"]
ARGS = ["--model", "my model", "--port", "8123"]


def line(template: str | None) -> list[str]:
    return command_line(template, DEFAULT, ARGS, port=8123)


def test_without_a_template_the_flags_follow_the_engines_own_command():
    assert line(None) == [*DEFAULT, *ARGS]


def test_flags_replace_the_args_placeholder_or_follow_the_template():
    assert line("run '{args}' --last") == ["run", *ARGS, "--last"]
    assert line("run 'two words'") == ["run", "two words", *ARGS]


def test_the_port_is_filled_in_anywhere_and_json_is_unchanged():
    assert line("""run -p{port}:{port} '{"k": 3}' {args}""") == [
        "run",
        "-p8123:8123",
        '{"k": 3}',
        *ARGS,
    ]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "run {model} {args}",
            r"--engine-command run \{model\} \{args\}: unknown placeholder \{model\} .*\{port\}",
        ),
        ("sh -c 'run {args}'", r"unknown placeholder \{args\} in 'run \{args\}'"),
        ("run 'half", "No closing quotation"),
        (" ", "--engine-command is empty"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(template, said):
    with pytest.raises(UsageError, match=said):
        line(template)
