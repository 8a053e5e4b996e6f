"""What is sent arrives as what it was: the structure, the elements, and whose array each is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.messaging.encoding import as_sent, decode, encode
from jaxtribute._src.addons.messaging.wire import pack, unpack
from jaxtribute.errors import ArgumentError

DTYPES = ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64"]
SHAPES: list[tuple[int, ...]] = [(), (0, 2), (3,), (2, 2)]


def sent(value: Any, *how: Any) -> Any:
    """The value after a journey over the wire."""
    arrays: list[Any] = []
    header, received = unpack(pack({"v": encode(value, arrays)}, arrays))
    return decode(header["v"], iter(received), *how)


@st.composite
def made_arrays(draw: st.DrawFn) -> Any:
    elements = np.arange(4).astype(jnp.dtype(draw(st.sampled_from(DTYPES))))
    shape = draw(st.sampled_from(SHAPES))
    array = np.resize(elements, shape)
    return draw(st.sampled_from([np.asarray, jnp.asarray, lambda x: x[()]]))(array)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
NESTS: Any = st.recursive(
    PLAIN | made_arrays(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(value=NESTS)
def test_a_nest_arrives_as_it_was(value: Any) -> None:
    expected, tree = jax.tree.flatten(value, is_leaf=lambda leaf: leaf is None)
    found, same = jax.tree.flatten(sent(value, as_sent), is_leaf=lambda leaf: leaf is None)
    assert same == tree
    for one, other in zip(expected, found, strict=True):
        assert type(other) is type(one)
        if hasattr(one, "dtype"):
            assert (other.dtype, other.shape) == (one.dtype, one.shape)
            np.testing.assert_array_equal(other, one)
        else:
            assert other == one
    for leaf in jax.tree.leaves(sent(value)):
        assert not isinstance(leaf, jax.Array), "results are NumPy's on the coordinator"


@pytest.mark.parametrize("value", [2.0, 3, 1j])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_weak_type_stays_weak(value: complex, shape: tuple[int, ...]) -> None:
    """It decides what `x * learning_rate` is: bfloat16 stays bfloat16."""
    weak = jnp.full(shape, value)
    assert weak.weak_type
    arrived = sent(weak, as_sent)
    assert arrived.weak_type
    assert arrived.dtype == weak.dtype
    np.testing.assert_array_equal(arrived, weak)
    narrow = jnp.ones(shape, jnp.complex64 if isinstance(value, complex) else jnp.bfloat16)
    assert (narrow * arrived).dtype == narrow.dtype
    assert not sent(jnp.ones(shape), as_sent).weak_type


def test_integers_that_jax_cannot_hold_where_they_arrive() -> None:
    with jax.enable_x64(True):
        wide = jnp.asarray([2**40])
    with pytest.raises(ArgumentError, match=r"1099511627776.*HINT"):
        sent(wide, as_sent)
    assert sent(wide)[0] == 2**40
