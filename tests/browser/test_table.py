"""How tables sort and filter, in a small separate page."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specbench.report import html
from tests.browser.chromium import Tab

pytestmark = pytest.mark.browser
# Many rows: words with numbers in them, counts and sizes.
ROWS = [
    ("run 10", "1,024", "2 GiB"),
    ("Run 9", "900", "300 MiB"),
    ("run 1", "-", "70 KiB"),
    *((f"other {i}", str(i), "1 KiB") for i in range(5)),
]
HEADS = {"name": " class=words", "count": "", "size": ""}
SHOWN = "[...table.tBodies[0].rows].filter((row) => !row.hidden)"


def opened(tab: Tab, folder: Path, rows: Sequence[Sequence[str]]) -> Tab:
    """A page with only the table."""
    head = "".join(f"<th{kind}>{name}</th>" for name, kind in HEADS.items())
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) for row in rows)
    written = f"<table class=data><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    script = Path(html.__file__).with_name("table.js").read_text(encoding="utf-8")
    page = folder / "table.html"
    page.write_text(
        "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<style>.wide { overflow-x: auto } th { min-width: 9rem }</style>"
        f"<div class=wide>{written}</div><script>{script}</script>"
    )
    tab.resize(1440)
    tab.open(page)
    tab.value("window.table = document.querySelector('table')")
    return tab


@pytest.fixture
def table(chromium: Tab, tmp_path: Path) -> Tab:
    return opened(chromium, tmp_path, ROWS)


def pressed(table: Tab, column: str) -> list[str]:
    """The column's first three texts after a click on its head."""
    i = [*HEADS].index(column)
    table.value(f"table.tHead.rows[0].cells[{i}].querySelector('button').click()")
    return list(table.value(f"{SHOWN}.slice(0, 3).map((row) => row.cells[{i}].textContent)"))


def typed(table: Tab, text: str) -> list[str]:
    """The names of the rows that remain."""
    table.value(
        "(() => { const field = document.querySelector('.filter input');"
        f" field.value = '{text}'; field.dispatchEvent(new Event('input')) }})()"
    )
    return list(table.value(f"{SHOWN}.map((row) => row.cells[0].textContent)"))


def test_numbers_with_units_are_sorted_by_value(table: Tab) -> None:
    assert pressed(table, "count") == ["1,024", "900", "4"]
    assert pressed(table, "size") == ["2 GiB", "300 MiB", "70 KiB"]
    assert pressed(table, "name") == ["other 0", "other 1", "other 2"]
    assert pressed(table, "name") == ["run 10", "Run 9", "run 1"]


def test_only_the_last_sorted_column_has_aria_sort(table: Tab) -> None:
    sorts = "[...table.tHead.rows[0].cells].map((head) => head.getAttribute('aria-sort'))"
    pressed(table, "size")
    pressed(table, "name")
    assert table.value(sorts) == ["ascending", None, None]


def test_the_table_filter_ignores_case_and_counts_rows(table: Tab) -> None:
    count = "document.querySelector('.filter output').value"
    assert typed(table, "RUN 9") == ["Run 9"]
    assert table.value(count) == "1 of 8 rows"
    assert len(typed(table, " ")) == 8
    assert table.value(count) == ""


def test_a_table_of_few_rows_has_no_filter(chromium: Tab, tmp_path: Path) -> None:
    for num_rows in (8, 7):
        opened(chromium, tmp_path, ROWS[:num_rows])
        num_filters = chromium.value("document.querySelectorAll('.filter').length")
        assert num_filters == (num_rows == 8)


def test_a_table_in_a_narrow_window_is_marked_as_scrollable(table: Tab) -> None:
    is_cut = "document.querySelector('.wide').matches('.cut')"
    assert not table.value(is_cut)
    table.resize(390)
    table.value("new Promise((done) => setTimeout(done, 200))")
    assert table.value(is_cut)
