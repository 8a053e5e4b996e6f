from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ContextError, ShapeError, StrategyMixError, TraceError, VariableError
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


def leaves(strategy: jd.Strategy, kind: str) -> Any:
    n = strategy.num_replicas_in_sync
    if kind == "rows":
        return per_replica(strategy, [np.full((2, 1), float(i), np.float32) for i in range(n)])
    if kind == "scalars":
        return per_replica(strategy, [jnp.int32(i) for i in range(n)])
    if kind == "numbers":
        return per_replica(strategy, [i + 0.5 for i in range(n)])
    if kind == "same number":
        return per_replica(strategy, [4] * n)
    if kind == "bf16":
        return per_replica(strategy, [jnp.ones(2, jnp.bfloat16) * i for i in range(n)])
    if kind == "bool":
        return per_replica(strategy, [jnp.asarray(i % 2 == 0) for i in range(n)])
    if kind == "mirrored":
        return strategy.place(jnp.arange(3.0))
    return {"array": jnp.ones(2), "host": np.arange(2, dtype=np.int32), "none": None, "int": 3}[kind]


KINDS = ["rows", "scalars", "numbers", "same number", "bf16", "bool", "mirrored", "array", "host", "none", "int"]
nests = st.recursive(
    st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner) | st.tuples(inner),
    max_leaves=5,
)


@settings(max_examples=15)
@given(nest=nests)
def test_both_executors_split_and_join_any_nest(nest: Any) -> None:
    strategy = mirrored(2)
    args = jax.tree.map(lambda kind: leaves(strategy, kind), nest)

    def fn(x: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + leaf, x), x

    results = [execute(executor, strategy, fn, args) for executor in ("lockstep", "compiled")]
    is_leaf = lambda x: isinstance(x, jd.DistributedValues)  # noqa: E731
    one, two = (jax.tree.flatten(result, is_leaf=is_leaf) for result in results)
    assert one[1] == two[1]
    for a, b in zip(one[0], two[0], strict=True):
        for left, right in zip(
            strategy.experimental_local_results(a), strategy.experimental_local_results(b), strict=False
        ):
            np.testing.assert_array_equal(np.asarray(left).astype(np.float32), np.asarray(right).astype(np.float32))
            assert np.shape(left) == np.shape(right)


@pytest.mark.quick_cases(4)
@each_executor
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 8])
def test_any_number_of_replicas(executor: str, replicas: int) -> None:
    strategy = mirrored(replicas)
    rows = leaves(strategy, "rows")

    def fn(x: Any, *, scale: Any) -> Any:
        return x * scale + fraction(), here().all_reduce("SUM", x)

    own, total = execute(executor, strategy, fn, rows, scale=jnp.float32(10))
    assert components(own) == [[[11.0 * i]] * 2 for i in range(replicas)]
    assert components(total) == [[[replicas * (replicas - 1) / 2]] * 2] * replicas


@each_executor
def test_replicas_see_their_own_shapes(executor: str) -> None:
    seen: list[Any] = []
    strategy = mirrored(2)
    execute(
        executor,
        strategy,
        lambda a, b, c: seen.append((a.shape, b.shape, c.shape, a.dtype.name)),
        leaves(strategy, "rows"),
        leaves(strategy, "scalars"),
        leaves(strategy, "mirrored"),
    )
    assert set(seen) == {((2, 1), (), (3,), "float32")}


@each_executor
def test_static_arguments_reach_the_replicas_as_they_are(executor: str) -> None:
    marker = object()
    seen: list[Any] = []

    def fn(number: int, text: str, thing: Any, v: jd.Variable, *, flag: bool) -> Any:
        seen.append((number, text, thing, v, flag))
        return thing, v, text

    v = variable(mirrored(2), 1.0)
    result = execute(executor, mirrored(2), fn, 3, "text", marker, v, flag=True)
    assert set(seen) == {(3, "text", marker, v, True)}
    assert result == (marker, v, "text")


@each_executor
def test_functional_state(executor: str) -> None:
    strategy = mirrored(2)
    state = strategy.place({"w": np.ones(2, np.float32), "step": 0})
    rows = per_replica(strategy, [np.full(2, 1.0, np.float32), np.full(2, 3.0, np.float32)])

    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] - here().all_reduce("MEAN", x), "step": state["step"] + 1}

    for expected in (-1.0, -3.0):
        state = execute(executor, strategy, step, state, rows)
        assert components(state["w"]) == [[expected] * 2] * 2
    assert components(state["step"]) == [2, 2]
    if executor == "compiled":
        assert isinstance(state["w"], jd.Mirrored)


@each_executor
@pytest.mark.parametrize("what", ["read", "write", "argument", "value", "one device"])
def test_mixing_strategies(executor: str, what: str) -> None:
    other = mirrored(3)
    v, w, value = variable(other, 1.0, name="w"), variable(one_device(1), 1.0), other.run(ident)

    def call() -> Any:
        if what == "argument":
            return execute(executor, mirrored(2), lambda v: v + 1.0, v)
        if what == "value":
            return execute(executor, mirrored(2), lambda x: x + 1, value)
        bodies = {"read": lambda: v + 1.0, "write": lambda: v.assign(2.0), "one device": lambda: w + 1.0}
        return execute(executor, mirrored(2), bodies[what])

    with pytest.raises(StrategyMixError, match=r"<MirroredStrategy with 2 replica.*HINT"):
        call()
    assert v.numpy() == 1.0


@each_executor
def test_mixing_in_reductions(executor: str) -> None:
    value = mirrored(3).run(ident)
    reduce = lambda x: mirrored(2).reduce("SUM", x, axis=None)  # noqa: E731
    with pytest.raises(StrategyMixError, match=r"3 replica\(s\).*HINT: use the strategy that made"):
        (jd.function(reduce) if executor == "compiled" else reduce)(value)


@each_executor
@pytest.mark.parametrize("arguments", [(jnp.ones(2),), ((), [1]), ((), 3)])
def test_bare_arguments(arguments: tuple[Any, ...], executor: str) -> None:
    run = lambda: mirrored(2).run(lambda x: x, *arguments)  # noqa: E731
    with pytest.raises(
        jd.errors.ArgumentTypeError, match=r"args must be a tuple or list, and kwargs .*HINT: strategy.run\(fn, args"
    ):
        (jd.function(run) if executor == "compiled" else run)()


def test_values_that_no_array_can_hold() -> None:
    strategy = mirrored(2)
    each = per_replica(strategy, ["a", "b"])
    assert execute("lockstep", strategy, lambda x: x, each).values == ("a", "b")
    with pytest.raises(TraceError, match=r"\('a', 'b'\) cannot be one array.*HINT: pass numbers"):
        execute("compiled", strategy, lambda x: x, each)


@pytest.mark.parametrize(
    ("parts", "error"),
    [((1.0, np.float32(2)), TraceError), ((np.ones(2, np.float32), np.ones(2, np.int32)), ShapeError)],
    ids=["a number and an array", "two dtypes"],
)
def test_values_of_several_kinds(parts: tuple[Any, ...], error: type[Exception]) -> None:
    strategy = mirrored(2)
    each = strategy.run(lambda: jnp.asarray(parts[k]) if (k := int(ident())) else _bare(parts[0]))
    with pytest.raises(error, match=r"cannot be one array.*HINT: pass numbers"):
        execute("compiled", strategy, lambda x: x * 2, each)


def _bare(part: Any) -> Any:
    return part if isinstance(part, float) else jnp.asarray(part)


@pytest.mark.parametrize(
    "numbers", [(0.0, -0.0), (-0.0, -0.0), (complex(0, 0.0), complex(0, -0.0)), (1, True), (1.0, 1.0)]
)
@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_numbers_that_differ_in_their_sign_or_kind_alone(executor: str, numbers: tuple[complex, complex]) -> None:
    strategy = mirrored(2)
    result = execute(executor, strategy, lambda x: jnp.asarray(x, jnp.complex64), per_replica(strategy, numbers))
    found = np.stack(list(map(np.asarray, strategy.experimental_local_results(result))))
    assert found.tobytes() == np.asarray(numbers, np.complex64).tobytes()


def test_a_variable_that_would_diverge() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, name="w")

    def merged(strategy: jd.Strategy, x: Any) -> None:
        v.assign(x.data)

    with pytest.raises(VariableError, match=r"w:0 would get a different value on each of 2 replicas.*HINT: reduce"):
        execute("compiled", strategy, lambda: here().merge_call(merged, (fraction(),)))
    assert v.numpy() == 1.0


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_what_was_made_outside_of_the_scope(how: str) -> None:
    strategy = mirrored(2)
    v = jd.Variable(1.0, name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1), [v])

    def step() -> None:
        _, grads = jd.value_and_grad(lambda: v * fraction(), [v])()
        optimizer.apply_gradients(grads)

    with pytest.raises((VariableError, StrategyMixError), match=r"HINT: make .*scope"):
        execute(how, strategy, step)


def test_a_failing_replica_function_leaves_the_variables() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=jd.VariableAggregation.MEAN)
    on_read = variable(strategy, 1.0, synchronization=jd.VariableSynchronization.ON_READ)

    def fn() -> None:
        v.assign_add(1.0)
        on_read.assign_add(1.0)
        raise KeyError

    with pytest.raises(KeyError):
        execute("compiled", strategy, fn)
    assert components(v) == components(on_read) == [1.0, 1.0]


def test_python_control_flow_by_replica_is_for_lockstep() -> None:
    strategy = mirrored(2)
    fn = lambda: jnp.ones(1) if ident() == 0 else jnp.zeros(1)  # noqa: E731
    assert components(strategy.run(fn)) == [[1.0], [0.0]]
    with pytest.raises(jax.errors.TracerBoolConversionError):
        execute("compiled", strategy, fn)


def test_collectives_inside_loops() -> None:
    strategy = mirrored(2)

    def fn(x: Any) -> Any:
        def body(c: Any, y: Any) -> Any:
            total = here().all_reduce("SUM", y)
            return c + total, here().merge_call(lambda s, z: s.reduce("MEAN", z, axis=None), (y,))

        mapped = jax.vmap(lambda y: here().all_reduce("SUM", y))(x)
        return jax.lax.scan(body, jnp.float32(0), x), mapped

    each = per_replica(strategy, [jnp.arange(3.0), jnp.arange(3.0) + 1])
    (carry, means), mapped = execute("compiled", strategy, fn, each)
    assert components(carry) == [9.0, 9.0]
    assert components(means) == [[0.5, 1.5, 2.5]] * 2
    assert components(mapped) == [[1.0, 3.0, 5.0]] * 2


def test_a_stale_context_is_refused() -> None:
    kept: list[jd.ReplicaContext] = []
    execute("compiled", mirrored(2), lambda: kept.append(here()))
    with pytest.raises(ContextError, match="outside the replica function"):
        execute("compiled", mirrored(2), lambda: kept[0].all_reduce("SUM", 1.0))


def test_shard_map_in_user_code_sees_the_replica_axis() -> None:
    result = execute("compiled", mirrored(2), lambda: jax.lax.psum(fraction() + 1, "replica"))
    assert components(result) == [3.0, 3.0]


@pytest.mark.parametrize("strategy", [jd.FullyShardedStrategy, jd.CentralStorageStrategy])
def test_what_is_computed_of_a_mirrored_value_is_whole_on_each_replica(strategy: Any) -> None:
    options: dict[str, Any] = {"min_bytes": 0} if strategy is jd.FullyShardedStrategy else {}
    where = strategy(["CPU:0", "CPU:1"], **options)
    v = variable(where, np.arange(4, dtype=np.float32))
    step = jd.function(lambda value: jax.tree.map(lambda x: x * v.read_value(), value))
    assert components(step(where.place(np.full(4, 2, np.float32)))) == [[0.0, 2.0, 4.0, 6.0]] * 2
