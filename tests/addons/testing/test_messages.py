"""What travels between a runner and its processes: functions by name or by value, arrays without a backend."""

import functools
import pickle
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.testing.messages import Call, dump, encode_call
from jaxtribute.errors import ArgumentTypeError


def twice(x: Any, *, more: Any = 0) -> Any:
    return 2 * x + more


class Counter:
    """Something with a method."""

    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, x: int) -> int:
        return self.start + x


def content(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What the other side finds: function, arguments, keyword arguments."""
    call: Call = pickle.loads(encode_call(function, args, kwargs))
    return pickle.loads(call.payload)


def test_a_function_of_a_module_goes_by_its_name() -> None:
    call: Call = pickle.loads(encode_call(twice, (3,), {"more": 1}))
    assert call.module == (__name__, __file__)
    assert call.path == sys.path
    assert b"more" in call.payload
    assert b"co_code" not in call.payload
    function, args, kwargs = pickle.loads(call.payload)
    assert function is twice
    assert (args, kwargs) == ((3,), {"more": 1})


@pytest.mark.parametrize("function", [functools.partial(twice, more=5), lambda x: twice(x, more=5)])
def test_what_has_no_name_goes_by_value(function: Any) -> None:
    found, args, _ = content(function, 2)
    assert found is not function
    assert found(*args) == 9


def test_a_function_of_the_main_module_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "__module__", "__main__")
    call: Call = pickle.loads(encode_call(twice, (), {}))
    assert call.module == ("builtins", None)
    assert pickle.loads(call.payload)[0](4) == 8


def test_a_method_takes_its_object_along() -> None:
    found, args, _ = content(Counter(10).plus, 5)
    assert found(*args) == 15


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    assert pickle.loads(dump(value)) == value
    _, args, kwargs = content(twice, value, more=value)
    assert (args, kwargs) == ((value,), {"more": value})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_of_jax_arrive_as_those_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    array = jnp.ones(shape, dtype)
    for found in (pickle.loads(dump({"a": [array]}))["a"][0], content(lambda: array)[0]()):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (array.dtype, shape)
        np.testing.assert_array_equal(found, np.asarray(array))


def test_an_array_over_several_devices_arrives_whole() -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(np.arange(8.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    np.testing.assert_array_equal(pickle.loads(dump(sharded)), np.arange(8.0))


@pytest.mark.parametrize("value", [sys.stdout, (number for number in range(3))])
def test_what_cannot_travel_is_told(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"cannot be sent to another process: .*HINT"):
        encode_call(twice, (value,), {})


def test_without_cloudpickle_names_still_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert content(twice, 1)[0] is twice
    with pytest.raises(ArgumentTypeError, match="define it at the top of a module"):
        encode_call(lambda: 1, (), {})
