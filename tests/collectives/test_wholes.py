"""Slices of arrays inside one replica's program: cut, put together again, differentiated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxtribute._src.collectives import wholes
from jaxtribute._src.execution.inference import varying_outputs
from jaxtribute.errors import VariableError
from replicas import mirrored


def local(fn: Any, *arrays: Any, replicas: int = 2) -> list[Any]:
    """What each replica gets from `fn(*arrays)`, of arrays that all of them hold."""
    mesh = mirrored(replicas).extended.mesh.mesh
    call = jax.shard_map(
        lambda *arrays: jax.tree.map(lambda x: x[None], fn(*arrays)),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec("replica"),
        check_vma=False,
    )
    return jax.tree.leaves(jax.jit(call)(*arrays))


@settings(max_examples=8)
@given(shape=st.lists(st.integers(1, 4), max_size=3).map(tuple), replicas=st.sampled_from([2, 3]))
def test_slices_join_to_the_whole(shape: tuple[int, ...], replicas: int) -> None:
    array = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) + 1

    def fn(x: Any) -> Any:
        piece = wholes.slice_of(x, replicas)
        assert piece.shape == (wholes.slice_size(x.size, replicas),)
        return wholes.joined(piece, shape), wholes.whole(piece, shape, replicas), wholes.scattered(x, replicas)

    joined, whole, scattered = local(fn, array, replicas=replicas)
    for row in (*joined, *whole):
        np.testing.assert_array_equal(row, array)
    np.testing.assert_array_equal(scattered.ravel()[: array.size], array.ravel() * replicas)


def test_gradients_of_the_slice_and_of_the_probe() -> None:
    array = jnp.arange(3.0)

    def fn(x: Any) -> Any:
        piece = wholes.slice_of(x, 2)
        scale = jax.lax.axis_index("replica").astype(jnp.float32) + 1

        def loss(piece: Any, probe: Any) -> Any:
            return (wholes.whole(piece, (3,), 2, probe) ** 2).sum() * scale

        both = jax.grad(loss, (0, 1))(piece, jnp.zeros(3))
        again = jax.grad(lambda p: jax.grad(loss, 1)(p, jnp.zeros(3)).sum())(piece)
        return *both, jax.grad(loss, 1)(piece, jnp.zeros(3)), again

    of_piece, of_probe, alone, again = local(fn, array)
    assert of_piece.tolist() == [[0, 6], [12, 0]]  # the sum over the replicas
    assert of_probe.tolist() == alone.tolist() == [[0, 2, 4], [0, 4, 8]]  # each replica's own
    assert again.tolist() == [[6, 6], [6, 0]]


def test_what_must_be_alike() -> None:
    marked = jax.make_jaxpr(jax.jit(lambda x: wholes.alike(x, "v:0")))(1.0).jaxpr
    assert varying_outputs(marked, [False]) == [False]
    with pytest.raises(VariableError, match="v:0 would get a different value"):
        varying_outputs(marked, [True])
    assert wholes.alike(jnp.float32(2), "v:0") == 2
    assert jax.jit(jax.grad(lambda x: wholes.alike(x * x, "v:0")))(3.0) == 6


def test_a_whole_is_the_same_on_every_replica() -> None:
    jaxpr = jax.make_jaxpr(lambda x: wholes.whole(x, (4,), 2), axis_env=[("replica", 2)])(jnp.ones(2)).jaxpr
    assert varying_outputs(jaxpr, [True]) == [False]
