from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jaxtribute as jd
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentTypeError
from replicas import components, mirrored, per_replica

DTYPES = [np.dtype(name) for name in ("float32", "int32", "bool", "uint8")]


def mesh_of(count: int) -> ReplicaMesh:
    return ReplicaMesh(jax.devices()[:count])


@pytest.mark.parametrize("count", [1, 2, 3])
@settings(max_examples=20)
@given(data=st.data())
def test_parts_come_back_as_they_were(count: int, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3, min_side=0))
    parts = [data.draw(hnp.arrays(dtype, shape)) for _ in range(count)]
    mesh = mesh_of(count)
    value = jd.PerReplica.from_parts([jnp.asarray(part) for part in parts], mesh)
    assert not value.is_ragged
    assert isinstance(value.data, jax.Array)
    for index, (part, expected) in enumerate(zip(value.values, parts, strict=True)):
        assert part.devices() == {mesh.devices[index]}
        assert part.dtype == dtype
        np.testing.assert_array_equal(part, expected)


def test_bfloat16_parts() -> None:
    value = jd.PerReplica.from_parts([jnp.ones(2, jnp.bfloat16), jnp.zeros(2, jnp.bfloat16)], mesh_of(2))
    assert value.data.dtype == jnp.bfloat16
    assert components(value) == [[1.0, 1.0], [0.0, 0.0]]


def test_numpy_parts_are_copied_to_their_devices() -> None:
    parts = [np.full(3, float(i), np.float32) for i in range(2)]
    value = jd.PerReplica.from_parts([*parts], mesh_of(2))
    parts[1][:] = -1
    assert components(value) == [[0.0] * 3, [1.0] * 3]
    assert [part.devices().pop().id for part in value.values] == [0, 1]
    scalars = jd.PerReplica.from_parts([np.float32(1), np.float32(2)], mesh_of(2))
    assert not scalars.is_ragged
    assert scalars.data.shape == (2,)


@pytest.mark.parametrize(
    "parts",
    [
        [np.ones(2, np.float32), np.ones(3, np.float32)],
        [np.ones(2, np.float32), np.ones((2, 1), np.float32)],
        [np.ones(2, np.float32), np.ones(2, np.int32)],
    ],
)
def test_parts_that_differ_are_ragged(parts: list[Any]) -> None:
    value = jd.PerReplica.from_parts(parts, mesh_of(2))
    assert value.is_ragged
    for part, expected, device in zip(value.values, parts, jax.devices(), strict=False):
        assert part.dtype == expected.dtype
        assert part.devices() == {device}
        np.testing.assert_array_equal(part, expected)


def test_python_values_stay_as_they_are() -> None:
    things = [object(), "text"]
    value = jd.PerReplica.from_parts(things, mesh_of(2))
    assert value.values[0] is things[0]
    assert value.values[1] == "text"
    assert jd.PerReplica.from_parts([1, 2], mesh_of(2)).values == (1, 2)


def test_from_split_cuts_axis_0() -> None:
    mesh = mesh_of(2)
    value = jd.PerReplica.from_split(jax.device_put(jnp.arange(8.0).reshape(4, 2), mesh.split), mesh)
    assert components(value) == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]


def test_per_replica_is_no_single_array() -> None:
    value = per_replica(mirrored(2), [1.0, 2.0])
    for convert in (np.asarray, jnp.asarray, jnp.sin):
        with pytest.raises(ArgumentTypeError, match=r"for each of 2 replicas.*HINT: use strategy.reduce"):
            convert(value)


def test_reprs_show_the_replicas() -> None:
    strategy = mirrored(2)
    value = per_replica(strategy, [jnp.float32(1), jnp.float32(2)])
    assert repr(value) == "PerReplica:{\n  0: Array(1., dtype=float32),\n  1: Array(2., dtype=float32)\n}"
    assert repr(strategy.place(jnp.float32(3))).startswith("Mirrored:{\n  0: Array(3., dtype=float32),\n  1:")
    assert repr(per_replica(strategy, ["a", "b"])) == "PerReplica:{\n  0: 'a',\n  1: 'b'\n}"
    for leaf in (True, "frozen", jax.ShapeDtypeStruct((), jnp.float32), None, (2,)):
        for nest in (strategy.place(jnp.float32(3)), value):
            assert repr(jax.tree.map(lambda _, leaf=leaf: leaf, nest)) == f"{type(nest).__name__}({leaf!r})"


def test_they_are_pytrees() -> None:
    strategy = mirrored(2)
    value = per_replica(strategy, [jnp.float32(1), jnp.float32(2)])
    doubled = jax.tree.map(lambda x: x * 2, {"a": value, "b": strategy.place(jnp.float32(3))})
    assert isinstance(doubled["a"], jd.PerReplica)
    assert isinstance(doubled["b"], jd.Mirrored)
    assert components(doubled["a"]) == [2.0, 4.0]
    assert components(doubled["b"]) == [6.0, 6.0]
    assert len(jax.tree.leaves(value)) == 1
    ragged = per_replica(strategy, [jnp.ones(1), jnp.ones(2)])
    assert components(jax.tree.map(lambda x: x * 3, ragged)) == [[3.0], [3.0, 3.0]]


def test_they_pass_through_jit() -> None:
    value = per_replica(mirrored(2), [jnp.arange(2.0), jnp.arange(2.0) + 5])
    result = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x))(value)
    assert components(result) == [[1.0, 2.0], [6.0, 7.0]]
    assert result.mesh == value.mesh


def test_values_inside_a_trace() -> None:
    strategy = mirrored(2)
    rows = per_replica(strategy, [jnp.arange(4.0).reshape(2, 2), jnp.arange(4.0).reshape(2, 2) + 10])
    scalars = per_replica(strategy, [jnp.float32(1), jnp.float32(2)])
    same = strategy.place(jnp.float32(3))

    @jd.function
    def seen(rows: Any, scalars: Any, same: Any) -> Any:
        return rows.values, scalars.values, same.values

    one, two, three = seen(rows, scalars, same)
    assert [x.tolist() for x in one] == [[[0.0, 1.0], [2.0, 3.0]], [[10.0, 11.0], [12.0, 13.0]]]
    assert [float(x) for x in two] == [1.0, 2.0]
    assert [float(x) for x in three] == [3.0, 3.0]


def test_mirrored_values_share_nothing_with_their_source() -> None:
    source = jnp.arange(3.0)
    value = mirrored(2).place(source)
    value.data.delete()  # pyright: ignore[reportAttributeAccessIssue]
    assert source.tolist() == [0.0, 1.0, 2.0]


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(NotImplementedError):
        _ = jd.DistributedValues().values


def test_parts_made_inside_a_trace() -> None:
    strategy = mirrored(2)

    @jd.function
    def made(x: Any) -> Any:
        def value_fn(context: Any) -> Any:
            i = context.replica_id_in_sync_group
            return {"scalar": x * i, "rows": jnp.ones((2, 1)) * i, "uneven": jnp.ones(i + 1), "known": jnp.int32(i)}

        values = strategy.experimental_distribute_values_from_function(value_fn)
        return values, strategy.run(lambda v: v["scalar"] + v["rows"].sum() + v["uneven"].sum(), (values,))

    values, sums = made(jnp.float32(3))
    assert components(values["scalar"]) == [0.0, 3.0]
    assert components(values["rows"]) == [[[0.0]] * 2, [[1.0]] * 2]
    assert components(values["uneven"]) == [[1.0], [1.0, 1.0]]
    assert components(values["known"]) == [0, 1]
    assert components(sums) == [1.0, 7.0]


def test_results_of_a_function_are_laid_out_over_the_replicas() -> None:
    strategy = mirrored(2)
    each, same = per_replica(strategy, [jnp.ones(2), jnp.ones(2)]), strategy.place(jnp.ones(2))
    zeros = jd.function(lambda *nest: jax.tree.map(lambda x: jnp.arange(x.size, dtype=x.dtype), nest))
    one, two = zeros(each, same)
    assert components(one) == [[0.0, 1.0], [2.0, 3.0]]
    assert components(two) == [[0.0, 1.0]] * 2
    assert one.data.sharding == strategy.extended.mesh.split
    assert two.data.sharding == strategy.extended.mesh.replicated


@pytest.mark.parametrize("operation", [lambda v: v + 1, lambda v: 2 * v, lambda v: v[0], float, bool, lambda v: -v])
def test_computing_with_a_per_replica_value_says_where_to_do_it(operation: Any) -> None:
    value = jd.PerReplica.from_parts([jnp.ones(2), jnp.zeros(2)], ReplicaMesh(jax.devices()[:2]))
    with pytest.raises(
        ArgumentTypeError, match=r"(?s)2 replicas.*HINT: compute in the function passed to strategy.run"
    ):
        operation(value)
