"""Keras optimizers as Optax transformations: the same updates, on all variables and on some."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.addons.keras.server_optimizer import KerasTransform, nested
from keras_models import keras

optimizers: Any = keras.optimizers
KINDS: dict[str, Callable[[], Any]] = {
    "momentum and averages": lambda: optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=2),
    "accumulated and clipped": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2, global_clipnorm=0.1),
    "schedule": lambda: optimizers.Nadam(optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "factored": lambda: optimizers.Adafactor(0.1),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adagrad(0.1), initial_scale=4.0),
    "decay": lambda: optimizers.AdamW(0.1, weight_decay=0.5),
}


def variables() -> list[Any]:
    random = np.random.default_rng(0)
    kernel = keras.Variable(random.normal(size=(3, 2)).astype(np.float32), name="kernel")
    kernel.constraint = keras.constraints.MaxNorm(0.5)
    return [kernel, keras.Variable(random.normal(size=2).astype(np.float32), name="bias")]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_the_optimizer(kind: str) -> None:
    made, optimizer = variables(), KINDS[kind]()
    if kind == "decay":
        optimizer.exclude_from_weight_decay(var_list=made[:1], var_names=["bias"])
    optimizer.build(made)
    transform: KerasTransform = pickle.loads(pickle.dumps(KerasTransform(optimizer, made)))
    params = [jnp.asarray(variable.value) for variable in made]
    state = transform.init(params)
    values = [jnp.asarray(variable.value) for variable in optimizer.variables]
    expected = params

    @jax.jit
    def update(state: Any, params: Any, grads: Any) -> Any:
        changes, state = transform.update(grads, state, params)
        return state, [param + change for param, change in zip(params, changes, strict=True)]

    plain = jax.jit(optimizer.stateless_apply)
    for scale in (1.0, 2.0):
        grads = [scale * jnp.ones_like(param) for param in params]
        state, params = update(state, params, grads)
        expected, values = plain(values, grads, expected)
    for found, wanted in zip(params, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    kept = jax.tree.leaves(nested(values, transform.owners(params)))
    for found, wanted in zip(jax.tree.leaves(state), kept, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert transform.told_apart == (["kernel", "bias"] if kind == "decay" else ["kernel"])


def test_a_server_knows_some_variables_by_their_shapes() -> None:
    made, optimizer = variables(), optimizers.Adam(0.1, clipnorm=0.01)
    optimizer.build(made)
    transform = KerasTransform(optimizer, made)
    (part,) = [jnp.zeros(2)]
    state = transform.init([part])
    assert sorted(state) == ["shared", "slots"]
    assert [[slot.shape for slot in slots] for slots in state["slots"]] == [[(2,)], [(2,)]]
    (change,), state = transform.update([jnp.ones(2)], state, [part])
    np.testing.assert_allclose(change, -0.1, rtol=1e-5)  # clipped before, where the gradient was computed
    np.testing.assert_allclose(state["slots"][0][0], 0.1, rtol=1e-5)


def test_nested() -> None:
    assert nested([1, 2, 3, 4, 5], [None, 1, 0, 1, None]) == {
        "shared": {"000": 1, "001": 5},
        "slots": [[3, 2], [None, 4]],
    }
