"""Mistakes that begin in the second call, as state begins with zero, are found; right programs stay right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from verified_programs import arrays

ROWS = 12
DECAY = 0.9


def own(kind: str, w: Any, x: Any, y: Any) -> Any:
    """A replica's part of what is added to a state that begins with zero."""
    errors = (x @ w)[:, 0] - y[:, 0]
    parts = {
        "momentum": lambda: (x * errors[:, None]).sum(0)[:, None] / ROWS,
        "average of losses": lambda: (errors**2).sum() / ROWS,
        "running sum": lambda: jnp.abs(errors).sum(),
        "second moments": lambda: (x**2).sum(0) / ROWS,
        "average of weights": lambda: w / context().num_replicas_in_sync,
    }
    return parts[kind]()


KINDS = "momentum", "average of losses", "running sum", "second moments", "average of weights"


def context() -> Any:
    return jd.get_replica_context()


def begun(kind: str) -> Any:
    return np.zeros({"momentum": (3, 1), "second moments": (3,), "average of weights": (3, 1)}.get(kind, ()), "float32")


def next_of(kind: str, old: Any, w: Any, x: Any, y: Any, *, right: bool) -> Any:
    """The new state, the same on all replicas; a wrong one adds up the old state of all of them, too."""
    part = own(kind, w, x, y)
    if right:
        return DECAY * old + context().all_reduce("SUM", part)
    return context().all_reduce("SUM", DECAY * old + part)


def of_variables(strategy: jd.Strategy, kind: str, *, right: bool, every: int) -> Any:
    with strategy.scope():
        w = jd.Variable(np.ones((3, 1), "float32"), name="w")
        transform: Any = optax.MultiSteps(optax.sgd(0.1), every) if every > 1 else optax.sgd(0.1)
        optimizer = jd.Optimizer(transform, [w])
        # What each replica assigns is added up: that of the wrong ones has the old state in each part.
        aggregation = "only_first_replica" if right else "sum"
        held = jd.Variable(begun(kind), name="held", trainable=False, aggregation=aggregation)

    def replica(x: Any, y: Any) -> None:
        old, value = held.read_value(), w.read_value()
        gradient = (x * (x @ value - y)).sum(0)[:, None] / ROWS
        if right:
            held.assign(next_of(kind, old, value, x, y, right=True))
        else:
            held.assign(DECAY * old + own(kind, value, x, y))
        optimizer.apply_gradients([gradient])

    return jd.function(lambda *batch: strategy.run(replica, batch)), ()


def of_state(strategy: jd.Strategy, kind: str, *, right: bool, every: int) -> Any:
    del every

    def replica(state: Any, x: Any, y: Any) -> Any:
        w, old = state
        gradient = context().all_reduce("SUM", (x * (x @ w - y)).sum(0)[:, None] / ROWS)
        return w - 0.1 * gradient, next_of(kind, old, w, x, y, right=right)

    state = strategy.place((np.ones((3, 1), "float32"), begun(kind)))
    return jd.function(lambda *batch: strategy.run(replica, batch)), (state,)


@pytest.mark.quick_cases(4, whole=True)
@pytest.mark.parametrize("right", [True, False], ids="right wrong".split())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("program", "every"),
    [(of_variables, 1), (of_variables, 3), (of_state, 1)],
    ids="variables accumulated state".split(),
)
def test_a_state_that_begins_with_zero_is_verified_in_the_second_call(
    program: Any, every: int, kind: str, right: bool
) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        step, state = program(strategy, kind, right=right, every=every)
        found = testing.verify(step, *state, *arrays((ROWS, 3), (ROWS, 1)), strategy=strategy, raises=False)
    assert found.right == right, str(found)
    assert "step(s) later" in str(found), str(found)


def test_a_step_that_trains_nothing_is_verified_in_its_second_call() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = jd.Variable(0.0, trainable=False, aggregation="sum")

    @jd.function
    def step(x: Any) -> None:
        strategy.run(lambda x: total.assign(total + x.sum()), (x,))

    with pytest.raises(testing.NotOneDeviceError, match=r"1 step\(s\) later"):
        testing.verify(step, *arrays((ROWS, 3)), strategy=strategy)
