"""Specs of elements."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.input.spec import array_spec, replica_spec, tree_spec
from jaxtribute._src.input.splitting import Shard
from jaxtribute._src.values.spec import ArraySpec, PerReplicaSpec
from jaxtribute.errors import ArgumentTypeError


def struct(*shape: int | None, dtype: object = np.float32) -> ArraySpec:
    return ArraySpec(shape, dtype)


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
    assert repr(spec).startswith("PerReplicaSpec(ArraySpec((1,), float32)")
    assert jax.tree.leaves({"x": spec}) == [spec]


def test_a_spec_takes_names_of_dtypes_and_random_keys() -> None:
    assert ArraySpec([2, None], "bfloat16") == ArraySpec((2, None), jnp.bfloat16)  # pyright: ignore[reportArgumentType]
    key = jax.random.key(0)
    assert ArraySpec((), key.dtype).dtype == key.dtype
    assert repr(ArraySpec((None, 3), np.int32)) == "ArraySpec((None, 3), int32)"


@pytest.mark.parametrize(("shape", "dtype"), [((1.5,), np.float32), (3, np.float32), ((3,), "floaty"), ((-1,), "int8")])
def test_what_describes_no_array_is_refused(shape: Any, dtype: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="HINT"):
        ArraySpec(shape, dtype)


def test_a_spec_is_enough_for_jax_to_trace_a_function() -> None:
    def double(x: Any) -> Any:
        return x * 2

    assert jax.eval_shape(double, ArraySpec((2, 3), np.float32)).shape == (2, 3)
