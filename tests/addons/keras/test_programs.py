"""Programs in the style of public guides, on uneven batches, labels in 64 bits: as plain Keras, with no warning."""

from __future__ import annotations

import pytest

import jaxtribute as jd
import keras_product
import keras_programs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images"])
def test_a_program_trains_as_on_one_device(four: jd.Strategy, name: str) -> None:
    expected = keras_programs.trained(name)
    with four.scope():
        found = keras_programs.trained(name)
    off, what = keras_product.difference(expected, found)
    assert off < keras_product.TOLERANCE, what
