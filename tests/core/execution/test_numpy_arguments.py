"""NumPy arrays that a caller changes after a call: what was called has seen them as they were."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import mirrored, one_device, variable

SIZE = 400_000
TRIES = 3


def aligned() -> np.ndarray[Any, Any]:
    """Ones, at an address whose memory JAX would use as it is."""
    memory = np.empty(SIZE * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + SIZE * 4].view(np.float32)
    array[:] = 1.0
    return array


DOUBLED_AND_HALVED = jd.function(lambda x: x * 2 / 2)


def takers() -> dict[str, Callable[[Any], Any]]:
    strategies = {"one device": one_device(0), "mirrored": mirrored(2)}
    found: dict[str, Callable[[Any], Any]] = {
        "function": jd.function(lambda x: jnp.cumsum(x * 0 + 1)[:1] * x * 2 / 2),
        "identity": jd.function(lambda x: x),
        "Variable": lambda x: jd.Variable(x).read_value(),
        "assign": jd.Variable(np.zeros(SIZE, np.float32)).assign,
    }
    for name, s in strategies.items():
        v = variable(s, np.zeros(SIZE, np.float32))
        compiled = jd.function(lambda x, s=s: s.run(lambda x: x * 2 / 2, (x,)))
        found |= {
            f"run, compiled, {name}": compiled,
            f"run of a function, {name}": lambda x, s=s: s.run(DOUBLED_AND_HALVED, (x,)),
            f"run, eager, {name}": lambda x, s=s: s.run(lambda x: jnp.asarray(x.copy()), (x,)),
            f"assign, {name}": v.assign,
            f"compiled assign, {name}": jd.function(lambda x, v=v: v.assign(x).read_value()),
            f"place, {name}": s.place,
            f"values, {name}": lambda x, s=s: s.experimental_distribute_values_from_function(lambda _: x),
            f"dataset, {name}": lambda x, s=s: next(iter(s.experimental_distribute_dataset([x]))),
            f"datasets, {name}": lambda x, s=s: next(iter(s.distribute_datasets_from_function(lambda _: [x, x]))),
        }
    return found


TAKERS = takers()


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", TAKERS)
def test_what_is_changed_later_is_not_seen(name: str) -> None:
    for _ in range(TRIES):
        array = aligned()
        result = TAKERS[name](array)
        array[:] = 5.0
        values = result.values if isinstance(result, (jd.DistributedValues, jd.Variable)) else (result,)
        for value in values:
            assert float(jnp.max(value)) == float(jnp.min(value)) == 1.0


def test_a_donated_argument_of_numpy_stays_the_callers() -> None:
    step = jd.function(lambda x: x + 1, donate_argnums=0)
    array = aligned()
    result = jax.block_until_ready(step(array))
    assert array[0] == 1.0
    assert float(result[0]) == 2.0
