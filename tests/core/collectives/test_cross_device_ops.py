"""Cross-device operations: algorithms that give equal results, in both executors and by hand."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.collectives.summation import OneDeviceSum
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from replicas import components, each_executor, execute, here, ident, mirrored, per_replica, variable

ALGORITHMS: dict[str, Any] = {
    "default": lambda: None,
    "packed": lambda: jd.NcclAllReduce(num_packs=2),
    "unpacked": lambda: jd.NcclAllReduce(num_packs=0),
    "tree": lambda: jd.HierarchicalCopyAllReduce(num_packs=1),
    "one device": jd.ReductionToOneDevice,
    "another device": lambda: jd.ReductionToOneDevice("CPU:1"),
}
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def strategy_with(algorithm: str, replicas: int) -> jd.MirroredStrategy:
    return jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)], cross_device_ops=ALGORITHMS[algorithm]())


def replica_values() -> dict[str, Any]:
    one = jnp.asarray(ident(), jnp.int32)
    real = one.astype(jnp.float32) + jnp.float32(1.0)
    return {
        "matrix": jnp.ones((2, 3), jnp.float32) * real,
        "scalar": real,
        "count": one + jnp.int32(1),
        "flag": one > jnp.int32(0),
        "half": real.astype(jnp.bfloat16),
    }


def expected(replicas: int, op: str) -> dict[str, Any]:
    total = sum(range(1, replicas + 1))
    values: dict[str, Any] = {
        "matrix": np.full((2, 3), total),
        "scalar": total,
        "count": total,
        "flag": replicas - 1,
        "half": total,
    }
    return values if op == "SUM" else {name: np.asarray(value) / replicas for name, value in values.items()}


@pytest.mark.quick_cases(3)
@each_executor
@each_algorithm
def test_all_reduce_agrees(executor: str, algorithm: str) -> None:
    strategy = strategy_with(algorithm, 3)
    ops = ("SUM", "MEAN")
    results = execute(executor, strategy, lambda: [here().all_reduce(op, replica_values()) for op in ops])
    for op, result in zip(ops, results, strict=True):
        for name, value in expected(3, op).items():
            for part in result[name].values:
                np.testing.assert_allclose(np.asarray(part, np.float32), value, rtol=1e-6, err_msg=name)


@each_algorithm
def test_compiled_result_is_mirrored(algorithm: str) -> None:
    strategy = strategy_with(algorithm, 3)
    result = execute("compiled", strategy, lambda: here().all_reduce("SUM", jnp.asarray(ident(), jnp.int32)))
    assert isinstance(result, jd.Mirrored)
    assert components(result) == [3, 3, 3]


@each_executor
@each_algorithm
def test_writes_what_it_reduced(executor: str, algorithm: str) -> None:
    strategy = strategy_with(algorithm, 3)
    v = variable(strategy, 1.0, aggregation=jd.VariableAggregation.SUM)
    execute(executor, strategy, lambda: (v.assign_add(jnp.asarray(ident(), jnp.float32)), None)[1])
    assert components(v) == [4.0, 4.0, 4.0]


@pytest.mark.quick_cases(6)
@each_executor
@each_algorithm
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_gradient_is_the_reduction_of_the_cotangents(executor: str, algorithm: str, op: str) -> None:
    strategy = strategy_with(algorithm, 4)

    def replica() -> Any:
        weight = jnp.asarray(ident(), jnp.float32) + jnp.float32(1.0)
        return jax.grad(lambda x: weight * here().all_reduce(op, x))(jnp.float32(2.0))

    result = execute(executor, strategy, replica)
    assert components(result) == [10.0 if op == "SUM" else 2.5] * 4


@pytest.mark.parametrize("replicas", [1, 2, 4, 5, 7, 8])
@pytest.mark.parametrize("algorithm", ["tree", "one device"])
def test_any_number_of_replicas(replicas: int, algorithm: str) -> None:
    strategy = strategy_with(algorithm, replicas)
    result = execute("compiled", strategy, lambda: here().all_reduce("SUM", jnp.asarray(ident(), jnp.int32)))
    assert components(result) == [sum(range(replicas))] * len(components(result))


@each_executor
def test_accumulation_fn_replaces_the_sum_and_mean_divides_it(executor: str) -> None:
    def product(parts: list[Any]) -> Any:
        result = parts[0]
        for part in parts[1:]:
            result = result * part
        return result

    ops = jd.ReductionToOneDevice(accumulation_fn=product)
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=ops)

    def replica() -> Any:
        one = jnp.asarray(ident(), jnp.float32) + jnp.float32(2.0)
        return here().all_reduce("SUM", one), here().all_reduce("MEAN", one)

    total, mean = execute(executor, strategy, replica)
    assert components(total) == [24.0] * 3
    assert components(mean) == [8.0] * 3
    each = per_replica(strategy, [jnp.float32(2.0), jnp.float32(3.0), jnp.float32(4.0)])
    assert float(ops.reduce("MEAN", each, "CPU:2")) == 8.0


class TestDirectCalls:
    """The methods of TensorFlow's class, called as its users call them."""

    @each_algorithm
    @pytest.mark.parametrize("op", ["SUM", jd.ReduceOp.MEAN])
    def test_reduce_to_a_device(self, algorithm: str, op: Any) -> None:
        ops = ALGORITHMS[algorithm]() or jd.NcclAllReduce()
        each = per_replica(mirrored(4), [jnp.arange(3.0) + jnp.float32(i) for i in range(4)])
        result = ops.reduce(op, each, "CPU:3")
        assert result.devices() == {jax.devices()[3]}
        total = np.arange(3.0) * 4 + 6
        np.testing.assert_allclose(result, total if op == "SUM" else total / 4)

    @each_algorithm
    def test_reduce_to_the_devices_of_a_value(self, algorithm: str) -> None:
        ops = ALGORITHMS[algorithm]() or jd.NcclAllReduce()
        each = per_replica(mirrored(3), [jnp.float32(i) for i in range(3)])
        result = ops.reduce("SUM", each, each)
        assert isinstance(result, jd.Mirrored)
        assert components(result) == [3.0, 3.0, 3.0]

    @each_algorithm
    def test_batch_reduce_keeps_the_order(self, algorithm: str) -> None:
        ops = ALGORITHMS[algorithm]() or jd.NcclAllReduce()
        first = per_replica(mirrored(2), [jnp.float32(1.0), jnp.float32(2.0)])
        second = per_replica(mirrored(2), [jnp.int32(3), jnp.int32(4)])
        same = mirrored(2).place(jnp.float32(5.0))
        results = ops.batch_reduce("SUM", [(first, "CPU:0"), (second, first), (same, "CPU:1")])
        assert [components(result) for result in results] == [[3.0], [7, 7], [10.0]]

    def test_batch_reduce_of_nothing(self) -> None:
        assert jd.NcclAllReduce().batch_reduce("SUM", []) == []

    def test_broadcast(self) -> None:
        ops = jd.ReductionToOneDevice()
        v = variable(mirrored(2), 0.0)
        assert components(ops.broadcast(jnp.float32(2.0), v)) == [2.0, 2.0]
        assert ops.broadcast(jnp.float32(2.0), "CPU:2").devices() == {jax.devices()[2]}

    def test_a_plain_array_is_an_error(self) -> None:
        with pytest.raises(ArgumentTypeError, match="distributed value"):
            jd.NcclAllReduce().reduce("SUM", jnp.float32(1.0), "CPU:0")

    def test_a_list_of_devices_is_an_error(self) -> None:
        each = per_replica(mirrored(2), [jnp.float32(1.0), jnp.float32(2.0)])
        with pytest.raises(ArgumentTypeError, match=r"\['CPU:0', 'CPU:1'\]"):
            jd.NcclAllReduce().reduce("SUM", each, ["CPU:0", "CPU:1"])


def test_a_negative_number_of_packs_is_an_error() -> None:
    for kind in (jd.NcclAllReduce, jd.HierarchicalCopyAllReduce):
        with pytest.raises(ArgumentError, match="-1"):
            kind(num_packs=-1)


def test_what_is_no_algorithm_is_an_error() -> None:
    with pytest.raises(ArgumentTypeError, match="nccl"):
        jd.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops="nccl")  # pyright: ignore[reportArgumentType]


class MaxOps(jd.CrossDeviceOps):
    """An algorithm from outside: the largest value in place of the sum."""

    def summation(self, mesh: Any, options: Any) -> jd.extending.Summation:
        return jd.extending.OneDeviceSum(0, lambda parts: jnp.max(jnp.stack(parts), axis=0))


@each_executor
def test_an_algorithm_of_ones_own(executor: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], cross_device_ops=MaxOps())
    result = execute(executor, strategy, lambda: here().all_reduce("SUM", jnp.asarray(ident(), jnp.int32)))
    assert components(result) == [2, 2, 2]


def test_bytes_per_pack_decides_the_number_of_collectives() -> None:
    strategy = mirrored(2)

    def count(options: Any) -> int:
        def replica() -> Any:
            arrays = [jnp.full(256, 1.0, jnp.float32) + jnp.asarray(ident(), jnp.float32) for _ in range(8)]
            return here().all_reduce("SUM", arrays, options=options)

        def step() -> Any:
            return strategy.run(replica)

        jaxpr = jax.make_jaxpr(jd.function(step))()
        return str(jaxpr).count("psum[")

    assert count(jd.experimental.CommunicationOptions(bytes_per_pack=2048)) == 4
    assert count(jd.experimental.CommunicationOptions(bytes_per_pack=1)) == 8
    assert count(jd.experimental.CommunicationOptions(bytes_per_pack=1 << 20)) == 1


@pytest.mark.slow
@settings(max_examples=6)
@given(
    replicas=st.integers(2, 6),
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "bool"]),
    seed=st.integers(0, 9),
)
def test_algorithms_agree_with_numpy(replicas: int, shapes: list[tuple[int, ...]], dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = [rng.integers(0, 8, (replicas, *shape)) for shape in shapes]
    pairs = [(per_replica(mirrored(replicas), [jnp.asarray(row, dtype) for row in rows]), "CPU:0") for rows in data]
    for make in ALGORITHMS.values():
        results = (make() or jd.NcclAllReduce(0)).batch_reduce("SUM", pairs)
        for rows, result in zip(data, results, strict=True):
            wanted = (rows > 0).sum(0) if dtype == "bool" else rows.sum(0)
            assert result.dtype == ("int32" if dtype == "bool" else dtype)
            np.testing.assert_array_equal(np.asarray(result, np.float32), wanted.astype(np.float32))


@each_algorithm
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_variables_are_reduced_as_what_they_hold(algorithm: str, synchronization: str) -> None:
    with mirrored(2).scope():
        v = jd.Variable(
            np.ones(3, np.float32),
            synchronization=jd.VariableSynchronization[synchronization],
            aggregation=jd.VariableAggregation.SUM,
        )
    ops = ALGORITHMS[algorithm]() or jd.CrossDeviceOps()
    np.testing.assert_array_equal(ops.reduce("SUM", v, v).data, [2, 2, 2])
    np.testing.assert_array_equal(ops.batch_reduce("MEAN", [(v, v)])[0].data, [1, 1, 1])


def test_values_that_do_not_fit_are_told_with_their_shapes() -> None:
    ranks = per_replica(mirrored(2), [np.ones(2, np.float32), np.ones((2, 2), np.float32)])
    for call in (lambda: mirrored(2).gather(ranks, axis=0), lambda: mirrored(2).reduce("SUM", ranks, axis=None)):
        with pytest.raises(ArgumentTypeError, match=r"float32\[2\].*float32\[2, 2\].*HINT"):
            call()


def test_the_first_replica_adds_up_where_no_device_is_named_or_it_belongs_to_none() -> None:
    mesh = mirrored(2).extended.mesh
    roots = [jd.ReductionToOneDevice(device).summation(mesh, None) for device in (None, "CPU:0", "CPU:5", "CPU:1")]
    assert roots == [OneDeviceSum(0)] * 3 + [OneDeviceSum(1)]
