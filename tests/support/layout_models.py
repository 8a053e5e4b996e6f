"""Ten small models whose layouts can all be tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

ROWS, LENGTH, WIDTH = 4, 6, 8


@dataclass(frozen=True)
class Model:
    """Shapes of the variables, the loss of a batch, and the shape and limit of its numbers (None for floats)."""

    shapes: dict[str, tuple[int, ...]]
    loss: Callable[[dict[str, Any], Any], Any]
    batch: tuple[int, ...]
    tokens: int | None = None


def mlp(p: dict[str, Any], x: Any) -> Any:
    hidden = jax.nn.relu(x @ p["w1"] + p["b1"].reshape(1, -1))
    return jnp.mean((hidden @ p["w2"]) ** 2)


def deep(p: dict[str, Any], x: Any) -> Any:
    for name in ("w1", "w2", "w3", "w4"):
        x = jnp.tanh(x @ p[name])
    return jnp.mean(x**2)


def autoencoder(p: dict[str, Any], x: Any) -> Any:
    code = jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"])
    return jnp.mean((jnp.tanh(code @ p["w2"].T) @ p["w1"].T - x) ** 2)


def embedded(p: dict[str, Any], ids: Any) -> Any:
    x = jnp.take(jnp.asarray(p["table"]), ids, axis=0).mean(1)
    return jnp.mean((jax.nn.relu(x @ p["w1"]) @ p["w2"]) ** 2)


def attended(p: dict[str, Any], x: Any) -> Any:
    def heads(name: str) -> Any:
        return (x @ p[name]).reshape(*x.shape[:2], 2, -1)

    q, k, v = heads("wq"), heads("wk"), heads("wv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(q.shape[-1] ** 0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(*x.shape[:2], -1) @ p["wo"]


def attention(p: dict[str, Any], x: Any) -> Any:
    return jnp.mean(attended(p, x) ** 2)


def normal(x: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-3)


def fused(p: dict[str, Any], x: Any) -> Any:
    """Attention whose three kernels are one of shape (width, 3, heads, width of a head)."""
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dchw->btchw", x, jnp.asarray(p["qkv"])), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return jnp.einsum("bthw,hwd->btd", mixed, jnp.asarray(p["out"]))


def transformer(p: dict[str, Any], x: Any) -> Any:
    x = x + fused(p, normal(x))
    return jnp.mean((x + jax.nn.gelu(x @ p["up"]) @ p["down"]) ** 2)


def gpt(p: dict[str, Any], ids: Any) -> Any:
    table = jnp.asarray(p["table"])
    x = jnp.take(table, ids, axis=0)
    x = x + fused(p, x)
    x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
    return optax.softmax_cross_entropy_with_integer_labels(x[:, :-1] @ table.T, ids[:, 1:]).mean()


def conv(p: dict[str, Any], x: Any) -> Any:
    for name in ("c1", "c2"):
        kernel = jnp.asarray(p[name])
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    return jnp.mean((x.mean((1, 2)) @ p["dense"]) ** 2)


def lstm(p: dict[str, Any], x: Any) -> Any:
    wx, wh = jnp.asarray(p["wx"]), jnp.asarray(p["wh"])

    def turn(carry: Any, row: Any) -> Any:
        hidden, cell = carry
        gates = row @ wx + hidden @ wh
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

    start = jnp.zeros((x.shape[0], wh.shape[0]))
    (hidden, _), _ = jax.lax.scan(turn, (start, start), jnp.swapaxes(x, 0, 1))
    return jnp.mean((hidden @ p["head"]) ** 2)


def odd(p: dict[str, Any], x: Any) -> Any:
    """A mixture of two experts, beside kernels of odd sizes."""
    x = jnp.tanh(x @ p["odd"]) @ p["back"]
    gates = jax.nn.softmax(x[:, :2])
    inner = jax.nn.relu(jnp.einsum("bd,edh->beh", x, jnp.asarray(p["up"])))
    return jnp.mean((jnp.einsum("beh,ehd,be->bd", inner, jnp.asarray(p["down"]), gates)) ** 2)


D = WIDTH
FUSED = {"qkv": (D, 3, 2, 5), "out": (2, 5, D)}
MODELS = {
    "MLP": Model({"w1": (D, 32), "b1": (32,), "w2": (32, D)}, mlp, (ROWS, D)),
    "deep MLP": Model({"w1": (D, 16), "w2": (16, 16), "w3": (16, 16), "w4": (16, D)}, deep, (ROWS, D)),
    "tied autoencoder": Model({"w1": (32, 16), "w2": (16, 4)}, autoencoder, (ROWS, 32)),
    "embedding and MLP": Model({"table": (64, D), "w1": (D, 16), "w2": (16, 4)}, embedded, (ROWS, LENGTH), 64),
    "attention": Model(dict.fromkeys(("wq", "wk", "wv", "wo"), (D, D)), attention, (ROWS, LENGTH, D)),
    "transformer": Model({**FUSED, "up": (D, 32), "down": (32, D)}, transformer, (ROWS, LENGTH, D)),
    "GPT, tied": Model(
        {"table": (32, 9), "qkv": (9, 3, 2, 5), "out": (2, 5, 9), "up": (9, 32), "down": (32, 9)},
        gpt,
        (ROWS, LENGTH),
        32,
    ),
    "conv net": Model({"c1": (3, 3, 2, 8), "c2": (3, 3, 8, 8), "dense": (8, 4)}, conv, (ROWS, 6, 6, 2)),
    "LSTM": Model({"wx": (D, 32), "wh": (8, 32), "head": (8, 4)}, lstm, (ROWS, LENGTH, D)),
    "mixture, odd sizes": Model({"odd": (D, 5), "back": (5, D), "up": (2, D, 5), "down": (2, 5, D)}, odd, (ROWS, D)),
}


def build(name: str, strategy: jd.Strategy, transform: Any = None) -> tuple[Any, Any, dict[str, jd.Variable]]:
    """A training step of a model, a batch for it, and the variables."""
    model, rng = MODELS[name], np.random.default_rng(0)
    with strategy.scope():
        variables = {
            key: jd.Variable(rng.normal(size=shape).astype(np.float32) / 3, name=key)
            for key, shape in model.shapes.items()
        }
        optimizer = jd.Optimizer(transform or optax.sgd(0.1), list(variables.values()))

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                return model.loss(variables, x)

        value, grads = jd.value_and_grad(loss, list(variables.values()))()
        optimizer.apply_gradients(grads, "MEAN")
        return value

    @jd.function
    def step(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, (x,)), axis=None)

    shape = (model.batch[0] * strategy.num_replicas_in_sync, *model.batch[1:])
    floats = rng.normal(size=shape).astype(np.float32)
    whole = floats if model.tokens is None else rng.integers(0, model.tokens, shape).astype(np.int32)
    (batch,) = strategy.experimental_distribute_dataset([whole])
    return step, batch, variables
