"""What the engine beside ours leaves out is said before anything is measured."""

from pathlib import Path

import pytest

from specbench.bench.benchmark import plan_warnings
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import plan_targets
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from tests.settings.flat_settings import settings_of

PAIRINGS = """\
targets:
  big:
    model: owner/big
    drafters:
      head: {method: eagle, model: owner/head}
      copy: {method: ngram}
"""


def planned(folder: Path, *engines: str, names: tuple[str, ...]) -> TargetPlan:
    (folder / "pairings.yaml").write_text(PAIRINGS)
    pairings = load_pairings(folder / "pairings.yaml").select(names)
    settings = settings_of(command="run", pairings=names, workloads=("chat",), engines=engines)
    (plan,) = plan_targets(settings, pairings, lambda _: "float32")
    return plan


def test_alone_with_nothing_like_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"transformers.*eagle.*big/head"):
        planned(tmp_path, "transformers", names=("big/head",))


def test_beside_ours_it_is_a_warning(tmp_path: Path) -> None:
    both = planned(tmp_path, "builtin", "transformers", names=("big",))
    (warning,) = plan_warnings(both)
    assert "big/head: only builtin" in warning
    assert plan_warnings(planned(tmp_path, "builtin", names=("big",))) == ()
    assert plan_warnings(planned(tmp_path, "transformers", names=("big/copy",))) == ()
