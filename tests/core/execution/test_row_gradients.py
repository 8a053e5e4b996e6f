"""Gradients by looked-up rows: a variable of which rows are looked up, one that is also read whole, and one that is not
looked up at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.autodiff import _of_one  # pyright: ignore[reportPrivateUsage]
from jaxtribute._src.core.execution.eager import Eager
from jaxtribute._src.core.execution.overlay import Overlay
from jaxtribute._src.core.execution.row_gradients import differentiate_by_rows, overlaid_rows
from jaxtribute._src.core.values.policies.plain import PlainPolicy

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


class Remote(PlainPolicy):
    """Storage that counts as another process's."""

    remote = True


def remote(value: Any) -> jd.Variable:
    return jd.Variable.with_policy(value, Remote(None), name="table", strategy=jd.get_strategy())


def looked_up(table: jd.Variable, ids: Any, fetched: list[Any]) -> Any:
    executor: Any = contexts.current().executor

    def read(below: Any) -> Any:
        fetched.append(ids)
        return jnp.take(below.get(table), ids, axis=0)

    return overlaid_rows(executor, table, ids, read)


def by_rows(loss: Callable[[], Any], variables: list[jd.Variable]) -> tuple[float, list[Any]]:
    context = contexts.current()

    def call(overlay: Overlay) -> Any:
        with contexts.entered(contexts.Context(context.strategy, context.replica, overlay)):
            return loss(), None

    derivable: dict[jd.Variable, Any] = {
        variable: (Eager().get(variable), lambda value: (value, None)) for variable in variables
    }
    (value, _), (grads,) = differentiate_by_rows(_of_one, call, Eager(), derivable)
    return float(value), grads


@pytest.mark.parametrize("whole", [False, True])
def test_rows_alone_have_a_gradient_of_rows_and_what_is_also_read_whole_a_dense_one(whole: bool) -> None:
    table, weight = remote(TABLE), jd.Variable(2.0)
    ids = jnp.asarray([1, 3, 1])
    fetched: list[Any] = []

    def loss() -> Any:
        rows = looked_up(table, ids, fetched)
        more = jnp.sum(table.read_value() ** 2) if whole else jnp.float32(0)
        return weight * jnp.sum(rows**2) + more

    def plain(table: Any, weight: Any) -> Any:
        more = jnp.sum(table**2) if whole else jnp.float32(0)
        return weight * jnp.sum(table[ids] ** 2) + more

    value, (by_table, by_weight) = by_rows(loss, [table, weight])
    wanted, grads = jax.value_and_grad(plain, argnums=(0, 1))(jnp.asarray(TABLE), jnp.float32(2))
    assert value == wanted
    np.testing.assert_allclose(by_weight, grads[1])
    # What is read whole is there already: its rows are not fetched besides, and both ways to read it count.
    assert isinstance(by_table, jd.IndexedSlices) is not whole
    assert len(fetched) == (0 if whole else 1)
    dense = by_table if whole else jnp.zeros_like(TABLE).at[by_table.indices].add(by_table.values)
    np.testing.assert_allclose(dense, grads[0])


def test_two_tables_of_which_one_is_read_whole() -> None:
    one, other = remote(TABLE), remote(TABLE + 1)
    fetched: list[Any] = []

    def loss() -> Any:
        rows = looked_up(one, jnp.asarray([0]), fetched) * looked_up(other, jnp.asarray([2]), fetched)
        return jnp.sum(rows) + jnp.sum(other.read_value())

    _, (by_one, by_other) = by_rows(loss, [one, other])
    assert isinstance(by_one, jd.IndexedSlices)
    np.testing.assert_array_equal(by_one.values, TABLE[2:3] + 1)
    np.testing.assert_array_equal(by_other, np.ones_like(TABLE) + np.eye(4, dtype=np.float32)[2][:, None] * TABLE[:1])
    assert len(fetched) == 1
