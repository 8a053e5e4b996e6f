"""A fully sharded variable is one value to user code, whatever it does with it, as a mirrored one is."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

# ruff: noqa: PLW0108 (what looks like a needless lambda is a function of the variable's value)
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback

import jaxtribute as jd
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.policies.sharded import ShardedPolicy
from jaxtribute.errors import VariableError
from replicas import components, each_executor, execute, fraction, mirrored, per_replica, variable

SUM, MEAN, FIRST = (
    jd.VariableAggregation.SUM,
    jd.VariableAggregation.MEAN,
    jd.VariableAggregation.ONLY_FIRST_REPLICA,
)
SHARDED = {n: jd.FullyShardedStrategy([f"CPU:{i}" for i in range(n)], min_bytes=0) for n in (2, 3, 4)}
FIVE = np.arange(5, dtype=np.float32)


@settings(max_examples=12)
@given(shape=st.lists(st.integers(1, 5), max_size=3).map(tuple), replicas=st.sampled_from([2, 3, 4]))
def test_any_shape_is_stored_in_equal_slices_and_read_whole(shape: tuple[int, ...], replicas: int) -> None:
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    for given_as in (value, jnp.asarray(value)):
        v = variable(SHARDED[replicas], given_as)
        np.testing.assert_array_equal(v.read_value(), value)
        if value.size < replicas:
            assert isinstance(v.policy, MirroredPolicy)
            continue
        size = -(-value.size // replicas)
        assert [shard.data.shape for shard in v.stored.addressable_shards] == [(size,)] * replicas
        flat = np.pad(value.ravel(), (0, size * replicas - value.size))
        np.testing.assert_array_equal(v.stored, flat)


def test_each_device_holds_its_slice_only() -> None:
    v = variable(SHARDED[4], np.zeros((8, 2), np.float32), name="v")
    assert [shard.device for shard in v.stored.addressable_shards] == jax.devices()[:4]
    assert "CPU:0" in v.device
    assert v.policy.mesh == SHARDED[4].extended.mesh
    assert repr(v).startswith("FullyShardedVariable:{\n  0: <jd.Variable 'v:0' shape=(8, 2)")


def test_small_variables_are_mirrored() -> None:
    strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=20)
    assert isinstance(variable(strategy, FIVE).policy, ShardedPolicy)
    assert isinstance(variable(strategy, FIVE[:4]).policy, MirroredPolicy)
    assert isinstance(variable(strategy, FIVE, synchronization=jd.VariableSynchronization.ON_READ).policy.mesh, object)


Action = Callable[[jd.Variable], Any]
# What replicas do with a variable of five elements, and what it holds then: by both strategies and executors the same.
ACTIONS: dict[str, tuple[jd.VariableAggregation, Action]] = {
    "read": (SUM, lambda v: v * (fraction() + 1)),
    "assign, mean": (MEAN, lambda v: v.assign(jnp.ones(5) * fraction()).read_value()),
    "assign, sum": (SUM, lambda v: v.assign(jnp.ones(5) * fraction()).read_value()),
    "assign, first": (FIRST, lambda v: v.assign(jnp.ones(5) * (fraction() + 3)).read_value()),
    "add, then read": (SUM, lambda v: v.assign_add(jnp.ones(5) * fraction()) + 1),
    "twice": (MEAN, lambda v: v.assign_sub(v * fraction()).assign_add(v.read_value()).read_value()),
    "rows": (
        SUM,
        lambda v: v.scatter_add(jd.IndexedSlices(jnp.ones(1) * fraction(), jnp.asarray([1]))).read_value(),
    ),
    "row of the first": (
        FIRST,
        lambda v: v.scatter_update(jd.IndexedSlices(jnp.ones(1), jnp.asarray([4]))).read_value(),
    ),
    "merge": (
        SUM,
        lambda v: jd.get_replica_context().merge_call(  # pyright: ignore[reportOptionalMemberAccess]
            lambda s, x: v.assign(s.reduce("SUM", x, axis=None)).read_value(), (v * fraction(),)
        ),
    ),
    "update": (
        SUM,
        lambda v: jd.get_replica_context().update(  # pyright: ignore[reportOptionalMemberAccess]
            v, lambda w: w.assign_add(np.ones(5)).read_value()
        ),
    ),
    "gradient": (SUM, lambda v: jd.grad(lambda: (v * v * (fraction() + 1)).sum(), v)()),
    "gradient of a gradient": (
        SUM,
        lambda v: jd.grad(lambda: (jd.grad(lambda: (v**3).sum() * (fraction() + 1), v)() ** 2).sum(), v)(),
    ),
    "gradient through a write": (
        SUM,
        lambda v: jd.grad(lambda: (v.assign(v * (fraction() + 1)) * v).sum(), v)(),
    ),
}


@pytest.mark.quick_cases(1)
@each_executor
def test_replicas_see_and_do_what_they_would_with_a_mirrored_variable(executor: str) -> None:
    results: list[Any] = []
    for strategy in (mirrored(2), SHARDED[2]):
        variables = {name: variable(strategy, FIVE, aggregation=how) for name, (how, _) in ACTIONS.items()}

        def fn(variables: dict[str, jd.Variable] = variables) -> Any:
            return {name: jnp.asarray(act(variables[name])) for name, (_, act) in ACTIONS.items()}

        returned = execute(executor, strategy, fn)
        results.append({name: (components(returned[name]), v.numpy().tolist()) for name, v in variables.items()})
    for name in ACTIONS:
        assert results[0][name] == results[1][name], name


def test_across_replicas() -> None:
    for strategy in (mirrored(2), SHARDED[2]):
        v = variable(strategy, FIVE)
        assert v.assign_add(np.ones(5)).numpy().tolist() == [1, 2, 3, 4, 5]
        v.scatter_mul(jd.IndexedSlices(jnp.zeros(1), jnp.asarray([0])))
        jd.function(lambda v=v: v.assign_sub(v * 2))()
        assert v.numpy().tolist() == [0, -2, -3, -4, -5]
        assert components(v) == [[0, -2, -3, -4, -5]] * 2
        assert float(jd.function(lambda v=v: jnp.sum(v.read_value()))()) == -14
        value, grads = jd.value_and_grad(lambda v=v: (v**2).sum(), v)()
        assert (float(value), grads.tolist()) == (54, [0, -4, -6, -8, -10])
        assert jd.function(lambda v=v: jd.grad(lambda: (v**2).sum(), v)())().tolist() == grads.tolist()
        strategy.extended.update(v, lambda v, x: v.assign(x), (FIVE,))
        assert strategy.reduce("MEAN", v, axis=None).tolist() == FIVE.tolist()
        assert [x.tolist() for x in strategy.experimental_local_results(v)] == [FIVE.tolist()] * 2


def test_a_value_that_differs_between_replicas_is_refused() -> None:
    v = variable(SHARDED[2], FIVE, name="v")

    def merged(strategy: jd.Strategy, x: Any) -> None:
        v.assign(x.data)

    def fn(x: Any) -> None:
        jd.get_replica_context().merge_call(merged, (x,))  # pyright: ignore[reportOptionalMemberAccess]

    x = per_replica(SHARDED[2], [FIVE, FIVE + 1])
    with pytest.raises(VariableError, match=r"v:0 would get a different value on each replica.*HINT: reduce"):
        execute("compiled", SHARDED[2], fn, x)
    with pytest.raises(VariableError, match="does not say how to combine"):
        execute("compiled", SHARDED[2], lambda: v.assign(FIVE))
    assert v.numpy().tolist() == FIVE.tolist()


def test_a_variable_is_gathered_once_however_often_it_is_read() -> None:
    v = variable(SHARDED[2], FIVE)

    def loss() -> Any:
        inner = jax.lax.fori_loop(0, 2, lambda _, x: x + v.read_value(), jnp.zeros(5))
        return (v + inner + v).sum()

    @jd.function
    def step() -> Any:
        return SHARDED[2].run(lambda: (loss() + loss(), v.read_value().sum()))

    assert [components(x) for x in step()] == [[80.0, 80.0], [10.0, 10.0]]
    program = next(iter(step._programs.values()))  # pyright: ignore[reportPrivateUsage]
    assert program.lower([]).as_text().count("stablehlo.all_gather") == 1  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(("regather", "gathers"), [(True, 2), (False, 1)])
def test_the_backward_pass_gathers_again_if_it_may(regather: bool, gathers: int) -> None:
    strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0, regather=regather)
    v, count = variable(strategy, FIVE), variable(strategy, 0.0, aggregation=MEAN)

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            count.assign_add(jnp.float32(1))
            return (jnp.sin(x * v) * v).sum(), {"x": x, "name": "aux", "none": None}

        (value, aux), grads = jd.value_and_grad(loss, [v], has_aux=True)()
        assert aux["name"] == "aux"
        return value, grads[0], aux["x"]

    step = jd.function(lambda x: strategy.run(replica_step, (x,)))
    x = per_replica(strategy, [FIVE, FIVE + 1])
    value, grads, same = step(x)
    for i in range(2):
        expected = jax.value_and_grad(lambda v, x=FIVE + i: (jnp.sin(x * v) * v).sum())(jnp.asarray(FIVE))
        np.testing.assert_allclose(value.values[i], expected[0], rtol=1e-6)
        np.testing.assert_allclose(grads.values[i], expected[1], rtol=1e-5)
        assert same.values[i].tolist() == (FIVE + i).tolist()
    assert float(count) == 1
    program = next(iter(step._programs.values()))  # pyright: ignore[reportPrivateUsage]
    text = program.lower([x.data]).as_text()  # pyright: ignore[reportFunctionMemberAccess]
    assert text.count('"stablehlo.all_gather"') == gathers


@pytest.mark.parametrize("form", ["plain", "in jit", "in scan"])
def test_what_a_user_checkpoints_is_computed_again_and_not_kept(form: str) -> None:
    v = variable(SHARDED[2], FIVE)
    block = jax.checkpoint(lambda x, w: jnp.tanh(x * w) * w)
    forms: dict[str, Callable[[Any, Any], Any]] = {
        "plain": block,
        "in jit": jax.jit(block),
        "in scan": lambda x, w: jax.lax.scan(lambda x, _: (block(x, w), None), x, None, length=1)[0],
    }

    def replica_step(x: Any) -> Any:
        value, grads = jd.value_and_grad(lambda: forms[form](x, v.read_value()).sum(), [v])()
        return value, grads[0]

    step = jd.function(lambda x: SHARDED[2].run(replica_step, (x,)))
    x = per_replica(SHARDED[2], [FIVE, FIVE + 1])
    value, grads = step(x)
    for i in range(2):
        expected = jax.value_and_grad(lambda w, x=FIVE + i: (jnp.tanh(x * w) * w).sum())(jnp.asarray(FIVE))
        np.testing.assert_allclose(value.values[i], expected[0], rtol=1e-6)
        np.testing.assert_allclose(grads.values[i], expected[1], rtol=1e-5)
    program = next(iter(step._programs.values()))  # pyright: ignore[reportPrivateUsage]
    text = program.lower([x.data]).as_text()  # pyright: ignore[reportFunctionMemberAccess]
    assert text.count("stablehlo.tanh") == 2  # in the forward pass, and again in the backward pass
    assert text.count('"stablehlo.all_gather"') == 2


def test_a_function_with_callbacks_runs_once() -> None:
    v = variable(SHARDED[2], FIVE)
    seen: list[float] = []

    def loss() -> Any:
        io_callback(lambda x: seen.append(float(x)), None, jax.lax.stop_gradient(v.read_value()).sum())
        return (v * v).sum()

    grads = execute("compiled", SHARDED[2], lambda: jd.value_and_grad(loss, v)()[1])
    assert components(grads) == [[0, 2, 4, 6, 8]] * 2
    jax.effects_barrier()
    assert seen == [10, 10]
