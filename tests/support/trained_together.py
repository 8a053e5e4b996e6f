"""An MLP, a transformer and a conv net that one program trains side by side, and the same by hand on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

LAYOUTS = {
    "^w1": (None, "model"),
    "^b1": ("model",),
    "^w2": ("model",),
    "^qkv": (None, None, "model"),
    "^out": ("model",),
    "^up": (None, "model"),
    "^down": ("model",),
    "^c1": (None, None, "model"),
    "^c2": (None, "model"),
}
SHAPES = {
    "w1": (32, 8),
    "b1": (8,),
    "w2": (8, 4),
    "qkv": (8, 3, 4, 2),
    "out": (4, 2, 8),
    "up": (8, 8),
    "down": (8, 8),
    "head": (8, 4),
    "c1": (3, 8, 8),
    "c2": (3, 8, 4),
}
ROWS = (8, 8, 6)
EPOCHS = 17
"""Of three batches: 51 steps."""
TRANSFORM = optax.adam(0.01)


def values() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) / 3 for name, shape in SHAPES.items()}


def batches() -> list[Any]:
    """Four positions of width 8 in each example, and its class."""
    rng = np.random.default_rng(1)
    return [(rng.normal(size=(rows, 4, 8)).astype(np.float32), rng.integers(0, 4, rows)) for rows in ROWS]


def entropies(params: Any, x: Any, y: Any) -> Any:
    """The losses of each example, of shape (examples, 3): MLP, transformer, conv net."""
    p = {name: jnp.asarray(value) for name, value in params.items()}
    hidden = jax.nn.relu(x.reshape(-1, 32) @ p["w1"] + p["b1"][None])
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dchw->btchw", x, p["qkv"]), 2, 0)
    scores = jax.nn.softmax(jnp.einsum("bqhw,bkhw->bhqk", q, k))
    attended = x + jnp.einsum("bthw,hwd->btd", jnp.einsum("bhqk,bkhw->bqhw", scores, v), p["out"])
    transformed = attended + jax.nn.gelu(attended @ p["up"]) @ p["down"]
    image = x
    for name in ("c1", "c2"):
        image = jax.lax.conv_general_dilated(image, p[name], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        image = jnp.tanh(image)
    logits = hidden @ p["w2"], transformed.mean(1) @ p["head"], image.mean(1)
    each = [optax.softmax_cross_entropy_with_integer_labels(one, y) for one in logits]
    return jnp.stack(each, axis=-1)


def by_hand() -> list[Any]:
    """The three losses of each step of plain JAX on one device."""
    params: Any = {name: jnp.asarray(value) for name, value in values().items()}
    state, found = TRANSFORM.init(params), []

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            each = entropies(params, x, y).sum(0) / ROWS[0]
            return each.sum(), each

        (_, each), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = TRANSFORM.update(grads, state, params)
        return optax.apply_updates(params, updates), state, each

    with jax.numpy_dtype_promotion("standard"):
        for _ in range(EPOCHS):
            for x, y in batches():
                params, state, each = step(params, state, x, y)
                found.append(np.asarray(each))
    return found


def train(strategy: jd.Strategy, epochs: int = EPOCHS, *, compiled: bool) -> list[Any]:
    """The three losses of each step under a strategy."""
    with strategy.scope():
        variables = {name: jd.Variable(value, name=name) for name, value in values().items()}
        optimizer = jd.Optimizer(TRANSFORM, list(variables.values()))

    def replica_step(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = entropies(variables, x, y).sum(0) / np.float32(ROWS[0])
            return each.sum(), each

        (_, each), grads = jd.value_and_grad(loss, list(variables.values()), has_aux=True)()
        optimizer.apply_gradients(grads)
        return each

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None)

    run = jd.function(step) if compiled else step
    dataset = strategy.experimental_distribute_dataset(batches())
    with jax.numpy_dtype_promotion("standard"):
        return [np.asarray(run(x, y)) for _ in range(epochs) for x, y in dataset]
