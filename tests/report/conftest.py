"""Documents that several tests use, built once, and their charts, drawn once."""

import io
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from specbench.report import html
from specbench.report.document import Document, build_document
from specbench.report.html import Pictures, pictures, to_html
from specbench.report.markdown import to_markdown
from specbench.report.terminal import terminal_report
from tests.report.served_runs import context_run, served_run
from tests.report.stored_runs import BROKEN, SMALL, Wish, stored_run, with_failure
from tests.served_sessions import Sweep, served_sweep

_drawn: dict[int, tuple[Document, Pictures]] = {}  # by the id of the document, which is kept


def drawn(document: Document) -> Pictures:
    """The document's charts, drawn on first use."""
    if id(document) not in _drawn:
        _drawn[id(document)] = document, pictures(document)
    return _drawn[id(document)][1]


def printed(document: Document, width: int = 80) -> str:
    """The output on a terminal without color."""
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(terminal_report(document, is_verbose=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


SHOWN: dict[str, Callable[[Document], str]] = {
    "terminal": printed,
    "markdown": lambda document: to_markdown([document]),
    "html": lambda document: to_html([document]),
}


@pytest.fixture(scope="package", autouse=True)
def charts_of_pages() -> Iterator[None]:
    """The same charts in every page of a document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "pictures", drawn)
        yield


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without charts, which take most of their time."""
    monkeypatch.setattr(html, "pictures", lambda _: Pictures((), (), ()))


@pytest.fixture(scope="session")
def cpu_document() -> Document:
    """Two pairings, two workloads, a failure, no NVML."""
    return build_document(with_failure(stored_run(SMALL), BROKEN))


@pytest.fixture(scope="session")
def gpu_document() -> Document:
    """Temperature 0 and 1, K = 4 throttled, rounds without separate parts."""
    wish = replace(SMALL, temperatures=(0.0, 1.0), device="gpu", throttled_k=4)
    return build_document(stored_run(wish))


@pytest.fixture(scope="session")
def interrupted_document() -> Document:
    """One drafter, stopped before its winner was measured again."""
    return build_document(stored_run(replace(SMALL, drafters=("draft",), is_complete=False)))


@pytest.fixture(scope="session")
def baseline_document() -> Document:
    """A run with only K = 0."""
    return build_document(stored_run(Wish(ks=(0,), workloads=("code",), num_prompts=6)))


@pytest.fixture(scope="session")
def served() -> Document:
    """One to four rows, K = auto and another engine."""
    return build_document(served_run())


@pytest.fixture(scope="session")
def sessions() -> Document:
    """A serving engine in sessions, one of which was lost."""
    return build_document(served_sweep(Sweep(lost=((4, 3, 1),))))


@pytest.fixture(scope="session")
def lengths() -> Document:
    """Prompts of two lengths."""
    return build_document(context_run())
