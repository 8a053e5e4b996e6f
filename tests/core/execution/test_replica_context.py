# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ContextError, ShapeError
from replicas import (
    components,
    each_executor,
    execute,
    fraction,
    here,
    ident,
    mirrored,
    one_device,
    per_replica,
    variable,
)


@each_executor
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_identity(executor: str, replicas: int) -> None:
    strategy = mirrored(replicas)
    seen: list[Any] = []

    def fn() -> Any:
        context = here()
        seen.append((context.num_replicas_in_sync, context.strategy is strategy))
        return context.replica_id_in_sync_group

    result = execute(executor, strategy, fn)
    assert components(result) == list(range(replicas))
    assert set(seen) == {(replicas, True)}
    local = strategy.experimental_local_results(result)
    assert local[0].dtype == np.int32


def test_devices() -> None:
    name = "/job:localhost/replica:0/task:0/device:CPU:"
    seen: list[Any] = []
    mirrored(2).run(lambda: seen.append(here().devices))
    assert seen == [(name + "0",), (name + "1",)]
    one_device(3).run(lambda: seen.append(here().devices))
    assert seen[2] == (name + "3",)
    execute("compiled", mirrored(2), lambda: seen.append(here().devices))
    assert seen[3] == (name + "0", name + "1")


@pytest.mark.quick_cases(2)
@each_executor
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_all_reduce_of_a_nest(executor: str, replicas: int) -> None:
    def fn() -> Any:
        value = {
            "int": ident(),
            "list": [jnp.ones((2, 1)) * fraction(), (ident() >= 0,)],
            "bf16": jnp.ones(3, jnp.bfloat16),
            "variable": v,
            "none": None,
        }
        return here().all_reduce(jd.ReduceOp.SUM, value), here().all_reduce("mean", value)

    v = variable(mirrored(replicas), 2.0)
    total, mean = execute(executor, mirrored(replicas), fn)
    half = replicas * (replicas - 1) / 2
    for result, scale in ((total, 1), (mean, replicas)):
        assert components(result["int"])[-1] == half / scale
        assert components(result["list"][0])[-1] == [[half / scale]] * 2
        assert components(result["list"][1][0])[-1] == replicas / scale
        assert components(result["bf16"])[-1] == [replicas / scale] * 3
        assert components(result["variable"])[-1] == 2.0 * replicas / scale
        assert result["none"] is None
    if replicas > 1:
        assert total["int"].dtype == total["list"][1][0].dtype == np.int32
        assert mean["int"].dtype == np.float32
        assert total["bf16"].dtype == mean["bf16"].dtype == jnp.bfloat16


@each_executor
def test_all_reduce_of_numbers_and_of_nothing(executor: str) -> None:
    def fn() -> Any:
        context = here()
        return context.all_reduce("SUM", (3, 1.5, True)), context.all_reduce("SUM", []), context.all_reduce("MEAN", {})

    numbers, nothing, empty = execute(executor, mirrored(2), fn)
    assert [components(x) for x in numbers] == [[6, 6], [3.0, 3.0], [2, 2]]
    assert nothing == []
    assert empty == {}


@each_executor
@pytest.mark.parametrize("axis", [0, 1])
def test_all_gather(executor: str, axis: int) -> None:
    def fn() -> Any:
        return here().all_gather({"a": jnp.ones((1, 2)) * fraction(), "b": [jnp.ones((2, 1), bool)]}, axis=axis)

    result = execute(executor, mirrored(3), fn)
    expected = np.concatenate([np.full((1, 2), float(i)) for i in range(3)], axis).tolist()
    assert components(result["a"]) == [expected] * 3
    assert components(result["b"][0]) == [np.ones((6, 1) if axis == 0 else (2, 3), bool).tolist()] * 3


@each_executor
@pytest.mark.parametrize(("shape", "axis"), [((), 0), ((2,), 1), ((2,), -1), ((2, 2), 2)])
def test_all_gather_axes(executor: str, shape: tuple[int, ...], axis: int) -> None:
    for replicas in (1, 2):
        with pytest.raises(ArgumentError, match=r"cannot gather values of rank.*HINT: gather needs"):
            execute(executor, mirrored(replicas), lambda: here().all_gather(jnp.ones(shape), axis=axis))


@each_executor
def test_an_unknown_operation(executor: str) -> None:
    with pytest.raises(ArgumentError, match=r"unknown reduce_op 'MAX'.*HINT"):
        execute(executor, mirrored(2), lambda: here().all_reduce("MAX", 1.0))


def test_lockstep_gathers_uneven_arrays() -> None:
    strategy = mirrored(3)
    each = per_replica(strategy, [np.full((n, 2), float(n), np.float32) for n in (2, 0, 1)])
    result = strategy.run(lambda x: here().all_gather(x, axis=0), (each,))
    assert components(result) == [[[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]] * 3


def test_lockstep_reductions_need_equal_shapes() -> None:
    strategy = mirrored(2)
    each = per_replica(strategy, [np.ones(1, np.float32), np.ones(2, np.float32)])
    with pytest.raises(ShapeError, match=r"all_reduce needs equal arrays.*float32\[1\]', 'float32\[2\].*HINT"):
        strategy.run(lambda x: here().all_reduce("SUM", x), (each,))


def test_outside_every_strategy_there_is_nobody_to_reduce_with() -> None:
    context = here()
    assert context.all_reduce("SUM", 3.0) == 3.0
    assert context.all_gather(jnp.ones(2), axis=0).tolist() == [1.0, 1.0]
    assert repr(context) == "ReplicaContext(strategy=DefaultStrategy, replica_id_in_sync_group=0)"


def test_a_context_belongs_to_its_replica_function() -> None:
    kept: list[jd.ReplicaContext] = []
    mirrored(2).run(lambda: kept.append(here()))
    for call in (
        lambda: kept[0].all_reduce("SUM", 1.0),
        lambda: kept[0].all_gather(jnp.ones(1), axis=0),
        lambda: kept[0].merge_call(lambda s: None),
    ):
        with pytest.raises(ContextError, match=r"outside the replica function.*HINT: call jd.get_replica_context"):
            call()
    with pytest.raises(ContextError, match="outside the replica function"):
        mirrored(2).run(lambda: here().merge_call(lambda s: kept[0].all_reduce("SUM", 1.0)))


# merge_call


@each_executor
def test_merge_call_with_nested_arguments(executor: str) -> None:
    def merged(strategy: jd.Strategy, nest: Any, *, scale: float, note: str) -> Any:
        assert note == "kept"
        total = strategy.reduce("SUM", nest["a"][0], axis=None)
        return {"total": total, "rows": strategy.gather(nest["b"], axis=0), "each": nest["b"], "scaled": total * scale}

    def fn() -> Any:
        nest = {"a": (fraction() + 1,), "b": jnp.ones(1) * fraction()}
        result = here().merge_call(merged, (nest,), {"scale": 2.0, "note": "kept"})
        return result, result["total"] + fraction()

    result, mixed = execute(executor, mirrored(2), fn)
    assert components(result["total"]) == [3.0, 3.0]
    assert components(result["rows"]) == [[0.0, 1.0]] * 2
    assert components(result["each"]) == [[0.0], [1.0]]
    assert components(result["scaled"]) == [6.0, 6.0]
    assert components(mixed) == [3.0, 4.0]


@each_executor
def test_several_merge_calls_in_one_step(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)

    def add(strategy: jd.Strategy, x: Any) -> Any:
        return v.assign_add(strategy.reduce("SUM", x, axis=None)).read_value()

    def fn() -> Any:
        first = here().merge_call(add, (fraction() + 1,))
        second = here().merge_call(add, (first * (fraction() + 1),))
        return first, second, v + fraction()

    first, second, last = execute(executor, strategy, fn)
    assert components(first) == [4.0, 4.0]
    assert components(second) == [16.0, 16.0]
    assert components(last) == [16.0, 17.0]
    assert components(v) == [16.0, 16.0]


@each_executor
def test_merge_call_runs_once_and_may_return_anything(executor: str) -> None:
    calls: list[None] = []

    def merged(strategy: jd.Strategy) -> Any:
        calls.append(None)
        return {"text": "same", "none": None, "variable": v}

    v = variable(mirrored(2), 1.0)
    result = execute(executor, mirrored(2), lambda: here().merge_call(merged))
    assert len(calls) == 1
    assert result["text"] == "same"
    assert result["none"] is None
    # Eagerly it is itself, as in TensorFlow; a compiled function returns its value, which later steps leave as it is.
    assert result["variable"] is v or (executor == "compiled" and isinstance(result["variable"], jax.Array))
    v.assign(2.0)
    assert float(result["variable"]) == (1.0 if executor == "compiled" else 2.0)


@each_executor
def test_an_exception_in_merge_call_is_the_users(executor: str) -> None:
    def merged(strategy: jd.Strategy) -> None:
        raise KeyError("cause")

    with pytest.raises(KeyError, match="cause"):
        execute(executor, mirrored(2), lambda: here().merge_call(merged))


@each_executor
def test_update_is_once_for_all_replicas(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)
    calls: list[None] = []

    def change(v: jd.Variable, x: Any, *, scale: float) -> Any:
        calls.append(None)
        v.assign_add(x * scale)

    def fn() -> None:
        here().update(v, change, (2.0,), {"scale": 3.0})

    execute(executor, strategy, fn)
    assert components(v) == [7.0, 7.0]
    assert len(calls) == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_run_inside_merge_call(replicas: int) -> None:
    strategy = mirrored(replicas)

    def merged(strategy: jd.Strategy, x: Any) -> Any:
        return strategy.run(lambda y: y * 10 + ident(), (x,))

    assert components(strategy.run(lambda: here().merge_call(merged, (ident(),)))) == [0, 11][:replicas]


def test_ids_work_in_random_keys() -> None:
    def draw() -> Any:
        return jax.random.uniform(jax.random.fold_in(jax.random.key(0), ident()), ())

    lockstep, compiled = (components(execute(e, mirrored(2), draw)) for e in ("lockstep", "compiled"))
    assert lockstep == compiled
    assert lockstep[0] != lockstep[1]


@each_executor
@pytest.mark.parametrize("strategy", [one_device(1), mirrored(1), jd.get_strategy(), mirrored(2)])
@pytest.mark.parametrize(
    ("value", "op", "dtype", "each"),
    [
        (np.uint8(200), "MEAN", "float32", 200.0),
        (np.array([True, False]), "SUM", "int32", [1, 0]),
        (np.int32(2**31 - 1), "MEAN", "float32", 2.0**31),
        (3, "MEAN", "float32", 3.0),
        (2.5, "SUM", "float32", 2.5),
        (np.float64(1.5), "SUM", "float32", 1.5),
        (jnp.bfloat16(1.5), "MEAN", "bfloat16", 1.5),
    ],
)
def test_one_replica_reduces_to_the_dtype_that_several_give(
    executor: str, strategy: jd.Strategy, value: Any, op: str, dtype: str, each: Any
) -> None:
    result = execute(executor, strategy, lambda: here().all_reduce(op, value))
    array = result.values[0] if isinstance(result, jd.DistributedValues) else result
    count = strategy.num_replicas_in_sync if op == "SUM" else 1
    assert isinstance(array, jax.Array)
    assert array.dtype == dtype
    np.testing.assert_array_equal(np.asarray(array, np.float64), np.asarray(each) * count)


@each_executor
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("at", [3.0, np.float32(3), np.ones(2), jnp.ones(2), {"a": 1.0, "b": np.ones(1)}], ids=str)
def test_a_sum_is_differentiated_by_numbers_of_all_kinds(executor: str, replicas: int, op: str, at: Any) -> None:
    def fn() -> Any:
        weight = jnp.asarray(1 + 2 * ident(), jnp.float32)
        return jax.grad(lambda x: weight * sum(jnp.sum(y) for y in jax.tree.leaves(here().all_reduce(op, x))))(at)

    expected = sum(1 + 2 * replica for replica in range(replicas)) / (1 if op == "SUM" else replicas)
    for leaf in jax.tree.leaves(execute(executor, mirrored(replicas), fn)):
        for part in components(leaf):
            np.testing.assert_allclose(part, np.full(np.shape(part), expected))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("call", [lambda x: here().all_reduce("SUM", x), lambda x: here().all_gather(x, 0)])
def test_a_collective_of_a_string_is_refused(replicas: int, call: Any) -> None:
    with pytest.raises(TypeError, match=r"'x' is no number or array\. HINT"):
        mirrored(replicas).run(lambda: call("x"))
