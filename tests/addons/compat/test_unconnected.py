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
