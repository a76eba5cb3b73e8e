"""A refusal is evidence, and it is lossy if its pairing is."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specbench.engines.engine import Engine, Work
from specbench.errors import CompatibilityError, ModelError, UsageError, WorkloadError
from specbench.inputs.pairing import DrafterSpec
from specbench.records import Sampling
from specbench.records.lossy import LossyRule
from specbench.verify.collect import Amount, Collector, VerificationJob, examine
from specbench.verify.evidence import FailedEvidence

TYPICAL = LossyRule(name="typical", parameters={"threshold": 0.09, "alpha": 0.3})


class Refusing:
    """An engine that refuses every drafter; it never learns that one is lossy."""

    name = "builtin"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def add_drafter(self, drafter: DrafterSpec) -> None:  # noqa: ARG002
        raise self._error

    def remove_drafter(self, name: str) -> None:
        """Do nothing: no drafter is loaded."""

    def lossy_option(self, work: Work) -> str | None:  # noqa: ARG002
        return None


def refusal(error: Exception, lossy: LossyRule | None) -> FailedEvidence:
    drafter = DrafterSpec(name="heads", method="medusa", lossy=lossy)
    work = Work(drafter="heads", method="medusa", k=4)
    job = VerificationJob("big/heads", drafter, "builtin", work, Sampling(temperature=0.7))
    engines = {"builtin": cast(Engine, Refusing(error))}
    amount = Amount(num_tokens=1, num_rows={"builtin": 1})
    (evidence,) = examine(engines, cast(Collector, None), [job], amount, lambda _: None)
    assert isinstance(evidence, FailedEvidence)
    return evidence


@pytest.mark.parametrize(("lossy", "expected"), [(TYPICAL, "typical"), (None, None)])
def test_a_lossy_pairing_that_cannot_be_loaded_is_still_called_lossy(
    lossy: LossyRule | None, expected: str | None
) -> None:
    evidence = refusal(ModelError("no such head\nlook elsewhere"), lossy)

    assert evidence.reason == "no such head"
    subject: dict[str, Any] = {n: getattr(evidence.subject, n) for n in evidence.subject.__slots__}
    assert subject == {
        "pairing": "big/heads",
        "engine": "builtin",
        "method": "medusa",
        "num_speculative_tokens": 4,
        "temperature": 0.7,
        "lossy": expected,
    }


@pytest.mark.parametrize(
    "error",
    [
        ModelError("no"),
        CompatibilityError("no"),
        UsageError("no"),
        WorkloadError("no"),
        torch.OutOfMemoryError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_expected_error_gives_a_refusal(error: Exception) -> None:
    assert refusal(error, None).reason == "no"


def test_an_internal_error_is_not_a_refusal() -> None:
    with pytest.raises(ZeroDivisionError):
        refusal(ZeroDivisionError(), None)


def test_drafts_of_an_engine_that_failed_without_them_are_not_judged() -> None:
    engine = SimpleNamespace(
        name="builtin", add_drafter=lambda _: None, remove_drafter=lambda _: None
    )
    drafter = DrafterSpec(name="copy", method="ngram")
    work = Work(drafter="copy", method="ngram", k=4)
    job = VerificationJob("big/copy", drafter, "builtin", work, Sampling())
    amount = Amount(num_tokens=1, num_rows={"builtin": 1})
    collector = cast(Collector, SimpleNamespace(greedy_texts=lambda _: {}))
    (evidence,) = examine(
        {"builtin": cast(Engine, engine)}, collector, [job], amount, lambda _: None
    )
    assert isinstance(evidence, FailedEvidence)
    assert re.match("builtin .*K=0", evidence.reason)
