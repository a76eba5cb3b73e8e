"""The report in a real Chromium: how it looks, what it logs, and whether it is accessible.

`make test-browser` runs it; look at its screenshots in build/screenshots.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.report.document import Document, build_document
from specbench.report.html import to_html
from tests.browser.axe import HOW, SCRIPT
from tests.browser.chromium import Tab
from tests.report.served_runs import context_run, served_run
from tests.report.stored_runs import BROKEN, SMALL, renamed, stored_run, with_failure
from tests.report.test_steps import with_text
from tests.served_sessions import Sweep, served_sweep

pytestmark = pytest.mark.browser
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WIDTHS, SCHEMES = (1440, 820, 390), ("light", "dark")
LOOKS = [(width, scheme, "screen") for width in WIDTHS for scheme in SCHEMES]
LOOKS += [(820, "light", "print"), (820, "dark", "print")]  # paper is white for all
LEGIBLE_PX = 9.0
PAPER_PX = 718  # A4 within its margins
GRAVE = ("serious", "critical")
CUT = (
    "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth > box.clientWidth)"
    ".map((box) => box.ariaLabel)"
)


def broken() -> Document:
    """A run interrupted before its winner was measured again, with two failed drafters."""
    stored = stored_run(replace(SMALL, drafters=("draft",), is_complete=False))
    other = replace(BROKEN, pairing="demo/other", workload="code", stage="decode", reason="x " * 90)
    return build_document(with_failure(with_failure(stored, BROKEN), other))


def long_names() -> Document:
    """Names as people have them: nothing may make the page wider than its screen."""
    stored = stored_run(replace(SMALL, drafters=("draft",)))
    for old in ("demo", "draft", "creative"):
        stored = renamed(stored, old, f"a-rather-long-name-for-{old}-with-no-space-in-it-at-all")
    return build_document(stored)


OTHERS = {
    "broken": broken,
    "long-names": long_names,
    "server": lambda: build_document(served_sweep(Sweep(lost=((4, 3, 1),)))),
    "contexts": lambda: build_document(context_run()),
    "baseline-alone": lambda: build_document(stored_run(replace(SMALL, ks=(0,)))),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: one with a stored text, one on a throttled GPU, one with concurrent requests."""
    hot = replace(SMALL, temperatures=(0.0, 1.0), device="gpu", throttled_k=4)
    texts = [" The", " quick", " brown", " fox", " jumps", ",\n", " naïve", " 猫"]
    documents = [
        with_text(SMALL, texts),
        build_document(stored_run(hot)),
        build_document(served_run()),
    ]
    place = tmp_path_factory.mktemp("page") / "report.html"
    place.write_text(to_html(documents), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def page_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with every kind of part; axe checks each pair of colors, which takes long."""
    hot = replace(SMALL, workloads=("code",), device="gpu", throttled_k=4)
    place = tmp_path_factory.mktemp("page") / "one.html"
    place.write_text(to_html([with_text(hot, [" word", " naïve\n"])]), encoding="utf-8")
    return place


@pytest.mark.parametrize(("width", "scheme", "medium"), LOOKS)
def test_the_page_logs_nothing_contacts_no_host_and_fits_the_screen(
    chromium: Tab, page: Path, width: int, scheme: str, medium: str
) -> None:
    chromium.resize(width, scheme=scheme, medium=medium)
    chromium.open(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    chromium.screenshot(SCREENSHOTS / f"{width}-{scheme}-{medium}.png")
    chromium.unfold()
    assert chromium.logged == []
    assert chromium.requested == [page.as_uri()]
    if medium == "screen":
        assert chromium.value("document.documentElement.scrollWidth") <= width
        assert (chromium.value(CUT) == []) is (width == 1440)  # narrower screens scroll the box
    paper = chromium.value("getComputedStyle(document.body).backgroundColor")
    is_dark = scheme == "dark" and medium == "screen"
    assert paper == ("rgb(22, 24, 28)" if is_dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (390, "light")])
def test_reports_of_every_kind_of_run_fit_the_screen(
    chromium: Tab, tmp_path: Path, kind: str, width: int, scheme: str
) -> None:
    place = tmp_path / "report.html"
    place.write_text(to_html([OTHERS[kind]()]), encoding="utf-8")
    chromium.resize(width, scheme=scheme)
    chromium.open(place)
    chromium.unfold()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    chromium.screenshot(SCREENSHOTS / f"{kind}-{width}-{scheme}.png")
    assert chromium.logged == []
    assert chromium.requested == [place.as_uri()]
    assert chromium.value("document.documentElement.scrollWidth") <= width
    if width == 1440:
        assert chromium.value(CUT) == []


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "light"), (390, "dark")])
def test_axe_finds_no_serious_accessibility_violation(
    chromium: Tab, page_of_one: Path, width: int, scheme: str
) -> None:
    assert SCRIPT.exists(), HOW
    chromium.resize(width, scheme=scheme)
    chromium.open(page_of_one)
    chromium.unfold()
    chromium.value(SCRIPT.read_text(encoding="utf-8") + "; 0")
    result = chromium.value("axe.run(document, {resultTypes: ['violations', 'passes']})")
    assert len(result["passes"]) > 15  # it has checked something
    lines = [
        f"{v['impact']} {v['id']}: {v['help']}: {[n['html'] for n in v['nodes']][:3]}"
        for v in result["violations"]
    ]
    print(*lines, sep="\n")
    assert [text for text in lines if text.startswith(GRAVE)] == []


def test_axe_finds_a_planted_low_contrast_heading(chromium: Tab, page_of_one: Path) -> None:
    chromium.resize(1440)
    chromium.open(page_of_one)
    chromium.unfold()
    chromium.value("document.querySelector('h1').style.color = '#ccc'")
    chromium.value(SCRIPT.read_text(encoding="utf-8") + "; 0")
    result = chromium.value("axe.run(document)")
    assert "color-contrast" in [v["id"] for v in result["violations"]]


def test_charts_on_a_phone_are_one_per_row_and_legible(chromium: Tab, page: Path) -> None:
    chromium.resize(390)
    chromium.open(page)
    chromium.unfold()
    tops = chromium.value(
        "[...document.querySelectorAll('.panels')].map((one) => [...one.children]"
        ".map((panel) => Math.round(panel.getBoundingClientRect().top)))"
    )
    assert all(len(set(row)) == len(row) for row in tops)
    assert max(map(len, tops)) > 1
    heights = chromium.value(
        "[...document.querySelectorAll('.panel svg')].map((svg) => Math.min("
        "...[...svg.querySelectorAll('text')].map((text) => parseFloat("
        "getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width"
        " / svg.viewBox.baseVal.width)))"
    )
    assert len(heights) > 20
    assert min(heights) >= LEGIBLE_PX


def test_scrollable_boxes_are_marked_and_reachable_by_keyboard(chromium: Tab, page: Path) -> None:
    chromium.resize(390)
    chromium.open(page)
    chromium.unfold()
    chromium.value("window.boxes = [...document.querySelectorAll('.wide, .panel')]")
    hidden = "boxes.filter((box) => box.scrollWidth > box.clientWidth + box.scrollLeft + 1)"
    assert 0 < chromium.value(f"{hidden}.length") < chromium.value("boxes.length")
    assert chromium.value(f"{hidden}.every((one) => one.tabIndex === 0)")
    cut = "boxes.filter((box) => box.matches('.cut'))"
    assert chromium.value(f"{cut}.length") == chromium.value(f"{hidden}.length")
    chromium.value(f"window.first = {cut}[0]; first.scrollLeft = 9999")
    chromium.value("new Promise((done) => setTimeout(done, 200))")
    assert not chromium.value("first.matches('.cut')")


def test_hovering_over_a_point_shows_the_prompt(chromium: Tab, page: Path) -> None:
    chromium.resize(1440)
    chromium.open(page)
    chromium.unfold()
    class_name = chromium.value(
        "(() => { const dot = [...document.querySelectorAll('use')].find((one) =>"
        " one.textContent.startsWith('code-')); dot.scrollIntoView({block: 'center'});"
        " const box = dot.getBoundingClientRect();"
        " const x = box.x + box.width / 2, y = box.y + box.height / 2;"
        " return document.elementFromPoint(x, y).closest('use').textContent })()"
    )
    assert class_name.startswith("code-")
    assert class_name.endswith("x")


def test_tables_can_be_sorted_and_restored_by_keyboard(chromium: Tab, page: Path) -> None:
    chromium.resize(1440)
    chromium.open(page)
    chromium.unfold()
    chromium.value(
        "window.table = [...document.querySelectorAll('table.data')].find((one) =>"
        " one.parentElement.ariaLabel === 'Results: code');"
        "window.column = [...table.tHead.rows[0].cells].findIndex((one) =>"
        " one.textContent.startsWith('speedup'));"
        "table.tHead.rows[0].cells[column].querySelector('button').focus()"
    )
    shown = "[...table.tBodies[0].rows].map((row) => row.cells[column].textContent)"
    written = chromium.value(shown)
    assert written[0] == "-"
    orders = []
    for _ in range(3):
        chromium.press("Enter")
        orders.append(chromium.value(shown))
    down, up, back = orders
    known = sorted((text for text in written if text != "-"), key=lambda t: float(t.split("x")[0]))
    assert down == [*reversed(known), "-"]
    assert up == [*known, "-"]
    assert back == written
    assert chromium.logged == []


def test_a_filter_leaves_the_rows_with_all_of_its_words(chromium: Tab, page: Path) -> None:
    chromium.resize(1440)
    chromium.open(page)
    chromium.unfold()
    chromium.value(
        "window.field = document.querySelector('.filter input');"
        "window.rows = [...document.querySelector('table.data').tBodies[0].rows];"
        "window.type = (text) => { field.value = text; field.dispatchEvent(new Event('input')) }"
    )
    shown = "rows.filter((row) => !row.hidden).map((row) => row.textContent)"
    every = len(chromium.value(shown))
    chromium.value("type('POOR temperature creative')")
    rows = chromium.value(shown)
    assert 0 < len(rows) < every
    assert all("poor" in text and "creative" in text for text in rows)
    text = chromium.value("document.querySelector('.filter output').value")
    assert text == f"{len(rows)} of {every} rows"
    chromium.value("type('')")
    assert len(chromium.value(shown)) == every


def test_keyboard_focus_moves_down_the_page(chromium: Tab, page: Path) -> None:
    chromium.resize(1440)
    chromium.open(page)
    chromium.unfold()
    chromium.value("window.every = [...document.querySelectorAll('*')]")
    places = []
    for _ in range(25):
        chromium.press("Tab")
        places.append(chromium.value("every.indexOf(document.activeElement)"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert chromium.value(outline) != "none"
    assert places == sorted(set(places))


def test_the_page_is_complete_without_javascript(chromium: Tab, page: Path) -> None:
    chromium.resize(1440)
    chromium.open(page)
    rows = chromium.value("document.querySelectorAll('tr').length")
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page)
        assert chromium.value("document.querySelectorAll('tr').length") == rows
        assert chromium.value("document.querySelectorAll('.filter, th button').length") == 0
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)


def test_the_printed_page_is_unfolded_and_uncut(chromium: Tab, page: Path) -> None:
    chromium.resize(PAPER_PX, medium="print")
    chromium.open(page)
    below = chromium.value(  # the height of what a summary folds
        "[...document.querySelectorAll('details:not([open])')].filter((one) => one.textContent)"
        ".map((one) => one.getBoundingClientRect().height"
        " - one.firstElementChild.getBoundingClientRect().height)"
    )
    assert len(below) > 5
    assert min(below) > 9
    assert chromium.value("document.querySelector('.filter').getClientRects().length") == 0
    chromium.value(  # paper does not show that rows were filtered
        "(() => { const field = document.querySelector('.filter input');"
        " field.value = 'poor'; field.dispatchEvent(new Event('input')) })()"
    )
    hidden = "[...document.querySelectorAll('tr[hidden]')]"
    assert chromium.value(f"{hidden}.length") > 0
    assert chromium.value(f"{hidden}.every((row) => row.getClientRects().length > 0)")
    rights = chromium.value(
        "[...document.querySelectorAll('table')].map((one) => one.getBoundingClientRect().right)"
    )
    assert max(rights) <= PAPER_PX
    assert chromium.value("getComputedStyle(document.querySelector('.steps')).maxHeight") == "none"


def test_the_report_prints_on_more_than_three_pages(chromium: Tab, page: Path) -> None:
    chromium.resize(PAPER_PX, medium="print")
    chromium.open(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    chromium.pdf(SCREENSHOTS / "print.pdf")
    assert (SCREENSHOTS / "print.pdf").read_bytes().count(b"/Type /Page\n") > 3
