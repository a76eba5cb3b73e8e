"""Which methods a pairing may name."""

from specbench.methods import ANNOUNCED, all_methods


def test_a_method_that_is_here_is_no_longer_announced() -> None:
    assert not ANNOUNCED & {method.name for method in all_methods()}
