"""The classes of a program's axes: what goes together through products, loops, heads, look-ups and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxtribute._src.addons.layouts.axes import AxisClasses
from jaxtribute._src.core.jaxprs.core import opened


def classes(function: Callable[..., Any], *shapes: Any) -> tuple[AxisClasses, list[list[int]]]:
    """The classes of a function's arguments; tuples are shapes of floats."""
    given = [jax.ShapeDtypeStruct(one, jnp.float32) if isinstance(one, tuple) else one for one in shapes]
    found = AxisClasses(opened(jax.make_jaxpr(function)(*given)))
    return found, [[found.find(axis) for axis in one.axes] for one in found.inputs]


def mlp(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1 + b1[None]) @ w2


def test_columns_and_the_next_rows_are_one_class_with_the_bias_between() -> None:
    found, (x, w1, b1, w2) = classes(mlp, (3, 4), (4, 8), (8,), (8, 5))
    assert w1[1] == b1[0] == w2[0]
    assert x[1] == w1[0]
    assert len({*x, *w1, *w2}) == 5 - 1
    assert [use.kind for use in found.uses[1]] == ["columns", "rows"]


def test_the_backward_pass_and_an_update_join_nothing_else() -> None:
    def step(x: Any, w1: Any, b1: Any, w2: Any, slot: Any) -> Any:
        grads = jax.grad(lambda w: jnp.sum(mlp(x, w, b1, w2)))(w1)
        return w1 - (slot + grads)

    _, (_, w1, b1, w2, slot) = classes(step, (3, 4), (4, 8), (8,), (8, 5), (4, 8))
    assert slot == w1
    assert w1[1] == b1[0] == w2[0]
    assert w1[0] != w1[1] != w2[1]


def test_heads_are_the_longest_stride_of_the_columns() -> None:
    def attention(x: Any, w: Any, out: Any) -> Any:
        heads = (x @ w).reshape(2, 6, 4, 3)
        scores = jnp.einsum("bqhd,bkhd->bhqk", heads, heads)
        return jnp.einsum("bhqk,bkhd->bqhd", scores, heads).reshape(2, 6, 12) @ out

    found, (_, w, out) = classes(attention, (2, 6, 8), (8, 12), (12, 8))
    assert w[1] == out[0]
    assert w[1] in found.batches()
    assert found.unit(w[1]) == 4  # heads, of 12 columns


def test_columns_that_hold_three_kernels_cannot_be_split_with_their_heads() -> None:
    found, (_, w) = classes(lambda x, w: (x @ w).reshape(2, 3, 4, 2), (2, 8), (8, 24))
    assert found.unit(w[1]) == 3


@pytest.mark.parametrize("loop", ["scan", "while", "cond", "jit", "checkpoint"])
def test_what_goes_through_programs_inside(loop: str) -> None:
    def turn(h: Any, w: Any) -> Any:
        return jnp.tanh(h @ w)

    def function(h: Any, w: Any) -> Any:
        if loop == "scan":
            return jax.lax.scan(lambda h, _: (turn(h, w), None), h, None, length=3)[0]
        if loop == "while":
            return jax.lax.while_loop(lambda h: h.sum() < 3, lambda h: turn(h, w), h)
        if loop == "cond":
            return h + jax.lax.cond(h.sum() < 3, lambda: turn(h, w), lambda: h)
        return h + (jax.jit if loop == "jit" else jax.checkpoint)(turn)(h, w)

    _, (h, w) = classes(function, (2, 4), (4, 4))
    assert h[1] == w[0] == w[1]  # goes round, or is added to what it was


def test_a_scan_over_layers_takes_their_kernels_apart() -> None:
    def function(x: Any, ups: Any, downs: Any) -> Any:
        return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None), x, (ups, downs))[0]

    _, (x, ups, downs) = classes(function, (2, 4), (3, 4, 8), (3, 8, 4))
    assert ups[2] == downs[1]
    assert x[1] == ups[1] == downs[2] != ups[2]


def test_a_tied_embedding_is_looked_up_and_multiplied() -> None:
    def function(ids: Any, table: Any) -> Any:
        return jnp.take(table, ids, axis=0) @ table.T

    ids = jax.ShapeDtypeStruct((2, 3), jnp.int32)
    found, (_, table) = classes(function, ids, (16, 4))
    kinds = [(use.kind, found.find(use.axis)) for use in found.uses[1]]
    assert kinds[0] == ("lookup", table[0])
    assert ("columns", table[0]) in kinds
    assert ("rows", table[1]) in kinds


def test_output_channels_are_the_next_input_channels() -> None:
    def function(x: Any, one: Any, two: Any) -> Any:
        for kernel in (one, two):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return x

    found, (_, one, two) = classes(function, (2, 6, 6, 2), (3, 3, 2, 4), (3, 3, 4, 8))
    assert one[3] == two[2]
    assert [use.kind for use in found.uses[1]] == ["outputs", "inputs"]


def test_what_is_unknown_joins_nothing() -> None:
    _, (x, w) = classes(lambda x, w: jnp.linalg.svd(x @ w)[1], (4, 4), (4, 6))
    assert len({*x, *w}) == 3
