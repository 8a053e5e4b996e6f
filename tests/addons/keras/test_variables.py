"""Keras variables in a strategy's scope."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras.variables import StrategyVariable, adopt
from keras_models import keras


def test_a_variable_is_one_of_the_strategys(four: jd.Strategy) -> None:
    with four.scope():
        variable = keras.Variable(np.ones((2, 3), np.float32), name="kernel")
    assert isinstance(variable, StrategyVariable)
    assert isinstance(variable, keras.Variable)
    assert variable.stored.distribute_strategy is four
    assert len(variable.value.devices()) == 4
    variable.assign(np.full((2, 3), 2.0, np.float32))
    variable.assign_add(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(variable.numpy(), np.full((2, 3), 3.0))
    np.testing.assert_array_equal(variable.stored.read_value(), np.full((2, 3), 3.0))
    assert len(variable.value.devices()) == 4
    assert "kernel" in variable.stored.name
    plain = keras.Variable(1.0)
    assert not isinstance(plain, StrategyVariable)


def test_variables_without_a_value_get_one_later(four: jd.Strategy) -> None:
    with four.scope():
        with keras.StatelessScope():
            variable = keras.Variable(keras.initializers.Ones(), shape=(2,))
            with pytest.raises(AttributeError, match="no value yet"):
                _ = variable.stored
            assert variable.value.tolist() == [1, 1]
        np.testing.assert_array_equal(variable.value, [1, 1])
    assert len(variable.value.devices()) == 4
    setattr(variable, "_value", None)  # noqa: B010 (Keras frees memory so)
    np.testing.assert_array_equal(variable.value, [1, 1])


def test_replicas_read_their_own_copy(four: jd.Strategy) -> None:
    with four.scope():
        variable = keras.Variable(np.float32(3))

    @jd.function
    def doubled() -> Any:
        return four.run(lambda: variable.value * 2)

    assert float(doubled()) == 6
    variable.assign(np.float32(4))
    assert float(doubled()) == 8


def test_adoption(four: jd.Strategy) -> None:
    variable = keras.Variable(np.arange(3, dtype=np.int32), name="outside")
    adopt(variable, four)
    assert isinstance(variable, StrategyVariable)
    assert variable.value.tolist() == [0, 1, 2]
    assert len(variable.value.devices()) == 4
    adopt(variable, jd.OneDeviceStrategy("CPU:0"))
    assert variable.stored.distribute_strategy is four
    array: Any = jax.numpy.zeros(2)
    adopt(array, four)  # nothing of Keras


@pytest.mark.parametrize("under", ["default", "mirrored"])
def test_optax_sees_a_model_by_the_paths_of_its_variables(under: str) -> None:
    strategy = jd.get_strategy() if under == "default" else jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [keras.Input((2,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(2, name="second")]
        model = keras.Sequential(layers, name="net")
    first: dict[str, Any] = {}
    for variable in model.trainable_variables:
        first.setdefault(variable.path.split("/")[1], {})[variable.name] = jnp.asarray(variable.value) + 1
        variable.assign_add(jnp.ones(variable.shape))
    params = {"net": first}

    def is_kernel(nest: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", nest)

    transform = optax.adamw(0.1, weight_decay=0.5, mask=is_kernel)
    by_path = jd.Optimizer(transform, model)
    listed = jd.Optimizer(optax.sgd(0.0), model.trainable_variables)  # Keras's variables themselves are taken, too
    assert set(listed.trainable_variables) == set(by_path.trainable_variables)
    state = transform.init(params)
    for step in range(20):
        grads = jax.tree.map(lambda leaf, step=step: jnp.cos(leaf + step), params)
        by_path.apply_gradients(grads)
        updates, state = transform.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    for variable in model.trainable_variables:
        _, layer, name = variable.path.split("/")
        np.testing.assert_allclose(
            np.asarray(variable.value), cast("Any", params)["net"][layer][name], rtol=2e-6, atol=2e-6
        )
    assert jax.tree.map(jnp.shape, by_path.state) == jax.tree.map(jnp.shape, state)
    _, gradients = jd.value_and_grad(lambda x: jnp.sum(model(x) ** 2), model)(jnp.ones((1, 2)))
    assert jax.tree.structure(gradients) == jax.tree.structure(params)
