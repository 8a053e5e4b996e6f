"""Sparse arrays in reductions and gathers: their indices are not added up."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import jaxtribute as jd
from jaxtribute.errors import ArgumentTypeError


@pytest.fixture(scope="module")
def two() -> jd.Strategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1"])


def here() -> jd.ReplicaContext:
    context = jd.get_replica_context()
    assert context is not None
    return context


def one_row() -> Any:
    """A sparse array of shape (3, 2) with one row, where and what depends on the replica."""
    replica = jnp.asarray(here().replica_id_in_sync_group, jnp.int32)
    row = (replica + 1).astype(jnp.float32) * jnp.ones((1, 2), jnp.float32)
    return sparse.BCOO((row, replica.reshape(1, 1)), shape=(3, 2))


def run(strategy: jd.Strategy, fn: Callable[[], Any], compiled: bool) -> Any:
    return jd.function(lambda: strategy.run(fn))() if compiled else strategy.run(fn)


@pytest.mark.parametrize("compiled", [True, False])
def test_replicas_reduce_and_gather_them_as_dense_ones(two: jd.Strategy, compiled: bool) -> None:
    def step() -> Any:
        context = here()
        nest = {"matrix": one_row(), "scalar": jnp.float32(1)}
        return context.all_reduce("SUM", nest), context.all_reduce("MEAN", one_row()), context.all_gather(one_row(), 0)

    total, mean, gathered = run(two, step, compiled)
    first = two.experimental_local_results((total, mean, gathered))[0]
    np.testing.assert_array_equal(first[0]["matrix"], [[1, 1], [2, 2], [0, 0]])
    assert first[0]["scalar"] == 2
    np.testing.assert_array_equal(first[1], [[0.5, 0.5], [1, 1], [0, 0]])
    np.testing.assert_array_equal(first[2], [[1, 1], [0, 0], [0, 0], [0, 0], [2, 2], [0, 0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda strategy, value: strategy.reduce("SUM", [value], axis=None),
        lambda strategy, value: strategy.reduce("MEAN", value, axis=0),
        lambda strategy, value: strategy.gather({"a": value}, axis=0),
        lambda strategy, value: strategy.extended.reduce_to("SUM", value, "CPU:0"),
    ],
)
def test_a_strategy_refuses_them(two: jd.Strategy, call: Callable[[jd.Strategy, Any], Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"was given BCOO.*HINT: return matrix.todense\(\)"):
        call(two, two.run(one_row))


def test_replicas_that_merge_them_are_told(two: jd.Strategy) -> None:
    def step() -> Any:
        merge = lambda strategy, value: strategy.extended.reduce_to("MEAN", value, "CPU:0")  # noqa: E731
        return here().merge_call(merge, args=(one_row(),))

    with pytest.raises(ArgumentTypeError, match="a reduction or broadcast was given BCOO"):
        two.run(step)
