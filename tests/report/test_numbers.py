"""Numbers on the screen, worked by hand."""

import pytest

from specbench.records import ranges
from specbench.words.numbers import listed, measured, plural, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-8.67e-16, "0"),
        (0.0000123, "0.0000123"),
        (0.012345, "0.0123"),
        (1.2345, "1.23"),
        (-12.345, "-12.3"),
        (123.45, "123"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_are_rounded_to_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00543, "s", "5.43 ms"),
        (0.00543, "s/token", "5.43 ms/token"),
        (0.81, "fraction", "81.0%"),
        (1.9, "x", "1.90x"),
        (3.5, "tokens/round", "3.50 tokens/round"),
        (1234, "tokens", "1,234 tokens"),
        (512, "bytes", "512 bytes"),
        (1536, "bytes/token", "1.50 KiB/token"),
        (13 * 2**20, "bytes", "13.0 MiB"),
        (80 * 2**30, "bytes", "80.0 GiB"),
    ],
)
def test_a_value_has_a_unit_fit_for_the_screen(value: float, unit: str, text: str) -> None:
    assert measured(value, unit) == text


def test_names_are_joined_with_commas_and_a_final_and() -> None:
    assert listed(["chat"]) == "chat"
    assert listed(["chat", "code"]) == "chat and code"
    assert listed(["chat", "code", "qa"]) == "chat, code and qa"


def test_neighboring_numbers_are_joined_into_ranges() -> None:
    assert ranges([8, 1, 3, 4, 5]) == "1, 3..5, 8"
    assert ranges([0]) == "0"


def test_a_count_of_1_takes_the_singular() -> None:
    assert plural(1, "prompt") == "1 prompt"
    assert plural(1200, "prompt") == "1,200 prompts"
