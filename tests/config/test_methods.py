"""Which methods a pairing may name."""

from specbench.drafters.catalogue import catalogue
from specbench.methods import METHODS, known_methods


def test_every_drafter_there_is_may_be_named() -> None:
    assert {method.name for method in catalogue()} <= set(known_methods())


def test_methods_that_arrive_later_may_be_named_already() -> None:
    assert {"suffix", "previous_turn", "lookahead", "medusa", "eagle3", "mtp"} <= set(METHODS)


def test_what_a_pairing_may_set_is_what_the_drafter_takes() -> None:
    for method in catalogue():
        parameters = known_methods()[method.name].parameters
        if parameters is not None:
            assert list(parameters) == [parameter.name for parameter in method.parameters]
        assert (known_methods()[method.name].model == "required") == method.needs_model
