"""Variables made within functions: one for all replicas, which ask for the same, and made of what is stored outside."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ContextError, VariableError
from replicas import STRATEGIES, each_executor, each_strategy, execute, here, mirrored, per_replica, variable

DIFFERENT: dict[str, Callable[[int], jd.Variable]] = {
    "shape": lambda i: jd.Variable(jnp.ones(2 + i)),
    "shape of numbers": lambda i: jd.Variable([1.0] * (2 + i)),
    "dtype": lambda i: jd.Variable(jnp.ones(2), dtype=["float32", "int32"][i]),
    "dtype of the value": lambda i: jd.Variable(np.ones(2, ["float32", "int32"][i])),
    "name": lambda i: jd.Variable(lambda: 1.0, name=f"v{i}"),
    "trainable": lambda i: jd.Variable(1.0, trainable=bool(i)),
    "synchronization": lambda i: jd.Variable(1.0, synchronization=["auto", "on_read"][i]),
    "aggregation": lambda i: jd.Variable(1.0, aggregation=["sum", "mean"][i]),
}


@pytest.mark.parametrize("name", ["mirrored", "sharded", "central"])
@pytest.mark.parametrize("what", DIFFERENT)
def test_replicas_that_ask_for_different_variables_are_told(name: str, what: str) -> None:
    with pytest.raises(ContextError, match=r"(?s)=.*on replica 0 and with .*=.*on replica 1.*HINT"):
        STRATEGIES[name]().run(lambda: DIFFERENT[what](int(here().replica_id_in_sync_group)))


def test_replicas_that_ask_for_the_same_get_one_variable_with_the_first_ones_value() -> None:
    calls: list[int] = []

    def first_value() -> Any:
        calls.append(int(here().replica_id_in_sync_group))
        return jnp.full(2, 10.0 * calls[-1])

    by_function, by_value = mirrored(2).run(
        lambda: (jd.Variable(first_value, name="w"), jd.Variable(jnp.full(2, here().replica_id_in_sync_group)))
    )
    # The context is that of replica 0, whose value it is.
    assert calls == [0]
    for v in (by_function, by_value):
        assert isinstance(v, jd.Variable)
        assert v.numpy().tolist() == [0, 0]


def test_a_first_value_sees_what_its_replica_has_written() -> None:
    strategy = mirrored(2)
    counts = variable(strategy, 0.0, synchronization="on_read", aggregation="sum")

    def replica() -> jd.Variable:
        counts.assign(jnp.float32(5) + jnp.asarray(here().replica_id_in_sync_group, jnp.float32))
        return jd.Variable(counts.read_value)

    assert float(strategy.run(replica)) == 5


ROWS = [np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)]


def test_replicas_of_different_rows_share_what_they_make_in_a_program() -> None:
    strategy = mirrored(2)
    made: list[jd.Variable] = []

    def replica(x: Any) -> Any:
        made.append(jd.Variable(np.ones(3, np.float32), name="w", aggregation="sum"))
        made[-1].assign_add(x.sum(0))
        return made[-1] * 1

    found = jd.function(lambda x: strategy.run(replica, (x,)))(per_replica(strategy, ROWS))
    assert len(set(map(id, made))) == 1
    np.testing.assert_array_equal(np.asarray(found), [4, 4, 4])


def test_replicas_of_different_rows_that_make_different_variables_in_a_program_are_told() -> None:
    strategy = mirrored(2)
    step = jd.function(lambda x: strategy.run(lambda x: jd.Variable(np.ones(x.shape[0])) * 1, (x,)))
    with pytest.raises(ContextError, match=r"shape=\(2,\) on replica 0.*shape=\(1,\).*HINT"):
        step(per_replica(strategy, ROWS))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_variable_that_each_trace_makes_anew_is_an_error_in_replicas_too(replicas: int) -> None:
    strategy = mirrored(replicas)
    step = jd.function(lambda x: strategy.run(lambda x: jd.Variable(1.0, name="again") * x, (x,)))
    step(jnp.float32(1))
    with pytest.raises(VariableError, match=r"again.*HINT"):
        step(jnp.ones(2))


def lazily(w: jd.Variable, made: list[jd.Variable]) -> Any:
    """Makes a shadow of `w` once, after `w` has been written; returns the shadow's value."""
    if not made:
        made.append(jd.Variable(lambda: w.read_value() * 10))
    return made[0].read_value()


WAYS: dict[str, Callable[[jd.Variable, list[jd.Variable]], Any]] = {
    "plain": lazily,
    "differentiated": lambda w, made: jd.grad(lambda: jnp.sum(w * lazily(w, made)), w)(),
    "in a loop": lambda w, made: jax.lax.scan(lambda c, _: (c, lazily(w, made)), 0, None, length=2)[1][0],
}


@each_strategy
@each_executor
@pytest.mark.parametrize("way", WAYS)
def test_a_first_value_is_read_from_other_variables(make: Callable[[], jd.Strategy], executor: str, way: str) -> None:
    strategy = make()
    w = variable(strategy, jnp.asarray([1.0, 2.0]))
    made: list[jd.Variable] = []
    for _ in range(2):
        seen = execute(executor, strategy, lambda: WAYS[way](w, made))
        for part in strategy.experimental_local_results(seen):
            np.testing.assert_array_equal(part, [10, 20])
    assert len(set(map(id, made))) == 1  # replicas that run as Python come to it one after the other
    assert made[0].distribute_strategy is strategy
    made[0].assign([3.0, 4.0])
    np.testing.assert_array_equal(w.numpy(), [1, 2])


@each_strategy
@pytest.mark.parametrize("within", ["across", "replica"])
def test_in_a_program_it_is_read_as_before_the_step(make: Callable[[], jd.Strategy], within: str) -> None:
    # Eager code sees what it has written; a program has no values yet, so those from before it count, as under
    # TensorFlow's `init_scope`.
    strategy = make()
    w = variable(strategy, jnp.asarray([1.0, 2.0]), aggregation="only_first_replica")
    made: list[jd.Variable] = []

    def body() -> Any:
        w.assign_add(jnp.ones(2))
        return lazily(w, made)

    def step() -> Any:
        return strategy.run(body) if within == "replica" else body()

    with strategy.scope():
        for _ in range(2):
            seen = jd.function(step)() if not made else step()
            for part in strategy.experimental_local_results(seen):
                np.testing.assert_array_equal(part, [10, 20])
        np.testing.assert_array_equal(w.numpy(), [3, 4])


def test_a_lazy_average_follows_its_variable() -> None:
    strategy = mirrored(2)
    w = variable(strategy, 8.0, aggregation="only_first_replica")
    shadows: dict[int, jd.Variable] = {}

    @jd.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            w.assign(w * jnp.float32(0.5) + x)
            if not shadows:
                shadows[0] = jd.Variable(w.read_value, trainable=False, aggregation="only_first_replica")
            shadows[0].assign(shadows[0] * jnp.float32(0.75) + w * jnp.float32(0.25))
            return shadows[0].read_value()

        return strategy.run(replica, (x,))

    weight, average = 8.0, 8.0
    for x in (0.0, 2.0, 4.0):
        weight = 0.5 * weight + x
        average = 0.75 * average + 0.25 * weight
        assert float(step(jnp.float32(x))) == average
