"""Sums over the replicas as programs: trees, packs and messages."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxtribute._src.core.collectives.summation import (
    AutoSum,
    ExchangeSum,
    OneDeviceSum,
    PackedSum,
    Packs,
    Summation,
    TreeSum,
    tree_rounds,
)
from jaxtribute._src.core.jaxprs.making import equal
from jaxtribute._src.core.values.mesh import AXIS
from replicas import mirrored

SUMS: list[Summation] = [
    AutoSum(),
    AutoSum(0),
    PackedSum(Packs(0)),
    PackedSum(Packs(1)),
    PackedSum(Packs(bytes_per_pack=16)),
    TreeSum(Packs(1)),
    TreeSum(Packs(0)),
    OneDeviceSum(),
    OneDeviceSum(2),
    ExchangeSum(),
]


def on_replicas(replicas: int, fn: Any) -> Any:
    """`fn` of each replica's row of an array, its results stacked."""
    mesh = mirrored(replicas).extended.mesh.mesh

    def row(x: Any) -> Any:
        return jax.tree.map(lambda y: y[None], fn(x[0]))

    return jax.jit(
        jax.shard_map(row, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS), check_vma=False)
    )


@pytest.mark.parametrize("sums", SUMS, ids=str)
def test_every_replica_gets_the_sums(sums: Summation) -> None:
    x = jnp.arange(15.0).reshape(3, 5)
    results = on_replicas(3, lambda row: sums([row, row[:2], row[0], (row[1:3] * 2).astype(jnp.int32)], 3))(x)
    whole = np.arange(15.0).reshape(3, 5).sum(0)
    for result, wanted in zip(results, [whole, whole[:2], whole[0], whole[1:3] * 2], strict=True):
        np.testing.assert_array_equal(result, np.broadcast_to(wanted, result.shape))


def test_what_a_function_makes_of_the_arrays_is_differentiated_as_it_is() -> None:
    product = OneDeviceSum(0, lambda parts: parts[0] * parts[1])
    grads = on_replicas(2, jax.grad(lambda row: product([row], 2)[0].sum()))(jnp.asarray([[2.0], [5.0]]))
    np.testing.assert_array_equal(grads, [[10.0], [4.0]])  # of what both replicas get


@pytest.mark.optimized  # else nothing is compiled as one
@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("replicas", [8, 4, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "complex64", "float32"])
def test_exchanged_sums_are_equal_to_the_bit(replicas: int, dtype: str) -> None:
    rows = np.random.default_rng(0).normal(size=(replicas, 3000)) * 20
    x, factor = jnp.asarray(rows).astype(dtype), jnp.asarray(3.3337).astype(dtype)
    # Products that are summed: compiled as one, they would not be rounded before.
    (result,) = on_replicas(replicas, lambda row: ExchangeSum(0)([row * factor], replicas))(x)
    np.testing.assert_array_equal(result, np.broadcast_to(result[0], result.shape))
    wanted = np.asarray(x * factor).astype(np.complex64).sum(0)
    if dtype != "int8":  # which wraps around
        np.testing.assert_allclose(np.asarray(result[0]).astype(np.complex64), wanted, rtol=0.05, atol=5)


@pytest.mark.parametrize(
    ("replicas", "pair_bytes", "exchanged"), [(2, 2000, True), (2, 1000, False), (4, 2000, False), (3, 2000, False)]
)
def test_what_is_large_is_all_reduced(replicas: int, pair_bytes: int, exchanged: bool) -> None:
    sums = ExchangeSum(0, pair_bytes, most_bytes=1000)
    run = on_replicas(replicas, lambda row: sums([row], replicas))
    jaxpr = str(jax.make_jaxpr(run)(jnp.zeros((replicas, 300), jnp.float32)))
    assert ("ppermute" in jaxpr) == exchanged
    assert ("psum" in jaxpr) != exchanged


@pytest.mark.parametrize("sums", SUMS, ids=str)
def test_nothing_to_add(sums: Summation) -> None:
    assert sums([], 3) == []


@pytest.mark.parametrize("sums", SUMS, ids=str)
def test_adjoint_is_the_sum_of_the_cotangents(sums: Summation) -> None:
    def gradient(weight: Any) -> Any:
        return jax.grad(lambda x: (weight * sums([x], 3)[0]).sum())(jnp.ones(2, jnp.float32))

    result = on_replicas(3, gradient)(jnp.asarray([1.0, 2.0, 4.0]))
    np.testing.assert_array_equal(result, np.full((3, 2), 7.0))


def test_sums_are_told_apart() -> None:
    assert len({*SUMS, AutoSum(), TreeSum(Packs(1))}) == len(SUMS)


@given(st.integers(1, 70))
def test_a_tree_reaches_everyone_once(replicas: int) -> None:
    rounds = tree_rounds(replicas)
    sources = [source for pairs in rounds for source, _ in pairs]
    assert sorted(sources) == list(range(1, replicas))  # everyone but the root hands over exactly once
    held = {replica: {replica} for replica in range(replicas)}
    for pairs in rounds:
        targets = [target for _, target in pairs]
        assert len(set(targets)) == len(targets)
        for source, target in pairs:
            assert held[source].isdisjoint(held[target])
            held[target] |= held.pop(source)
    assert held == {0: set(range(replicas))}
    assert len(rounds) <= 2 * np.ceil(np.log2(max(replicas, 2)))


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["float32", "int8"])), max_size=12),
    number=st.integers(0, 4),
    limit=st.integers(0, 100),
)
@example(sizes=[(2, "int8"), (3, "int8"), (1, "int8")], number=0, limit=5)
def test_packs_hold_every_array_once(sizes: list[tuple[int, str]], number: int, limit: int) -> None:
    arrays = [np.zeros(size, dtype) for size, dtype in sizes]
    groups = Packs(number, limit).groups(arrays)
    assert sorted(index for group in groups for index in group) == list(range(len(arrays)))
    for group in groups:
        assert len({arrays[index].dtype for index in group}) == 1
        if limit and len(group) > 1:
            assert sum(arrays[index].nbytes for index in group) <= limit
        if not limit and not number:
            assert len(group) == 1
    if number and not limit:
        kinds = len({array.dtype for array in arrays})
        assert len(groups) <= 2 * number + kinds
    if limit:
        for group, following in itertools.pairwise(groups):
            filled = sum(arrays[index].nbytes for index in (*group, following[0]))
            assert filled > limit or arrays[group[0]].dtype != arrays[following[0]].dtype


def test_packs_apply_a_collective_to_each_array() -> None:
    arrays = [jnp.arange(3.0), jnp.arange(4), jnp.arange(2.0) + 7, jnp.float32(1.0)]
    for packs in (Packs(0), Packs(1), Packs(2), Packs(1, 8)):
        for array, result in zip(arrays, packs.apply(lambda x: x + x, arrays), strict=True):
            np.testing.assert_array_equal(result, np.asarray(array) * 2)
            assert result.shape == array.shape


class TestEqual:
    """The identity that marks a value as equal on all replicas."""

    def test_is_the_identity(self) -> None:
        np.testing.assert_array_equal(equal(jnp.arange(3)), np.arange(3))
        np.testing.assert_array_equal(jax.jit(equal)(jnp.arange(3)), np.arange(3))

    def test_has_a_gradient(self) -> None:
        assert jax.grad(lambda x: equal(x) * 3)(jnp.float32(2.0)) == 3
        assert jax.jvp(equal, (jnp.float32(2.0),), (jnp.float32(5.0),)) == (2, 5)

    def test_works_under_vmap(self) -> None:
        np.testing.assert_array_equal(jax.vmap(equal)(jnp.arange(4).reshape(2, 2)), [[0, 1], [2, 3]])
