"""Which integers a dtype of integers can hold."""

import numpy as np
import pytest

from jaxtribute._src.core.values.numbers import out_of_range


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_the_least_and_the_greatest_number_fit_and_the_next_ones_do_not(dtype: str) -> None:
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    assert out_of_range(np.array([most, least, 0]), np.dtype(dtype)) is None
    assert out_of_range(np.array([0, most + 1]), np.dtype(dtype)) == most + 1
    assert out_of_range(np.array([least - 1, most + 1]), np.dtype(dtype)) == least - 1
    assert out_of_range(np.array([least - 0.5]), np.dtype(dtype)) is None, "floats are rounded, as everywhere"
    assert out_of_range(np.array([], np.int64), np.dtype(dtype)) is None
