"""Gradients of variables that a loss does not depend on, as TensorFlow's tape gives them: None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxtribute as jd
from jaxtribute.errors import ArgumentError
from replicas import STRATEGIES, execute

Loss = Callable[[Any, Any, Any], Any]


def chosen(a: Any, b: Any, x: Any) -> Any:
    return (a * x).sum()


def unused(a: Any, b: Any, x: Any) -> Any:
    first, _ = a * x, b * b
    return first.sum()


def stopped(a: Any, b: Any, x: Any) -> Any:
    return (a * lax.stop_gradient(b.read_value()) * x).sum()


def index(a: Any, b: Any, x: Any) -> Any:
    return a[jnp.argmax(b.read_value())] * x.sum()


def compiled_within(a: Any, b: Any, x: Any) -> Any:
    return jax.jit(lambda p, q: (p * 2.0, q * 3.0))(a.read_value(), b.read_value())[0].sum() * x.sum()


def checkpointed(a: Any, b: Any, x: Any) -> Any:
    return jax.checkpoint(lambda p, q: (p * jnp.sin(p), q * q))(a.read_value(), b.read_value())[0].sum() * x.sum()


def reduced(a: Any, b: Any, x: Any) -> Any:
    context = jd.get_replica_context()
    return chosen(a, b, x) if context is None else context.all_reduce("SUM", chosen(a, b, x))


CASES: dict[str, tuple[Loss, bool]] = {
    "not read": (chosen, False),
    "not read, and a sum": (reduced, False),
    "computed and not used": (unused, True),
    "behind stop_gradient": (stopped, True),
    "an index": (index, True),
    "in a compiled function": (compiled_within, True),
    "in a checkpoint": (checkpointed, True),
}
"""Losses that depend on the first variable alone, and whether they read the second."""


@pytest.mark.quick_cases(24, whole=True)
@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
@pytest.mark.parametrize(("loss", "reads"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_none_where_a_tape_gives_none(make: Any, loss: Loss, reads: bool, executor: str) -> None:
    strategy = make()
    with strategy.scope():
        a, b = jd.Variable(jnp.arange(1.0, 9.0)), jd.Variable(jnp.ones(8))
        frozen, count = jd.Variable(jnp.ones(8), trainable=False), jd.Variable(3)
    nones: list[list[bool]] = []

    def step(x: Any) -> Any:
        both = jd.value_and_grad(
            lambda: loss(a, b, x) * frozen.read_value().sum() * jnp.float32(count.read_value()),
            [a, b, frozen, count],
            unconnected_gradients="none",
        )
        _, grads = both()
        nones.append([grad is None for grad in grads])
        return next(grad for grad in grads if grad is not None)

    batch = next(iter(strategy.experimental_distribute_dataset([np.ones((7, 8), np.float32)])))
    got = execute(executor, strategy, lambda x: step(x.sum(0)), batch)
    # Eagerly it is known what is read, and not what becomes of it.
    assert all(told == [False, not (reads and executor == "lockstep"), True, True] for told in nones)

    def plain(batch: Any) -> Any:
        return execute(executor, strategy, lambda x: jd.grad(lambda: loss(a, b, x.sum(0)) * 24.0, [a])()[0], batch)

    for mine, theirs in zip(*map(strategy.experimental_local_results, (got, plain(batch))), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_several_losses_and_a_loss_of_nothing() -> None:
    a, b, c = jd.Variable(2.0), jd.Variable(3.0), jd.Variable(1.0, trainable=False)

    @jd.function
    def step() -> Any:
        both = jd.value_and_grads(lambda: (a * a, a * b), ([a, b], [a, b, c]), unconnected_gradients="none")
        _, (first, second) = both()
        assert first[1] is None
        assert second[2] is None
        _, nothing = jd.value_and_grad(lambda: jnp.float32(1), [c], unconnected_gradients="none")()
        assert nothing == [None]
        return first[0], second[:2]

    assert jax.tree.map(float, step()) == (4.0, [3.0, 2.0])
    with pytest.raises(ArgumentError, match=r"unconnected_gradients is 'zeros'. HINT: pass 'zero' or 'none'"):
        jd.value_and_grad(lambda: a * a, [a], unconnected_gradients="zeros")


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_elements_of_a_loss_are_added_up_as_by_a_tape(replicas: int, executor: str) -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        a, other = jd.Variable(2.0), jd.Variable(1.0)

    def step(x: Any) -> Any:
        value, (grad, none) = jd.value_and_grad(lambda: a * a * x, [a, other], unconnected_gradients="none")()
        assert none is None
        return value, grad

    batch = next(iter(strategy.experimental_distribute_dataset([np.arange(4, dtype=np.float32)])))
    value, grad = execute(executor, strategy, step, batch)
    found = np.concatenate(strategy.experimental_local_results(value))
    np.testing.assert_array_equal(found, [0.0, 4.0, 8.0, 12.0])
    assert sum(map(float, strategy.experimental_local_results(grad))) == 24.0


LOOK_UPS: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda table, ids: jnp.take(table.read_value(), ids, axis=0),
    "index": lambda table, ids: table.read_value()[ids],
    "one hot": lambda table, ids: jax.nn.one_hot(ids, 5) @ table.read_value(),
    "mapped": lambda table, ids: jax.vmap(lambda i: table.read_value()[i])(ids),
}


@pytest.mark.quick_cases(8, whole=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_a_replica_without_rows_answers_as_those_with_rows(look_up: str, several: bool, compiled: bool) -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with strategy.scope():
        table, weights, unread = (jd.Variable(np.ones(shape, np.float32)) for shape in ((5, 2), (2, 2), (3,)))
        sums = [jd.Variable(np.zeros(v.shape, np.float32), aggregation="SUM") for v in (table, weights)]
    variables = [table, weights, unread]

    def replica(ids: Any) -> list[bool]:
        def loss() -> Any:
            return jnp.square(LOOK_UPS[look_up](table, ids) @ weights.read_value()).sum()

        if several:
            both = jd.value_and_grads(
                lambda: (loss(), jnp.float32(0)), [variables, [unread]], unconnected_gradients="none"
            )
            grads, other = both()[1]
            assert other == [None]
        else:
            grads = jd.value_and_grad(loss, variables, unconnected_gradients="none")()[1]
        told = [grad is None for grad in grads]
        for total, grad in zip(sums, grads, strict=False):
            total.assign_add(grad)
        return told

    step = (
        jd.function(lambda ids: strategy.run(replica, (ids,)))
        if compiled
        else lambda ids: strategy.run(replica, (ids,))
    )
    batches = [np.arange(8, dtype=np.int32) % 5, np.asarray([3], np.int32), np.asarray([1, 4], np.int32)]
    for batch in strategy.experimental_distribute_dataset(batches):
        told = step(batch)
        assert told == [False, False, True]
    ids = np.concatenate(batches)
    alone = jax.grad(lambda t, w: jnp.square(t[ids] @ w).sum(), (0, 1))(
        np.ones((5, 2), np.float32), np.ones((2, 2), "f")
    )
    for total, wanted in zip(sums, alone, strict=True):
        np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-6)


def test_which_variable_is_read_may_change_with_a_number() -> None:
    """A replica without rows goes by what the others do in the same step, and by nothing of an earlier one."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        heads = [jd.Variable(np.ones((3, 2), np.float32)) for _ in range(2)]

    def replica(ids: Any, head: int) -> list[bool]:
        grads = jd.grad(lambda: jnp.take(heads[head].read_value(), ids, axis=0).sum(), heads)
        both = jd.value_and_grad(
            lambda: jnp.take(heads[head].read_value(), ids, axis=0).sum(), heads, unconnected_gradients="none"
        )
        assert [grad is not None for grad in grads()] == [True, True]
        return [grad is None for grad in both()[1]]

    step = jd.function(lambda ids, head: strategy.run(replica, (ids, head)))
    (small,) = strategy.experimental_distribute_dataset([np.asarray([2], np.int32)])
    for head in (0, 1, 0):
        assert step(small, head) == [head == 1, head == 0]
        assert strategy.run(replica, (small, head)) == [head == 1, head == 0]
