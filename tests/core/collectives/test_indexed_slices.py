"""`IndexedSlices` are summed and gathered in replicas; elsewhere, where they would be mixed up, refused by name."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from replicas import each_executor, execute, fraction, here, ident, mirrored


def slices() -> jd.IndexedSlices:
    """Replica r gives the rows r and r + 1 of a table, each r + 1 in all places."""
    first = jnp.asarray(ident(), jnp.int32)
    return jd.IndexedSlices(jnp.ones((2, 3)) * (fraction() + 1), jnp.stack([first, first + 1]), (4, 3))


@each_executor
@pytest.mark.parametrize(("op", "by"), [("SUM", 1), ("MEAN", 3)])
def test_the_sum_is_the_rows_of_all(executor: str, op: str, by: int) -> None:
    def replica() -> Any:
        found = here().all_reduce(op, {"rows": slices(), "dense": fraction()})
        assert found["rows"].dense_shape == (4, 3)
        return found["rows"].values[:, 0], found["rows"].indices, found["dense"]

    values, indices, dense = execute(executor, mirrored(3), replica)
    np.testing.assert_allclose(values.values[0], np.repeat([1, 2, 3], 2) / by, rtol=1e-6)
    assert indices.values[0].tolist() == [0, 1, 1, 2, 2, 3]
    assert float(dense.values[0]) == 3 / by


@each_executor
def test_all_gather_joins_the_rows(executor: str) -> None:
    found = execute(executor, mirrored(2), lambda: here().all_gather(slices(), axis=0).indices)
    assert found.values[1].tolist() == [0, 1, 1, 2]
    with pytest.raises(ArgumentError, match=r"IndexedSlices along axis 1.*HINT"):
        execute(executor, mirrored(2), lambda: here().all_gather(slices(), axis=1).indices)


def test_the_sum_can_be_scattered() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        table = jd.Variable(jnp.zeros((4, 3)), aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)
    strategy.run(lambda: table.scatter_add(here().all_reduce("SUM", slices())))
    np.testing.assert_array_equal(table.numpy()[:, 0], [1, 3, 2, 0])


LOOSE = jd.IndexedSlices(np.ones((2, 3), np.float32), np.arange(2))
REFUSED: dict[str, Callable[[jd.Strategy, Any], Any]] = {
    "gather": lambda strategy, given: strategy.gather(given, axis=0),
    "reduce": lambda strategy, given: strategy.reduce("SUM", given, axis=None),
    "reduce_to": lambda strategy, given: strategy.extended.reduce_to("SUM", given, "CPU:0"),
    "CrossDeviceOps": lambda strategy, given: jd.ReductionToOneDevice().reduce("SUM", given, "CPU:0"),
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("plain", [True, False])
def test_across_replicas_they_are_refused_by_name(act: Callable[[jd.Strategy, Any], Any], plain: bool) -> None:
    strategy = mirrored(2)
    given = LOOSE if plain else strategy.run(slices)
    with pytest.raises(ArgumentTypeError, match=r"IndexedSlices.*(?s:.)*HINT: .*all_reduce"):
        act(strategy, given)


def test_they_do_not_come_out_of_a_compiled_function() -> None:
    strategy = mirrored(2)
    with pytest.raises(ArgumentTypeError, match=r"IndexedSlices.*(?s:.)*HINT"):
        jd.function(lambda: strategy.run(slices))()
    merged = jd.function(
        lambda: strategy.run(lambda: here().merge_call(lambda s, x: s.reduce("SUM", x, axis=None), (slices(),)))
    )
    with pytest.raises(ArgumentTypeError, match=r"IndexedSlices.*(?s:.)*HINT"):
        merged()
