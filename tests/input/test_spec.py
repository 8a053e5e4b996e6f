"""Specs of elements."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute.input.spec import array_spec, replica_spec, tree_spec
from jaxtribute.input.splitting import Shard
from jaxtribute.values.spec import PerReplicaSpec


def struct(*shape: int | None, dtype: object = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # pyright: ignore[reportArgumentType]


def test_dtypes_are_those_that_jax_would_hold() -> None:
    assert array_spec(np.zeros(2, np.int64)).dtype == jnp.int32
    assert array_spec(np.zeros(2, np.uint8)).dtype == np.uint8
    assert array_spec(jnp.zeros(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert array_spec(np.array([b"ab"])).dtype == np.dtype("S2")
    assert array_spec(np.array([None])).dtype == np.dtype(object)


def test_rows_vary_unless_they_are_static() -> None:
    tree = {"x": np.zeros((4, 3), np.float32), "s": np.zeros((), np.float32)}
    assert tree_spec(tree, static=False) == {"x": struct(None, 3), "s": struct()}
    assert tree_spec(tree, static=True) == {"x": struct(4, 3), "s": struct()}


def test_one_replica_has_plain_specs() -> None:
    assert replica_spec(struct(4, 3), Shard(), split=True) == struct(4, 3)


def test_a_divided_batch_has_static_rows() -> None:
    spec = replica_spec({"x": struct(8, 3)}, Shard(1, 0, 4), split=True)
    assert spec == {"x": PerReplicaSpec((struct(2, 3),) * 4)}
    assert spec["x"].shape == (2, 3)
    assert spec["x"].dtype == np.float32


def test_other_rows_are_unknown() -> None:
    for rows in (7, None):
        spec = replica_spec(struct(rows, 3), Shard(1, 0, 4), split=True)
        assert spec.shape == (None, 3)


def test_a_worker_describes_its_own_replicas() -> None:
    assert len(replica_spec(struct(8), Shard(2, 1, 4), split=True).components) == 2


def test_batches_of_a_replicas_own_are_not_cut() -> None:
    assert replica_spec(struct(8), Shard(1, 0, 4), split=False).shape == (8,)


def test_specs_are_values_that_print() -> None:
    spec = PerReplicaSpec((struct(1), struct(1)))
    assert spec == PerReplicaSpec((struct(1), struct(1)))
    assert len({spec, PerReplicaSpec((struct(1), struct(1)))}) == 1
    assert repr(spec).startswith("PerReplicaSpec(ShapeDtypeStruct(shape=(1,)")
    assert jax.tree.leaves({"x": spec}) == [spec]
