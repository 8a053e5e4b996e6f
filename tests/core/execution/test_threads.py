"""Several threads at once: no update of a variable is lost, and no step fails."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import EXECUTORS, here, mirrored, one_device, variable

SUM, MEAN = jd.VariableAggregation.SUM, jd.VariableAggregation.MEAN
ON_READ = jd.VariableSynchronization.ON_READ
THREADS, STEPS = 4, 6


def strategies() -> dict[str, jd.Strategy]:
    return {
        "default": jd.get_strategy(),
        "one_device": one_device(1),
        "mirrored": mirrored(2),
        "central": jd.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0"),
        "sharded": jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=4),
    }


each_strategy = pytest.mark.parametrize("name", ["default", "one_device", "mirrored", "central", "sharded"])
each_executor = pytest.mark.parametrize("executor", EXECUTORS)


def at_once(*works: Callable[[], Any]) -> None:
    """Calls the functions in threads of their own, each several times."""
    barrier, errors = threading.Barrier(len(works), timeout=60), list[BaseException]()

    def repeat(work: Callable[[], Any]) -> None:
        try:
            barrier.wait()
            for _ in range(STEPS):
                work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


def step_of(strategy: jd.Strategy, fn: Callable[[], Any], executor: str) -> Callable[[], Any]:
    def run() -> Any:
        return strategy.run(fn)

    return run if executor == "lockstep" else jd.function(run)


@pytest.mark.quick_cases(3)
@each_strategy
@each_executor
def test_steps_that_add_to_one_variable(name: str, executor: str) -> None:
    strategy = strategies()[name]
    v = variable(strategy, jnp.zeros(8), aggregation=MEAN)
    step = step_of(strategy, lambda: v.assign_add(jnp.ones(8)), executor)
    at_once(*[step] * THREADS)
    assert float(v.numpy()[0]) == THREADS * STEPS


@each_executor
def test_each_thread_has_a_function_of_its_own(executor: str) -> None:
    strategy = mirrored(2)
    v, counts = (
        variable(strategy, 0.0, aggregation=SUM),
        variable(strategy, 0.0, synchronization=ON_READ, aggregation=SUM),
    )

    def own() -> Callable[[], Any]:
        def fn() -> None:
            v.assign_add(jnp.ones(()))
            counts.assign_add(jnp.ones(()))

        return step_of(strategy, fn, executor)

    at_once(*[own() for _ in range(THREADS)])
    assert float(v.numpy()) == 2 * THREADS * STEPS
    assert float(counts.numpy()) == 2 * THREADS * STEPS


def test_eager_steps_compiled_ones_and_writes_outside_of_steps() -> None:
    strategy = mirrored(2)
    v, plain = variable(strategy, 0.0, aggregation=SUM), jd.Variable(0.0)

    def fn() -> None:
        v.assign_add(jnp.ones(()))

    def outside() -> None:
        v.assign_add(1.0)
        plain.assign_add(1.0)

    def rows() -> None:
        plain.assign_add(1.0)
        assert float(v.numpy()) >= 0.0

    at_once(step_of(strategy, fn, "lockstep"), step_of(strategy, fn, "compiled"), outside, rows)
    assert float(v.numpy()) == 5 * STEPS
    assert float(plain.numpy()) == 2 * STEPS


def test_several_strategies_share_a_variable_of_none() -> None:
    plain, others = jd.Variable(0.0), [mirrored(2), one_device(3), mirrored(3)]

    def add() -> None:
        plain.assign_add(1.0)

    at_once(*[step_of(strategy, add, "lockstep") for strategy in others])
    assert float(plain.numpy()) == (2 + 1 + 3) * STEPS


@pytest.mark.quick_cases(3)
@each_strategy
@pytest.mark.parametrize("inside", [True, False])
def test_an_optimizer_of_several_threads(name: str, inside: bool) -> None:
    strategy = strategies()[name]
    v = variable(strategy, jnp.zeros(8))
    with strategy.scope():
        optimizer = jd.Optimizer(optax.sgd(1.0, momentum=0.0), [v])

    def apply() -> None:
        optimizer.apply_gradients([-jnp.ones(8)], reduce_op="MEAN")

    at_once(*[(lambda: strategy.run(apply)) if inside else apply] * THREADS)
    assert float(v.numpy()[0]) == THREADS * STEPS


@pytest.mark.slow
def test_rows_that_several_threads_scatter() -> None:
    strategy = mirrored(2)
    table, own = variable(strategy, jnp.zeros((3, 2)), aggregation=SUM), jd.Variable(jnp.zeros((3, 2)))
    rows = jd.IndexedSlices(jnp.ones((1, 2)), jnp.asarray([1]))
    at_once(*[lambda: (strategy.run(lambda: table.scatter_add(rows)), own.scatter_add(rows))] * THREADS)
    assert table.numpy()[1].tolist() == [2.0 * THREADS * STEPS] * 2
    assert own.numpy()[1].tolist() == [1.0 * THREADS * STEPS] * 2


def test_a_step_that_waits_for_another_thread_which_writes() -> None:
    strategy, wrote = mirrored(2), threading.Event()
    v, seen = variable(strategy, 0.0, aggregation=SUM), list[float]()

    def fn() -> None:
        v.assign_add(jnp.ones(()))
        thread = threading.Thread(
            target=lambda: (v.assign_add(10.0), jd.function(v.assign_add)(jnp.float32(5)), wrote.set())
        )
        if not wrote.is_set():
            thread.start()
        assert wrote.wait(60)
        seen.append(float(here().all_reduce("MEAN", v.read_value())))

    strategy.run(fn)
    assert seen == [2.0, 2.0], "the step sees what it has written itself"
    assert float(v.numpy()) == 17.0


def test_a_step_that_only_reads_sees_what_others_write() -> None:
    strategy = one_device(0)
    v = variable(strategy, 0.0)

    def fn() -> tuple[float, float]:
        before = float(v.read_value())
        thread = threading.Thread(target=v.assign, args=(3.0,))
        thread.start()
        thread.join(60)
        return before, float(v.read_value())

    assert strategy.run(fn) == (0.0, 3.0)


SETTINGS: dict[str, tuple[Callable[[], Any], Any]] = {
    "enable_x64": (lambda: str(jnp.ones(1, float).dtype), True),
    "default_matmul_precision": (lambda: jax.config.jax_default_matmul_precision, "float32"),
    "default_prng_impl": (lambda: str(jax.random.key_impl(jax.random.key(0))), "rbg"),
    "numpy_rank_promotion": (lambda: jax.config.jax_numpy_rank_promotion, "warn"),
    "numpy_dtype_promotion": (lambda: jax.config.jax_numpy_dtype_promotion, "standard"),
    "debug_nans": (lambda: jax.config.jax_debug_nans, True),
    "disable_jit": (lambda: jax.config.jax_disable_jit, True),
}


@each_strategy
@pytest.mark.parametrize("setting", [*SETTINGS, "numpy"])
def test_settings_of_the_thread_that_calls_hold_on_every_replica(setting: str, name: str) -> None:
    """JAX keeps those of its context managers by thread, and replicas that wait for each other have threads."""
    strategy = strategies()[name]
    told: list[Any] = []
    ask, value = SETTINGS.get(setting, (lambda: np.geterr()["under"], "raise"))

    def replica() -> None:
        jd.get_replica_context().all_reduce("SUM", jnp.ones(()))  # pyright: ignore[reportOptionalMemberAccess]
        told.append(ask())

    strategy.run(replica)
    usual = set(told)
    told.clear()
    with np.errstate(under=value) if setting == "numpy" else getattr(jax, setting)(value):
        strategy.run(replica)
        wanted = ask()
    assert set(told) == {wanted} != usual
