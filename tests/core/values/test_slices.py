"""Slices of arrays inside one replica's program: cut, put together again, differentiated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxtribute._src.core.execution.capture import varying_outputs
from jaxtribute._src.core.values.slices import Cut, alike, axis_in_tiles
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


@pytest.mark.slow
@settings(max_examples=8)
@given(
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    replicas=st.sampled_from([2, 3]),
    unit=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_pieces_join_to_the_whole(shape: tuple[int, ...], replicas: int, unit: int, data: Any) -> None:
    divisible = [axis for axis, size in enumerate(shape) if size % replicas == 0]
    cut = Cut(shape, replicas, data.draw(st.sampled_from([None, *divisible])), unit)
    array = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape) + 1

    def fn(x: Any) -> Any:
        piece = cut.piece_of(x)
        assert piece.shape == cut.piece_shape
        return cut.joined(piece), cut.whole(piece), cut.scattered(x)

    joined, whole, scattered = local(fn, array, replicas=replicas)
    for row in (*joined, *whole):
        np.testing.assert_array_equal(row, array)
    again = np.concatenate(scattered, axis=cut.axis or 0)
    assert again.shape == cut.stored_shape
    np.testing.assert_array_equal(cut.value(again), array * replicas)
    np.testing.assert_array_equal(cut.value(cut.stored(array)), array)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((784, 2048), 1),  # 98 rows are no whole tiles, 256 columns are
        ((1024, 2048), 0),
        ((50257, 768), 1),  # rows cannot be divided, columns can, though not into whole tiles
        ((50000, 64), 0),  # neither is whole tiles
        ((3, 3, 512, 512), 2),
        ((2048, 3, 2048), 0),  # the first of three axes is not tiled
        ((3, 3), None),
        ((0, 16), 1),
        ((4096,), None),
        ((), None),
    ],
)
def test_the_axis_of_whole_tiles(shape: tuple[int, ...], axis: int | None) -> None:
    assert axis_in_tiles(shape, 8) == axis


def test_gradients_of_the_slice_and_of_the_probe() -> None:
    array = jnp.arange(3.0)

    def fn(x: Any) -> Any:
        cut = Cut((3,), 2)
        piece = cut.piece_of(x)
        scale = jax.lax.axis_index("replica").astype(jnp.float32) + 1

        def loss(piece: Any, probe: Any) -> Any:
            return (cut.whole(piece, probe) ** 2).sum() * scale

        both = jax.grad(loss, (0, 1))(piece, jnp.zeros(3))
        again = jax.grad(lambda p: jax.grad(loss, 1)(p, jnp.zeros(3)).sum())(piece)
        return *both, jax.grad(loss, 1)(piece, jnp.zeros(3)), again

    of_piece, of_probe, alone, again = local(fn, array)
    assert of_piece.tolist() == [[0, 6], [12, 0]]  # the sum over the replicas
    assert of_probe.tolist() == alone.tolist() == [[0, 2, 4], [0, 4, 8]]  # each replica's own
    assert again.tolist() == [[6, 6], [6, 0]]


def test_what_must_be_alike() -> None:
    marked = jax.make_jaxpr(jax.jit(lambda x: alike(x, "v:0")))(1.0).jaxpr
    assert varying_outputs(marked, [False]) == [False]
    with pytest.raises(VariableError, match="v:0 would get a different value"):
        varying_outputs(marked, [True])
    assert alike(jnp.float32(2), "v:0") == 2
    assert jax.jit(jax.grad(lambda x: alike(x * x, "v:0")))(3.0) == 6


def test_a_whole_is_the_same_on_every_replica() -> None:
    jaxpr = jax.make_jaxpr(lambda x: Cut((4,), 2).whole(x), axis_env=[("replica", 2)])(jnp.ones(2)).jaxpr
    assert varying_outputs(jaxpr, [True]) == [False]
