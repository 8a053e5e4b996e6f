"""JAX with arrays that have no values: operations on them give what they give on real ones, but for the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import SingleDeviceSharding

import jaxtribute as jd
from jaxtribute._src.core.devices import described_devices
from jaxtribute._src.core.values.described import DescribedArray
from jaxtribute.errors import DeviceError

REAL = jnp.arange(12.0).reshape(4, 3)
HOME = SingleDeviceSharding(jax.devices()[0])
DESCRIBED = DescribedArray((4, 3), np.float32, HOME)
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "operators": lambda x: (-x + 1.0) * np.ones((4, 3), np.float32) / x**2,
    "reversed operators": lambda x: np.ones((4, 3), np.float32) - 2.0 * x,
    "comparisons": lambda x: (x > 1.0) & (x != 3.0),
    "methods": lambda x: (x.T.reshape(-1).astype(jnp.bfloat16), x.sum(axis=0), x.at[0].set(1.0), x.mT),
    "indices": lambda x: (x[0], x[1:, ::2], x[jnp.array([2, 1])], x[None], [row[0] for row in x]),
    "products": lambda x: jnp.ones((2, 4)) @ x,
    "functions": lambda x: (jax.nn.relu(x), jax.nn.gelu(x), jax.nn.log_softmax(x), jnp.zeros_like(x), jnp.copy(x)),
    "nested": jax.jit(lambda a: {"sum": jnp.sum(a), "rest": jax.checkpoint(jnp.tanh)(a)}),
    "closures": lambda x: jax.jit(lambda a: a @ x)(jnp.ones((2, 4))),
    "gradients": jax.value_and_grad(lambda a: jnp.sum(a**2)),
    "maps": jax.vmap(lambda row: row * 2.0),
    "loops": lambda x: jax.lax.scan(lambda carry, row: (carry + row, carry), jnp.zeros(3), x),
    "conditions": lambda x: jax.lax.cond(True, lambda a: a, lambda a: 2.0 * a, x),
    "traces": lambda x: jax.eval_shape(lambda a: a @ x, jax.ShapeDtypeStruct((2, 4), np.float32)),
    "keys": lambda x: jax.random.normal(jax.random.split(jax.random.wrap_key_data(x[0, :2].astype("uint32")))[0], (3,)),
}


def forms(results: Any) -> list[tuple[Any, Any]]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(results)]


@pytest.fixture(autouse=True)
def relaxed() -> Any:
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_give_shapes(name: str) -> None:
    for _ in range(2):  # the second time JAX knows the program
        assert forms(OPERATIONS[name](DESCRIBED)) == forms(OPERATIONS[name](REAL))


@pytest.mark.parametrize(
    "use", [float, bool, np.asarray, jax.device_get, lambda x: x.tolist(), lambda x: f"{x:.2f}", lambda x: x.item()]
)
def test_numbers_are_there_if_they_were_given(use: Callable[[Any], Any]) -> None:
    given = DescribedArray.of(np.float32(0.25), np.float32, HOME)
    real = jnp.float32(0.25)
    assert use(given) == use(real)
    assert use(given / 2) == use(real / 2)
    with pytest.raises(DeviceError, match="has no values"):
        use(DESCRIBED[0, 0])
    with pytest.raises(DeviceError, match="has no values"):
        use(given * DESCRIBED[0, 0])


def test_what_is_known_is_shown() -> None:
    assert repr(DescribedArray.of(3, np.int32, HOME)) == "DescribedArray(int32[], 3)"
    assert (
        f"{DESCRIBED}"
        == repr(DESCRIBED)
        == "DescribedArray(float32[4, 3], no values: its program was compiled, not run)"
    )
    assert DESCRIBED.on(jax.devices()[0]).shape == (4, 3)


def test_a_program_makes_arrays_where_it_is_asked_to_and_nothing_runs() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    parts, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("x",), ()))
    makes = jax.jit(lambda: (jnp.zeros((4, 3)), jnp.ones(2)), out_shardings=(parts, whole))
    moves = jax.jit(lambda x: (x, x[:2, 0]), out_shardings=(parts, whole))
    with described_devices(jax.devices()):
        assert DESCRIBED.shape == (4, 3)
        for made in (makes(), moves(DESCRIBED), moves(REAL)):
            assert [type(one) for one in made] == [DescribedArray] * 2
            assert [one.sharding for one in made] == [parts, whole]
            assert [one.shape for one in made] == [(4, 3), (2,)]
    assert np.asarray(makes()[1]).sum() == 2


def test_gradients_are_added_up_on_described_devices() -> None:
    with described_devices(jax.devices()[:2]):
        strategy = jd.MirroredStrategy()
        with strategy.scope():
            w = jd.Variable(np.ones((4, 3), np.float32))
            optimizer = jd.Optimizer(optax.sgd(0.1), [w], accumulate_steps=2)
        assert {type(one.stored) for one in optimizer.variables} == {DescribedArray}
