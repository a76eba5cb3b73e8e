"""The draft with another tokenizer that anyone can make is one that fits the embedded target."""

import sys
from pathlib import Path

import pytest

from specbench.files.model import open_model
from specbench.fit.compatibility import check_drafter
from specbench.inputs.config import load_pairings
from tools.demo import other_draft


@pytest.mark.long
def test_a_draft_with_another_tokenizer_is_made_and_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["other_draft", "--out", str(tmp_path), "--steps", "1"])

    other_draft.main()

    (target,) = load_pairings(tmp_path / "pairings.yaml").targets
    files = open_model(target.model)
    by_name = {drafter.name: check_drafter(files, drafter) for drafter in target.drafters}
    assert {name: finding.level for name, finding in by_name.items()} == {
        "same": "ok",
        "intersection": "warning",
        "strings": "warning",
    }
    texts = [finding.text for finding in by_name["strings"].of_level("warning")]
    assert any("60.2% of the target's" in text for text in texts), texts
