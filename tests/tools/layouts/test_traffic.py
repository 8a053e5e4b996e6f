"""Bytes that a compiled program moves, from its text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtribute._src.tools.layouts.traffic import bytes_moved

REDUCED = "  %r = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups=GROUPS, to_apply=%add"


def entry(*lines: str) -> str:
    return "\n".join(["ENTRY %main (x: f32[8]) -> f32[8] {", *lines, "}"])


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,2]<=[4]", 2),
        ("[1,4]<=[4]", 4),
        ("{}", 4),
        ("mesh['a'=2,'b'=2] {'b'}", 2),
        ("mesh['a'=2,'b'=2] {'a','b'}", 4),
        ("mesh['a'=4] {'a':(2)2}", 2),
        ("{{0},{1},{2},{3}}", 1),
    ],
)
def test_a_sum_goes_round_its_group_twice(groups: str, size: int) -> None:
    text = entry(REDUCED.replace("GROUPS", groups))
    assert bytes_moved(text, 4) == 2 * 8 * 4 * 4 * (size - 1) / size


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("  %g = f32[8]{0} all-gather(%x), replica_groups={{0,1}}, dimensions={0}", 16),
        ("  %s = f32[4]{0} reduce-scatter(%x), replica_groups={{0,1}}, dimensions={0}", 16),
        ("  %p = f32[4]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}", 16),
        ("  %t = (f32[4]{0}, f32[4]{0}) all-to-all(%x, %y), replica_groups={{0,1}}", 16),
        ("  %a = f32[8]{0} add(%x, %y)", 0),
    ],
)
def test_the_other_collectives(line: str, sent: float) -> None:
    assert bytes_moved(entry(line), 2) == sent


def test_a_loop_counts_as_often_as_it_turns() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("a",), ()))

    def compiled(length: int) -> str:
        def once(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=length)[0]

        x, w = (jax.ShapeDtypeStruct((n, 8), jnp.float32, sharding=s) for n, s in ((4, whole), (8, split)))
        return jax.jit(once, out_shardings=whole).lower(x, w).compile().as_text() or ""

    few, many = bytes_moved(compiled(5), 2), bytes_moved(compiled(25), 2)
    assert few >= 5 * 4 * 8 * 4
    assert many == pytest.approx(5 * few, rel=0.25)
