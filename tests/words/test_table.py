"""A figure is declared once: JSON, DataFrames and tables follow."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from specbench.doc import Doc, JsonObject, keys_of, schema_of
from specbench.frames.column import frame_of
from specbench.records import Interval
from specbench.words.table import Table, column, labeled, legend_of, with_values


@dataclass
class Row:
    name: Annotated[str, Doc("which one")]
    seconds: Annotated[float | None, Doc("of a round", "s", label="round ms")]
    ratio: Annotated[Interval, Doc("new / old", "x", label="ratio [95%]")]


ROWS = [
    Row("a", 0.0125, Interval(estimate=1.5, low=1.4, high=1.6)),
    Row("b", None, Interval(estimate=2.0, low=None, high=None)),
]
KEYS = keys_of(Row)


def test_a_field_is_declared_once_for_json_schema_frames_and_tables() -> None:
    document = JsonObject("Row", "A row.", KEYS)
    assert document.of(ROWS[0])["seconds"] == 0.0125
    assert schema_of(document.type)["properties"]["seconds"]["unit"] == "s"
    frame = frame_of(KEYS, ROWS)
    assert list(frame.columns) == ["name", "seconds", "ratio", "ratio_low", "ratio_high"]
    assert str(frame["seconds"].dtype) == "Float64"
    assert frame["seconds"].isna().tolist() == [False, True]
    assert frame["ratio_high"].tolist()[:1] == [1.6]
    table = Table(columns=labeled(KEYS), records=ROWS)
    assert table.headers == ("round ms", "ratio [95%]")
    assert table.rows == (("12.5", "1.50x [1.40, 1.60]"), ("-", "2.00x"))
    assert legend_of([table]).entries == [("round ms", "of a round"), ("ratio [95%]", "new / old")]


@pytest.mark.parametrize(
    ("value", "unit", "form", "text"),
    [
        (None, "s", "", "-"),
        ("words", "", "", "words"),
        (1234, "", "", "1234"),
        (1234, "", "{:,}", "1,234"),
        (2**20, "bytes", "", "1.00 MiB"),
        (0.256, "fraction", "", "26%"),
        (0.256, "fraction", "{:effect}", "25.6%"),
        (7.0, "tokens/s", "", "7.00"),
        (3.14159, "tokens/round", "", "3.14"),
        (Interval(estimate=0.1, low=0.0, high=0.2), "nats/token", "", "+0.100 [+0.000, +0.200]"),
        (Interval(estimate=-0.25, low=-0.27, high=-0.23), "fraction", "", "-25.0% +- 2.0"),
    ],
)
def test_a_value_is_printed_by_its_form_or_else_by_its_unit(
    value: Any, unit: str, form: str, text: str
) -> None:
    table = Table(columns=[column("", lambda _: value, form, unit=unit)], records=[None])
    assert table.rows == ((text,),)


def test_a_column_without_a_value_can_be_left_out() -> None:
    assert with_values(KEYS.values(), ROWS) == [*KEYS.values()]
    assert with_values(KEYS.values(), ROWS[1:]) == [KEYS["name"], KEYS["ratio"]]
