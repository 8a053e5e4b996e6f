"""What replicas without data give to reductions, and what comes back to them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxtribute as jd
from jaxtribute._src.core.collectives.in_replica import guarded, is_idle
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from replicas import mirrored

THREE = mirrored(3)
SUM, MEAN = ReduceOp.SUM, ReduceOp.MEAN
NAN = jnp.asarray([1.0, jnp.nan])


@pytest.mark.parametrize(
    ("op", "idle", "expected"),
    [(SUM, False, [1, np.nan]), (SUM, True, [1, 0]), (MEAN, False, [1, np.nan]), (MEAN, True, [0, 0])],
)
def test_contributions(op: ReduceOp, idle: bool, expected: list[float]) -> None:
    np.testing.assert_array_equal(reduction_of(op).kept(NAN, jnp.asarray(idle)), expected)


def test_integers_have_no_nan() -> None:
    ones = jnp.ones(2, jnp.int32)
    assert reduction_of(SUM).kept(ones, jnp.asarray(True)) is ones
    assert reduction_of(MEAN).kept(ones, jnp.asarray(True)).tolist() == [0, 0]


def on_three(fn: Any) -> Any:
    mapped = jax.shard_map(
        fn, mesh=THREE.extended.mesh.mesh, in_specs=(), out_specs=PartitionSpec("replica"), check_vma=False
    )
    return jax.jit(mapped)()


def test_who_is_idle() -> None:
    assert on_three(lambda: is_idle((0, 2), 3)[None]).tolist() == [True, False, True]


@pytest.mark.parametrize(("op", "expected"), [(SUM, [np.nan, 0, 2]), (MEAN, [np.nan, 0, 0])])
def test_cotangents(op: ReduceOp, expected: list[float]) -> None:
    """Replica 0 has data and a NaN, replicas 1 and 2 are idle with NaN and 2."""

    def fn() -> Any:
        weight = jnp.asarray([jnp.nan, jnp.nan, 2.0])[jax.lax.axis_index("replica")]
        return jax.grad(lambda x: guarded(x, op, (1, 2), 3) * weight)(jnp.float32(1))[None]

    np.testing.assert_array_equal(on_three(fn), expected)


def test_the_guard_is_the_identity_otherwise() -> None:
    def fn() -> Any:
        one = jnp.float32(3)
        value, tangent = jax.jvp(lambda x: guarded(x, SUM, (1,), 3), (one,), (one * 2,))
        return jnp.stack([value, tangent, *jax.vmap(lambda x: guarded(x, SUM, (1,), 3))(jnp.arange(2.0))])[None]

    np.testing.assert_array_equal(on_three(fn), [[3, 6, 0, 1]] * 3)
    assert float(guarded(jnp.float32(2), SUM, (1,), 3)) == 2


def test_replicas_idle_together_are_none() -> None:
    """Where nobody has data, nobody is left out."""
    empty = jd.PerReplica.from_host([np.zeros((0, 2), np.float32)] * 3, THREE.extended.mesh)
    total = THREE.run(lambda x: x.sum(), (empty,))
    assert total.idle == ()
    assert float(THREE.reduce("SUM", total, axis=None)) == 0
