"""Messages: headers and arrays come out as they went in, and rubbish is an error."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxtribute._src.addons.messaging import encoding, wire
from jaxtribute.errors import ClusterError

ARRAYS = hnp.arrays(
    st.sampled_from(["float32", "int8", "bool", "complex64", "uint16"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


def same(a: Any, b: Any) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


@given(arrays=st.lists(ARRAYS, max_size=4))
def test_arrays_of_any_kind_and_size(arrays: list[np.ndarray]) -> None:
    header, found = wire.unpack([bytes(frame) for frame in wire.pack({"t": "x", "n": 2**40}, arrays)])
    assert header == {"t": "x", "n": 2**40}
    assert len(found) == len(arrays)
    for a, b in zip(arrays, found, strict=True):
        same(a, b)


def test_large_arrays_travel_without_a_copy_and_types_of_jax_too() -> None:
    array = np.asarray(jnp.ones((64, 64), jnp.bfloat16))
    frames = wire.pack({}, [array, array.T])
    assert len(frames) == 3
    assert np.shares_memory(np.frombuffer(frames[1], np.uint8), array.view(np.uint8))
    for a, b in zip([array, array.T], wire.unpack(frames)[1], strict=True):
        same(a, b)


@pytest.mark.parametrize("frames", [[b""], [b"\xc1"], [wire.pack({}, [np.ones(1000)])[0]], [b"\x01"]])
def test_what_is_no_message_is_an_error(frames: list[bytes]) -> None:
    with pytest.raises(ClusterError, match="cannot be read"):
        wire.unpack(frames)


def test_what_is_no_plain_structure_travels_another_way() -> None:
    for odd in (object(), {1, 2}, np.array(["a"]), 2**70, np.array([object()])):
        with pytest.raises(encoding.NotPlainError):
            encoding.encode([odd], [])
