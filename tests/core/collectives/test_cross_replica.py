# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jaxtribute as jd
from jaxtribute._src.core.collectives.cross_replica import check_axes, gather_value, reduce_many, reduce_value
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import ReduceOp
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from replicas import components, fraction, mirrored, per_replica

Row = list[Any]
ROWS: list[Row] = json.loads((Path(__file__).parents[2] / "oracle" / "reductions.json").read_text())


def label(row: Row) -> str:
    return f"{row[0]}-{row[2]}-{row[3]}-{np.shape(row[1][0])}-{'uneven' if row[1][-1] == [] else 'even'}"


@pytest.mark.quick_cases(43)
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_as_tensorflow(row: Row) -> None:
    replicas, parts, op, axis, expected = row
    strategy = mirrored(replicas)
    axis: Any = tuple(axis) if isinstance(axis, list) else axis
    dtype = np.int32 if isinstance(parts[0], int) else np.float32
    value = per_replica(strategy, [np.asarray(part, dtype) for part in parts])

    def act() -> Any:
        return strategy.gather(value, axis=axis) if op == "GATHER" else strategy.reduce(op, value, axis=axis)

    if isinstance(expected, dict):
        with pytest.raises(ValueError, match="HINT"):
            act()
    else:
        np.testing.assert_allclose(act(), expected, rtol=1e-6)
        compiled = jd.function(act)()
        np.testing.assert_allclose(compiled, expected, rtol=1e-6)


@pytest.mark.parametrize("replicas", [2, 3])
@settings(max_examples=15)
@given(data=st.data())
def test_reduce_is_numpys(replicas: int, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["bool", "int32", "float32", "bfloat16"]))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape)), tuple(range(len(shape)))]))
    op = data.draw(st.sampled_from(["SUM", "MEAN"]))
    parts = [(np.arange(np.prod(shape)).reshape(shape) + i) % 3 for i in range(replicas)]
    arrays = [jnp.asarray(part).astype(dtype) for part in parts]
    strategy = mirrored(replicas)
    result = strategy.reduce(op, per_replica(strategy, arrays), axis=axis)
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis % len(shape),)
    stacked = np.stack([np.asarray(array).astype(np.float32) for array in arrays])
    expected = getattr(stacked, op.lower().replace("mean", "mean"))((0, *(one + 1 for one in axes)))
    np.testing.assert_allclose(
        np.asarray(result).astype(np.float32), expected, rtol=1e-2 if dtype == "bfloat16" else 1e-6
    )
    if op == "SUM":
        assert result.dtype == ("int32" if dtype == "bool" else dtype)
    else:
        assert result.dtype == (dtype if dtype in ("float32", "bfloat16") else "float32")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("replicas", [2, 4])
@settings(max_examples=12)
@given(counts=st.lists(st.integers(0, 3), min_size=4, max_size=4), axis=st.integers(0, 1))
def test_gather_and_reduce_of_uneven_replicas(replicas: int, counts: list[int], axis: int) -> None:
    strategy = mirrored(replicas)
    shapes = [(count, 2) if axis == 0 else (2, count) for count in counts[:replicas]]
    parts = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 7 * i for i, shape in enumerate(shapes)]
    value = per_replica(strategy, parts)
    whole = np.concatenate(parts, axis)
    np.testing.assert_array_equal(strategy.gather(value, axis=axis), whole)
    np.testing.assert_allclose(strategy.reduce("SUM", value, axis=axis), whole.sum(axis), rtol=1e-6)
    if whole.size:
        np.testing.assert_allclose(strategy.reduce("MEAN", value, axis=axis), whole.mean(axis), rtol=1e-6)


def test_results_are_on_every_device_and_can_be_used_with_variables() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        v = jd.Variable(1.0)
    total = strategy.reduce("SUM", strategy.run(fraction), axis=None)
    assert total.sharding.device_set == set(jax.devices()[:2])
    assert float(total + v) == 2.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_values_that_are_not_distributed(replicas: int) -> None:
    strategy = mirrored(replicas)
    x = jnp.arange(4.0)
    assert float(strategy.reduce("MEAN", 3.0, axis=None)) == 3.0
    assert strategy.reduce("MEAN", x, axis=None).tolist() == x.tolist()
    assert float(strategy.reduce("MEAN", x, axis=0)) == 1.5
    assert float(strategy.reduce("SUM", x, axis=0)) == 6.0 * replicas
    assert strategy.gather(x, axis=0) is x
    if replicas == 1:
        assert float(strategy.reduce("SUM", 3.0, axis=None)) == 3.0
    else:
        with pytest.raises(ArgumentError, match=r"over 2 replicas of 3.0, which is not a distributed value.*HINT"):
            strategy.reduce("SUM", 3.0, axis=None)


def test_mirrored_values_count_once_a_replica() -> None:
    strategy = mirrored(3)
    value = strategy.place(jnp.arange(2.0))
    assert strategy.reduce("SUM", value, axis=None).tolist() == [0.0, 3.0]
    assert strategy.reduce("MEAN", value, axis=None).tolist() == [0.0, 1.0]
    assert strategy.gather(value, axis=0).tolist() == [0.0, 1.0] * 3


def test_nests() -> None:
    strategy = mirrored(2)
    value = {"a": strategy.run(fraction), "b": [strategy.place(2.0), (per_replica(strategy, [1, 2]),)]}
    result = strategy.reduce("sum", value, axis=None)
    assert float(result["a"]) == 1.0
    assert float(result["b"][0]) == 4.0
    assert int(result["b"][1][0]) == 3
    rows = strategy.gather({"r": strategy.run(lambda: fraction()[None])}, axis=0)
    assert rows["r"].tolist() == [0.0, 1.0]


def test_python_numbers_of_replicas_are_reduced() -> None:
    strategy = mirrored(2)
    assert float(strategy.reduce("MEAN", per_replica(strategy, [1, 2]), axis=None)) == 1.5
    assert strategy.reduce("SUM", per_replica(strategy, [1.5, 2.0]), axis=None).tolist() == 3.5
    with pytest.raises(ArgumentTypeError, match=r"cannot be combined.*HINT"):
        strategy.reduce("SUM", per_replica(strategy, ["a", "b"]), axis=None)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("parts", [[np.ones(2), np.ones((2, 2))], [np.ones(2), np.ones(2, np.int32)]])
def test_parts_of_different_ranks_or_dtypes_are_named(parts: list[Any], *, compiled: bool) -> None:
    strategy = mirrored(2)
    for call in (
        lambda x: strategy.gather(x, axis=0),
        lambda x: strategy.reduce("SUM", x, axis=None),
        lambda x: strategy.reduce("MEAN", x, axis=0),
        lambda x: strategy.extended.reduce_to("SUM", x, "CPU:0"),
    ):
        with pytest.raises(ArgumentTypeError, match=r"\['float32\[2\]', '.*cannot be combined.*HINT"):
            (jd.function(call) if compiled else call)(per_replica(strategy, list(map(jnp.asarray, parts))))


@pytest.mark.parametrize("axis", [1, -2, 7])
def test_an_axis_out_of_range(axis: int) -> None:
    strategy = mirrored(2)
    value = strategy.run(lambda: jnp.ones(2) * fraction())
    with pytest.raises(ArgumentError, match=rf"axis {axis} is out of range for a value of rank 1.*HINT: use axis=None"):
        strategy.reduce("SUM", value, axis=axis)


def test_an_axis_on_scalars() -> None:
    strategy = mirrored(2)
    for value in (strategy.run(fraction), per_replica(strategy, [1, 2]), strategy.place(1.0), 1.0):
        with pytest.raises(ArgumentError, match=r"axis 0 is out of range for a value of rank 0.*HINT"):
            strategy.reduce("MEAN", value, axis=0)


@pytest.mark.parametrize("axis", [["0"], "0", 0.0, True, (0, None)])
def test_an_axis_of_a_wrong_type(axis: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"axis must be an int, a tuple of ints or None.*HINT"):
        check_axes(axis, 2)


def test_check_axes() -> None:
    assert check_axes(None, 0) is None
    assert check_axes(-1, 3) == (2,)
    assert check_axes((1, -1, 0), 2) == (0, 1)
    assert check_axes([1], 2) == (1,)


def test_shapes_that_cannot_be_added() -> None:
    strategy = mirrored(2)
    value = per_replica(strategy, [jnp.ones(1), jnp.ones(2)])
    with pytest.raises(ShapeError, match=r"shapes \[\(1,\), \(2,\)\] and cannot be added up.*HINT: reduce along"):
        strategy.reduce("SUM", value, axis=None)
    with pytest.raises(ShapeError, match=r"all_reduce needs equal arrays.*\['float32\[1\]', 'float32\[2\]'\].*HINT"):
        reduce_many([value], ReduceOp.SUM)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("axis", [-1, 1, 3, None, "0"])
def test_gather_axes(axis: Any, replicas: int) -> None:
    strategy = mirrored(replicas)
    with pytest.raises(ArgumentError, match=r"cannot gather values of rank 1 along axis.*HINT"):
        strategy.gather(strategy.run(lambda: fraction()[None]), axis=axis)
    with pytest.raises(ArgumentError, match=r"cannot gather values of rank 0.*x\[None\]"):
        strategy.gather(strategy.run(fraction), axis=0)


def test_reduce_has_no_default_axis() -> None:
    with pytest.raises(TypeError, match="axis"):
        mirrored(2).reduce("SUM", 1.0)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_reduce_many(op: ReduceOp) -> None:
    strategy = mirrored(2)
    values = [strategy.run(fraction), strategy.run(lambda: jnp.ones((2, 1)) * fraction())]
    scale = 1.0 if op is ReduceOp.SUM else 0.5
    first, second = reduce_many(values, op)
    assert isinstance(first, jd.Mirrored)
    assert components(first) == [scale] * 2
    assert components(second) == [[[scale]] * 2] * 2


class Told:
    """Other workers, who note what this one tells them that it is about to do."""

    def __init__(self) -> None:
        self.names: list[Any] = []

    def entering(self, name: str, collectives: Any, /) -> None:
        self.names.append((name, *collectives()))

    def exchange(self, what: str, text: str, /) -> list[str]:
        return [text]

    def dispatched(self, result: Any, /) -> None: ...

    def waited(self, seconds: float, /) -> None: ...

    def explained(self, error: BaseException, /) -> BaseException:
        return error


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (
            lambda value, _: reduce_many([value], ReduceOp.SUM),
            ("all_reduce of 1 values", "ReduceOp.SUM", "float32[4, 2]"),
        ),
        (lambda value, mesh: reduce_value(value, ReduceOp.SUM, 0, mesh), "float32[4, 2]"),
        (lambda value, _: gather_value(value, 0), "float32[4, 2]"),
    ],
)
def test_other_workers_are_told_of_what_runs_and_not_of_what_is_traced(act: Any, told: Any) -> None:
    others = Told()
    mesh = ReplicaMesh(jax.devices()[:2], others)
    array = jax.device_put(np.ones((4, 2), np.float32), mesh.split)
    act(PerReplica(array, mesh), mesh)
    (entered,) = others.names
    assert entered == told if isinstance(told, tuple) else entered[-1] == told
    jax.eval_shape(lambda array: [jax.tree.leaves(act(PerReplica(array, mesh), mesh)), ()][1], array)
    assert len(others.names) == 1
