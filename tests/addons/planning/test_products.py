"""The products of traced programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.addons.planning import products as module
from jaxtribute._src.addons.planning.products import all_made, products

X, W = np.ones((6, 4), np.float32), np.ones((4, 4), np.float32)


def found(function: Any, *arguments: Any) -> list[tuple[list[tuple[int, ...]], int]]:
    traced = jax.make_jaxpr(function)(*arguments)
    return [([shape.shape for shape in one.shapes], one.times) for one in products(traced.jaxpr)]


def test_equal_ones_are_counted_and_others_kept_apart() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w + x @ w.T

    assert found(function, X, W) == [([(6, 4), (4, 4)], 3)]
    assert found(lambda x, w: (x @ w, w @ x.T), X, W) == [([(6, 4), (4, 4)], 1), ([(4, 4), (4, 6)], 1)]


def test_those_inside() -> None:
    """In a compiled function, in a loop as often as it goes round, and on each device what is its own."""

    def looped(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jax.jit(jnp.matmul)(carry, w), None), x, length=5)[0]

    assert found(looped, X, W) == [([(6, 4), (4, 4)], 5)]
    mesh = jax.make_mesh((2,), ("r",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(jax.P("r"), jax.P()), out_specs=jax.P("r"))
    assert found(split, X, W) == [([(3, 4), (4, 4)], 1)]


def test_convolutions() -> None:
    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    image, kernel = np.ones((2, 8, 8, 3), np.float32), np.ones((3, 3, 3, 5), np.float32)
    assert found(function, image, kernel) == [([image.shape, kernel.shape], 1)]


def test_all_are_made_one_behind_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is used by the next, and numbers are what they would be alone."""
    traced = jax.make_jaxpr(lambda x, w: ((x @ w) @ w, w @ x.T))(X, W)
    made = products(traced.jaxpr)
    make, share, besides = all_made(made)
    assert share == 1.0
    assert besides == [2 * W.nbytes] * 3, "the smaller operand is changed"
    operands = [jnp.full(shape.shape, 2.0, shape.dtype) for one in made for shape in one.shapes]
    carry, results = make(jnp.zeros(1, jnp.float32), *operands)
    assert carry.shape == (1,)
    assert [result.shape for result in results] == [(6, 4), (6, 4), (4, 6)]
    assert all((np.asarray(result) == 16.0).all() for result in results)
    poisoned = make(jnp.full(1, jnp.nan, jnp.float32), *operands)
    assert np.isnan(np.asarray(poisoned[1][0])).all(), "the first waits for the carry"
    poisoned = make(jnp.zeros(1, jnp.float32), operands[0] * jnp.nan, *operands[1:])
    assert np.isnan(np.asarray(poisoned[1][2])).all(), "the last waits for the first"
    assert np.isnan(np.asarray(poisoned[0])).all(), "the carry for the last"
    monkeypatch.setattr(module, "_MOST", 1)
    assert all_made(made)[1] == pytest.approx(2 / 3), "each is made at least once"
