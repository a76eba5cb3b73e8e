from collections.abc import Iterator

import pytest

from tests.browser.chromium import Tab, tab


@pytest.fixture(scope="module")
def chromium() -> Iterator[Tab]:
    with tab() as page_tab:
        yield page_tab
