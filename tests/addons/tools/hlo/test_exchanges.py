"""Collectives, the bytes that they move, and passes over memory in the text of programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtribute._src.addons.tools.hlo.exchanges import Collective, bytes_moved, collectives
from jaxtribute._src.addons.tools.hlo.work import passes

LINES = {
    "  %all-reduce.1 = (f32[64,256]{1,0}, f32[]) all-reduce(%dot, %b), channel_id=1": Collective(
        "all-reduce", (65536, 4)
    ),
    "  ROOT %ag = bf16[8,4]{1,0} all-gather(%x), dimensions={0}": Collective("all-gather", (64,)),
    "  %s = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), dimensions={0}": Collective(
        "all-gather", (32,), asynchronous=True
    ),
    "  %r = f32[16]{0} all-reduce-start(%x), channel_id=2": Collective("all-reduce", (64,), asynchronous=True),
    "  %r = f64[2,3]{1,0} reduce-scatter(%x), dimensions={0}": Collective("reduce-scatter", (96,)),
    '  %r = f32[16]{0} all-reduce-start(%x), backend_config={"is_sync":true}': Collective("all-reduce", (64,)),
    "  %s = f32[4]{0} reduce-scatter(%x), replica_groups=[1,4]<=[4]": Collective(
        "reduce-scatter", (64,), groups=((0, 1, 2, 3),)
    ),
    "  %p = pred[8]{0} collective-permute(%x)": Collective("collective-permute", (8,)),
    "  %p = (f32[24]{0:T(128)}, f32[24]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x)": Collective(
        "collective-permute", (96,), True
    ),
    "  %p = ((f32[4], s8[2]), (f32[4], s8[2]), u32[], s32[]) collective-permute-start(%x, %y)": Collective(
        "collective-permute", (16, 2), True
    ),
    "  %a = f8e4m3fn[10]{0} all-to-all(%x)": Collective("all-to-all", (10,)),
}


@pytest.mark.parametrize(("line", "expected"), list(LINES.items()))
def test_each_kind(line: str, expected: Collective) -> None:
    assert collectives(line, 2) == (expected,)
    assert expected.nbytes == sum(expected.parts)


def test_one_that_a_tpu_runs_beside_several_fusions_counts_once() -> None:
    part = '  %ag.{} = f32[64]{{0}} all-gather(%p), channel_id=1, frontend_attributes={{chain_id="0"}}\n'
    text = part.format(1) + part.format(2) + "  %ag.3 = f32[64]{0} all-gather(%p), channel_id=1\n"
    assert collectives(text, 2) == (Collective("all-gather", (256,), True), Collective("all-gather", (256,)))


def test_what_is_none() -> None:
    text = (
        "%done = f32[8] all-gather-done(%s)\n%f = f32[8] fusion(%all-reduce.1), kind=kLoop\n%g = f32[8] gather(%x, %y)"
    )
    assert collectives(text, 2) == ()


def test_those_of_a_real_program() -> None:
    mesh = jax.make_mesh((4,), ("r",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    program = jax.jit(
        jax.shard_map(
            lambda x: (jax.lax.psum(x, "r"), jax.lax.all_gather(x, "r", tiled=True)),
            mesh=mesh,
            in_specs=jax.P("r"),
            out_specs=jax.P(),
            check_vma=False,
        )
    )
    text = program.lower(jnp.asarray(np.zeros(8, np.float32))).compile().as_text()
    assert text is not None
    found = collectives(text, 4)
    assert sorted((one.kind, one.nbytes) for one in found) == [("all-gather", 32), ("all-reduce", 8)]


TEXT = """
HloModule a

%with_a_product (p: f32[8,4]) -> f32[8,8] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %d = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}
}

%sum (p: f32[8,8]) -> f32[8] {
  ROOT %r = f32[8]{0} reduce(%p, %zero), dimensions={1}
}

ENTRY %main (a: f32[8,4], b: s32[8]) -> (f32[8], f32[8]) {
  %a = f32[8,4]{1,0} parameter(0), sharding={replicated}
  %b = s32[8]{0} parameter(1)
  %first = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%with_a_product
  %second = f32[8,8]{1,0} dot(%first, %first), lhs_contracting_dims={1}
  %summed = f32[8]{0} fusion(%second), kind=kLoop, calls=%sum
  %all-reduce.1 = (f32[8]{0}, f32[]) all-reduce(%summed, %zero), channel_id=1
  %part = f32[8]{0} get-tuple-element(%all-reduce.1), index=0
  %both = (f32[8]{0}, f32[8]{0}) fusion(%part, /*index=1*/%b), kind=kLoop, calls=%other
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%part, %part)
}
"""


def test_passes_are_what_is_left() -> None:
    assert passes(TEXT) == (32 + 256, 64 + 32 + 32)


def test_the_passes_of_a_real_program() -> None:
    text = jax.jit(lambda x, w: (x + 1.0) @ w).lower(np.ones((64, 32), np.float32), np.ones((32, 16), np.float32))
    assert passes(text.compile().as_text() or "") in {(2 * 64 * 32 * 4,), ()}, "or it is joined with the product"


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
    ("written", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2),)),
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3),)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4),)),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5),)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", ((0, 4),)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ((0, 4),)),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", ((0, 2),)),
        ("replica_groups={}", ()),
        ("source_target_pairs={{0,1},{1,0},{3,2}}", ((0, 1), (1, 0), (3, 2))),
    ],
)
def test_who_takes_part(written: str, groups: tuple[tuple[int, ...], ...]) -> None:
    (found,) = collectives(f"  %r = f32[8,4]{{1,0}} all-reduce(%x), channel_id=1, {written}, to_apply=%add", 8)
    assert found.groups == groups


@pytest.mark.parametrize(("axes", "group"), [(("a",), (0, 4)), (("b",), (0, 1, 2, 3))])
def test_who_takes_part_in_a_real_program(axes: tuple[str, ...], group: tuple[int, ...]) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))

    def summed(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, axes)

    split, whole = PartitionSpec("a", "b"), PartitionSpec()
    program = jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False))
    text = program.lower(jax.ShapeDtypeStruct((8, 8), jnp.float32)).compile().as_text() or ""
    (found,) = collectives(text, 8)
    assert found.groups == (group,)


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
