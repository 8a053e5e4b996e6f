"""Which integers a dtype of integers can hold."""

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.settings import out_of_range
from jaxtribute.errors import ArgumentError
from replicas import mirrored, one_device


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_the_least_and_the_greatest_number_fit_and_the_next_ones_do_not(dtype: str) -> None:
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    assert out_of_range(np.array([most, least, 0]), np.dtype(dtype)) is None
    assert out_of_range(np.array([0, most + 1]), np.dtype(dtype)) == most + 1
    assert out_of_range(np.array([least - 1, most + 1]), np.dtype(dtype)) == least - 1
    assert out_of_range(np.array([least - 0.5]), np.dtype(dtype)) is None, "floats are rounded, as everywhere"
    assert out_of_range(np.array([], np.int64), np.dtype(dtype)) is None


def test_an_error_shows_the_first_five_numbers() -> None:
    with pytest.raises(ArgumentError, match=r"cannot hold: \[0\.5, 1\.5, 2\.5, 3\.5, 4\.5\]\. HINT"):
        jd.Variable(np.arange(9) + 0.5, dtype="int32")


@pytest.mark.parametrize("value", [2**40, np.int64(2**40), np.array([1, -(2**40)])])
def test_what_is_placed_fits_or_is_refused(value: object) -> None:
    for strategy in (jd.get_strategy(), one_device(1), mirrored(2), jd.CentralStorageStrategy(["CPU:0", "CPU:1"])):
        with pytest.raises(ArgumentError, match=r"an array to place .*HINT"):
            strategy.place({"n": value})
