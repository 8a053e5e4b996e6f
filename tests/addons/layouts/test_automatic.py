"""Layouts by shape, before a program is known."""

from __future__ import annotations

import jax
import pytest

from jaxtribute._src.addons.layouts.automatic import layout_by_shape, split_at
from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh


@pytest.mark.parametrize(
    ("group", "shape", "layout"),
    [
        ({"model": 2}, (4, 8), (None, "model")),
        ({"model": 2}, (8, 4), ("model",)),
        ({"model": 2}, (8, 8), (None, "model")),
        ({"model": 2}, (9, 4, 7), (None, "model")),
        ({"model": 2}, (9, 7), ()),
        ({"model": 2}, (), ()),
        ({"model": 2}, (0, 3), ()),
        ({"model": 2, "sequence": 2}, (6,), ("model",)),
        ({"rows": 2}, (6,), ("rows",)),
        ({"rows": 2, "columns": 2}, (6, 8), (None, ("rows", "columns"))),
    ],
)
def test_the_longest_axis_that_divides_is_split(group: dict[str, int], shape: tuple[int, ...], layout: Layout) -> None:
    mesh = ReplicaMesh(jax.devices()[:4], group=group)
    assert layout_by_shape(shape, mesh) == layout


def test_no_axis_is_the_whole_array() -> None:
    mesh = ReplicaMesh(jax.devices()[:2], group={"model": 2})
    assert split_at(None, mesh) == ()
    assert split_at(2, mesh) == (None, None, "model")
