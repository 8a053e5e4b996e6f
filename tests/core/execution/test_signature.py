"""Functions with an input signature."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.spec import PerReplicaSpec
from jaxtribute.errors import ArgumentError
from replicas import mirrored, per_replica


def spec(*shape: int | None, dtype: Any = jnp.float32) -> jd.ArraySpec:
    return jd.ArraySpec(shape, dtype)


def test_numbers_become_arrays_and_do_not_retrace() -> None:
    @jd.function(input_signature=[spec(dtype=jnp.int32), spec()])
    def add(count: Any, scale: Any) -> Any:
        return count.astype(jnp.float32) * scale

    assert [float(add(n, 0.5)) for n in range(4)] == [0, 0.5, 1, 1.5]
    assert float(add(scale=2, count=np.int32(3))) == 6
    assert add.experimental_get_tracing_count() == 1


def test_open_dimensions_take_any_size() -> None:
    @jd.function(input_signature=[{"x": spec(None, 3)}])
    def total(batch: Any) -> Any:
        return batch["x"].sum()

    assert float(total({"x": np.ones((2, 3), np.float32)})) == 6
    assert float(total({"x": jnp.ones((5, 3))})) == 15


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.ones((2, 4), np.float32), r"shape \(2, 4\)"),
        (np.ones((2, 3), np.float64), "dtype float64"),
        (np.ones(3, np.float32), r"shape \(3,\)"),
        ({"y": 1}, "is a dict"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(argument: Any, message: str) -> None:
    function = jd.function(lambda x: x, input_signature=[spec(None, 3)])
    with pytest.raises(ArgumentError, match=f"(?s){message}.*HINT"):
        function(argument)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        (None, r"is a ArrayImpl of shape \(2,\) and dtype float32"),
        ((2, 3), r"is a PerReplica with components float32\[2\], float32\[3\]"),
        ((3, 3), r"is a PerReplica with components float32\[3\], float32\[3\]"),
    ],
)
def test_components_that_do_not_fit_are_errors(sizes: tuple[int, ...] | None, shown: str) -> None:
    strategy = mirrored(2)
    calls: list[Any] = []
    both = PerReplicaSpec((spec(2), spec(4)))
    function = jd.function(calls.append, input_signature=[both])
    function(per_replica(strategy, [np.ones(2, np.float32), np.ones(4, np.float32)]))
    assert len(calls) == 1
    argument = jnp.ones(2) if sizes is None else per_replica(strategy, [np.ones(size, np.float32) for size in sizes])
    with pytest.raises(ArgumentError, match=rf"(?s){shown}, where its input_signature has PerReplicaSpec.*HINT"):
        function(argument)
    assert len(calls) == 1


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=["even", "uneven"])
@pytest.mark.parametrize("dtypes", [("int32", "int32"), ("float32", "int32")], ids=["one dtype", "two"])
def test_components_of_another_dtype_are_errors(sizes: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    function = jd.function(lambda x: x, input_signature=[PerReplicaSpec((spec(None),))])
    parts = [np.ones(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    with pytest.raises(
        TypeError, match=rf"(?s){dtypes[1]}\[{sizes[1]}\], where its input_signature has.*float32.*HINT"
    ):
        function(per_replica(mirrored(2), parts))


def test_a_dataset_of_another_dtype_does_not_fit_an_element_spec() -> None:
    strategy = mirrored(2)
    whole, floats = (strategy.experimental_distribute_dataset([np.ones(4, dtype)]) for dtype in ("int32", "float32"))
    function = jd.function(lambda x: x, input_signature=[whole.element_spec])
    function(next(iter(whole)))
    with pytest.raises(TypeError, match="HINT"):
        function(next(iter(floats)))


def test_all_that_does_not_fit_is_a_type_error_as_in_tensorflow() -> None:
    function = jd.function(lambda x: x, input_signature=[spec(None, 2)])
    for arguments in [(np.ones((1, 2)),), (np.ones(2, np.float32),), ("a",), (), (1, 2), ([1, 2],)]:
        with pytest.raises(TypeError, match="HINT"):
            function(*arguments)


def test_another_structure_is_an_error() -> None:
    function = jd.function(lambda x: x, input_signature=[{"x": spec()}])
    with pytest.raises(ArgumentError, match=r"(?s)not structured as its input_signature.*HINT"):
        function({"y": 1.0})


def test_the_number_of_arguments_counts() -> None:
    function = jd.function(lambda x, y: x, input_signature=[spec()])
    with pytest.raises(ArgumentError, match="got 2 arguments, its input_signature has 1"):
        function(1.0, 2.0)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_datasets_element_spec_is_a_signature(devices: int) -> None:
    strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    data = [np.arange(8, dtype=np.float32), np.arange(5, dtype=np.float32)]
    dataset = strategy.experimental_distribute_dataset(data)

    @jd.function(input_signature=[dataset.element_spec])
    def total(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: x, (batch,)), axis=0)

    assert [float(total(batch)) for batch in dataset] == [28, 10]
    with pytest.raises(ArgumentError, match="HINT"):
        total(np.ones((8, 2), np.float32))
