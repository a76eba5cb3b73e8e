"""What tests of drafters share with those of the decoder."""

from tests.decoding.conftest import plant as plant
