from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec
from jax.test_util import check_grads

from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import AXIS
from replicas import mirrored

DTYPES = ["bool", "int32", "bfloat16", "float32"]


def on_replicas(replicas: int, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fn` of each replica's row; the results, equal on all or not, stacked."""
    mesh = mirrored(replicas).extended.mesh.mesh

    def row(x: Any) -> Any:
        return jax.tree.map(lambda y: jnp.asarray(y)[None], fn(x[0]))

    return jax.jit(
        jax.shard_map(row, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS), check_vma=False)
    )


def rows(replicas: int, dtype: str = "float32") -> Any:
    return (jnp.arange(replicas * 6).reshape(replicas, 2, 3) % 5).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(ReduceOp))
def test_all_reduce(dtype: str, op: ReduceOp) -> None:
    x = rows(3, dtype)
    result = on_replicas(3, lambda row: in_replica.all_reduce([row, row[0, 0]], op, 3))(x)
    wide = np.asarray(x).astype(np.float32)
    expected = wide.sum(0) if op is ReduceOp.SUM else wide.mean(0)
    kind = {"bool": "int32", "int32": "int32"}.get(dtype, dtype) if op is ReduceOp.SUM else dtype
    kind = "float32" if op is ReduceOp.MEAN and dtype in ("bool", "int32") else kind
    for part, whole in zip(result, (expected, expected[0, 0]), strict=True):
        assert part.dtype == kind
        for replica in np.asarray(part).astype(np.float32):
            np.testing.assert_allclose(replica, whole, rtol=1e-2 if dtype == "bfloat16" else 1e-6)


def test_all_gather_and_rows() -> None:
    x = rows(2)
    for axis in (0, 1):
        gathered = on_replicas(2, lambda row, axis=axis: in_replica.all_gather(row, axis))(x)
        np.testing.assert_array_equal(gathered[1], np.concatenate(list(np.asarray(x)), axis))
    np.testing.assert_array_equal(on_replicas(2, in_replica.rows)(x)[0], x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("replica", [0, 2])
def test_from_replica(dtype: str, replica: int) -> None:
    x = rows(3, dtype)
    result = on_replicas(3, lambda row: in_replica.from_replica(row, replica))(x)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.stack([np.asarray(x[replica])] * 3))


def test_from_replica_ignores_nan_elsewhere() -> None:
    x = jnp.asarray([[1.0], [np.nan]])
    assert on_replicas(2, lambda row: in_replica.from_replica(row, 0))(x).tolist() == [[1.0], [1.0]]


@settings(max_examples=12)
@given(
    op=st.sampled_from(list(ReduceOp)),
    axes=st.sampled_from([None, (0,), (1,), (0, 1)]),
    uneven=st.booleans(),
)
def test_reduce_local(op: ReduceOp, axes: tuple[int, ...] | None, uneven: bool) -> None:
    x = rows(2)
    result = on_replicas(2, lambda row: in_replica.reduce_local(row, op, axes, 2, (), uneven))(x)
    over = (0, *(axis + 1 for axis in axes or ()))
    expected = np.asarray(x).sum(over) if op is ReduceOp.SUM else np.asarray(x).mean(over)
    np.testing.assert_allclose(result[0], expected, rtol=1e-6)
    np.testing.assert_allclose(result[1], expected, rtol=1e-6)


@pytest.mark.parametrize("op", list(ReduceOp))
def test_the_gradient_of_all_reduce_is_all_reduce(op: ReduceOp) -> None:
    weights = jnp.asarray([1.0, 3.0])

    def losses(x: Any) -> Any:
        def loss(row: Any) -> Any:
            (total,) = in_replica.all_reduce([row * row], op, 2)
            return total.sum() * weights[jax.lax.axis_index(AXIS)]

        return on_replicas(2, loss)(x)

    def gradients(x: Any) -> Any:
        def loss(row: Any) -> Any:
            (total,) = in_replica.all_reduce([row * row], op, 2)
            return total.sum() * weights[jax.lax.axis_index(AXIS)]

        return on_replicas(2, jax.grad(loss))(x)

    x = rows(2)
    # Each replica's loss is its own; together they are the sum.
    check_grads(lambda x: losses(x).sum(), (x,), order=1, modes=["rev"], rtol=1e-2)
    np.testing.assert_allclose(gradients(x), jax.grad(lambda x: losses(x).sum())(x), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "result"), [("int32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16")])
def test_means_divide(dtype: str, result: str) -> None:
    value = reduction_of(ReduceOp.MEAN).finish(jnp.asarray(3, dtype), 2)
    assert value.dtype == result
    assert float(value) == 1.5


def test_sums_count_booleans() -> None:
    assert reduction_of(ReduceOp.SUM).prepared(True).dtype == jnp.int32
    assert reduction_of(ReduceOp.SUM).prepared(jnp.ones(2, jnp.int8)).dtype == jnp.int8


def test_idle_replicas_count_for_nothing() -> None:
    x = jnp.asarray([[1.0, 2.0], [np.nan, 7.0], [5.0, np.nan]])
    (mean,) = on_replicas(3, lambda row: in_replica.all_reduce([row], ReduceOp.MEAN, 3, idle=(1, 2)))(x)
    (total,) = on_replicas(3, lambda row: in_replica.all_reduce([row], ReduceOp.SUM, 3, idle=(1, 2)))(x)
    assert mean[0].tolist() == [1.0, 2.0]
    assert total[2].tolist() == [6.0, 9.0]
