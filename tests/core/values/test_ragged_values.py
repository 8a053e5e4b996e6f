"""Per-replica values of differing shapes: what they hold, and that nobody sees the padding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.values.distributed import idle_replicas
from ragged import UNEVEN, deal, rows
from replicas import mirrored

FOUR = mirrored(4)
MESH = FOUR.extended.mesh
shape_lists = st.integers(1, 3).flatmap(
    lambda rank: st.lists(st.lists(st.integers(0, 4), min_size=rank, max_size=rank), min_size=4, max_size=4)
)


@settings(max_examples=20, derandomize=True)
@given(shape_lists, st.booleans())
def test_components_come_back_as_they_were(shapes: list[list[int]], on_host: bool) -> None:
    parts = [rows(*shape, seed=i) for i, shape in enumerate(shapes)]
    make = jd.PerReplica.from_host if on_host else jd.PerReplica.from_parts
    value = make(parts, MESH)
    assert value.is_ragged == (len({part.shape for part in parts}) > 1)
    assert not value.is_tuple
    assert value.component_ndim == len(shapes[0])
    for got, part, device in zip(value.values, parts, MESH.devices, strict=True):
        np.testing.assert_array_equal(got, part)
        assert got.devices() == {device}
    if value.is_ragged:
        assert value.shapes == tuple(part.shape for part in parts)
        longest = max(part.shape[0] for part in parts)
        assert {shard.data.shape[0] for shard in value.data.addressable_shards} == {longest}


def test_the_repr_shows_components_without_padding() -> None:
    value = jd.PerReplica.from_host([np.ones(2, np.float32), np.ones(1, np.float32)] * 2, MESH)
    assert "  1: Array([1.], dtype=float32)" in repr(value)
    assert "  2: Array([1., 1.], dtype=float32)" in repr(value)


def test_inside_a_trace() -> None:
    x = rows(5, 2)
    value = deal(FOUR, x, UNEVEN)
    parts = jax.jit(lambda value: value.values)(value)
    for part, expected in zip(parts, np.split(x, np.cumsum(UNEVEN)[:-1]), strict=True):
        np.testing.assert_array_equal(part, expected)
    empty = jd.PerReplica.from_host([np.zeros((n, 0), np.float32) for n in UNEVEN], MESH)
    assert [part.shape for part in jax.jit(lambda value: value.values)(empty)] == [(2, 0), (2, 0), (1, 0), (0, 0)]


def test_they_are_pytrees_that_keep_their_shapes() -> None:
    value = deal(FOUR, rows(5, 2), UNEVEN)
    doubled = jax.tree.map(lambda x: x * 2, value)
    assert doubled.shapes == value.shapes
    assert jax.tree.structure(doubled) == jax.tree.structure(value)
    assert jax.tree.structure(value) != jax.tree.structure(deal(FOUR, rows(5, 2), (1, 2, 2, 0)))


def split(*counts: int, columns: int = 2) -> jd.PerReplica:
    return deal(FOUR, rows(sum(counts), columns), counts)


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ([split(2, 2, 1, 0)], (3,)),
        ([split(1, 0, 0, 0)], (1, 2, 3)),
        ([split(0, 2, 0, 1)], (0, 2)),
        ([split(2, 2, 2, 2)], ()),
        ([split(2, 2, 1, 1)], ()),
        ([split(2, 1, 1, 0), split(1, 2, 0, 0)], (3,)),
        ([split(2, 1, 1, 0), split(1, 0, 1, 2)], ()),
        ([split(2, 2, 1, 0), split(1, 1, 1, 1), jnp.ones(2), 3], (3,)),
        ([split(0, 0, 0, 0)], ()),
        ([], ()),
    ],
)
def test_who_is_idle(values: list[Any], idle: tuple[int, ...]) -> None:
    assert idle_replicas(values) == idle


def test_results_remember_who_was_idle() -> None:
    count = FOUR.run(lambda x: jnp.float32(x.shape[0]), (split(2, 2, 1, 0),))
    assert count.idle == (3,)  # pyright: ignore[reportAttributeAccessIssue]
    assert not count.is_ragged  # pyright: ignore[reportAttributeAccessIssue]
    assert idle_replicas([count]) == (3,)
    assert idle_replicas([count, split(1, 1, 0, 0)]) == (3,)
    assert float(FOUR.reduce("MEAN", count, axis=None)) == pytest.approx(5 / 3)
