"""Fixtures that tests of drafters share with tests of the decoder."""

from tests.decoding.conftest import plant as plant
