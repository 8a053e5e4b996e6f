"""Assignments with TensorFlow's arguments, and its older names for reading."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import components, mirrored, variable


def test_tensorflows_arguments_are_accepted_and_the_variable_is_returned() -> None:
    v = jd.Variable(1.0)
    assert v.assign(2.0, use_locking=True, name="a", read_value=False) is v
    assert v.assign_add(3.0, True, "b", False) is v
    assert v.assign_sub(1.0, read_value=True) is v
    assert float(v) == 4.0


class Foreign:
    """A variable of another library: what it holds may be traced, and NumPy cannot have that."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value)


@pytest.mark.parametrize("compiled", [True, False])
def test_another_librarys_variable_is_its_array(compiled: bool) -> None:
    v = jd.Variable(jnp.ones(2))

    def step(x: jax.Array) -> None:
        v.assign_add(Foreign(2 * x))  # pyright: ignore[reportArgumentType]

    (jd.function(step) if compiled else step)(jnp.ones(2))
    assert v.numpy().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("name", ["assign", "assign_add", "assign_sub"])
def test_arguments_are_in_tensorflows_order(name: str) -> None:
    parameters = inspect.signature(getattr(jd.Variable, name)).parameters
    first = "value" if name == "assign" else "delta"
    assert list(parameters) == ["self", first, "use_locking", "name", "read_value"]


def test_replicas_assign_with_them_too() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=jd.VariableAggregation.SUM)

    @jd.function
    def step() -> None:
        strategy.run(lambda: v.assign_add(jnp.float32(2.0), name="add"))

    step()
    assert components(v.distributed()) == [5.0, 5.0]


def test_older_ways_to_read() -> None:
    v = variable(mirrored(2), 2.0)
    assert float(v.value()) == float(v.initialized_value()) == 2.0
    assert v.handle is v
    assert v.constraint is None
    assert v.initializer is None
