"""Replicas of several devices that go different ways, while the compiler moves arrays between each one's devices.

On CPUs all devices wait for such a move, also those of replicas that do not make it: compiled as they are, these steps
never end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxtribute as jd
from grouped_programs import devices
from replicas import execute, here

Loss = Callable[[dict[str, Any], Any], Any]
TOKENS, WIDTH, RATE = 24, 16, 0.1
LAYOUT = {"embedding": ("model",), "qkv": (None, "model"), "out": ("model",)}


def parts(p: dict[str, Any], tokens: Any) -> tuple[Any, ...]:
    return tuple(jnp.split(jnp.asarray(p["embedding"])[tokens] @ jnp.asarray(p["qkv"]), 3, -1))


def attention(p: dict[str, Any], tokens: Any) -> Any:
    """Whose parts of one product lie on other devices than they are used on."""
    q, k, v = parts(p, tokens)
    mixed = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k)) @ v
    return (mixed @ jnp.asarray(p["out"])).sum((1, 2))


def by_condition(p: dict[str, Any], tokens: Any) -> Any:
    """Replicas with an even sum of tokens take one way, others the other."""
    return lax.cond(
        tokens.sum() % 2 == 0,
        lambda: attention(p, tokens),
        lambda: 2 * jnp.roll(parts(p, tokens)[1], 1, -1).sum((1, 2)),
    )


def by_loop(p: dict[str, Any], tokens: Any) -> Any:
    """Replicas take as many turns as their largest token says."""
    turns = tokens.max(initial=0) % 3 + 1

    def turn(carry: Any) -> Any:
        hidden, number = carry
        return jnp.tanh(jnp.roll(hidden @ jnp.asarray(p["out"]), 1, -1)), number + 1

    begun = lax.stop_gradient(jnp.asarray(p["embedding"])[tokens]), jnp.int32(0)
    hidden, _ = lax.while_loop(lambda carry: carry[1] < turns, turn, begun)
    return lax.stop_gradient(hidden).sum((1, 2)) * parts(p, tokens)[0].sum((1, 2))


def by_numbers(p: dict[str, Any], tokens: Any) -> Any:
    """What is decided is a number, which no devices share."""
    factor = lax.cond(tokens.sum() % 2 == 0, lambda: jnp.float32(1), lambda: jnp.float32(2))
    return factor * attention(p, tokens)


def values() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"embedding": (TOKENS, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    return {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}


def by_hand(loss: Loss, batches: list[Any], replicas: int) -> tuple[list[float], Any]:
    """Losses and parameters of plain JAX, which computes the replicas' parts one after the other."""
    params, losses = values(), []
    for tokens in batches:

        def total(p: Any, tokens: Any = tokens) -> Any:
            return sum(loss(p, part).sum() for part in np.array_split(tokens, replicas)) / len(tokens)

        value, grads = jax.value_and_grad(total)(params)
        losses.append(float(value))
        params = jax.tree.map(lambda param, grad: param - RATE * grad, params, grads)
    return losses, params


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("rows", [(8, 4), (7, 5), (4, 1)], ids=["even", "uneven", "without rows"])
@pytest.mark.parametrize("loss", [attention, by_condition, by_loop, by_numbers])
@pytest.mark.parametrize("executor", ["compiled", "lockstep"])
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy])
def test_it_ends_and_is_that_of_one_device(
    kind: Any, executor: str, loss: Loss, rows: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, TOKENS, (count, 6)) for count in rows]
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    strategy = kind(devices(4), devices_per_replica=2, layout=LAYOUT, **options)
    with strategy.scope():
        variables = {name: jd.Variable(value, name=name) for name, value in values().items()}
        optimizer = jd.Optimizer(optax.sgd(RATE), variables)

    def replica_step(tokens: Any) -> Any:
        count = here().all_reduce("SUM", tokens.shape[0])

        def mean() -> Any:
            return jd.nn.compute_average_loss(loss(variables, tokens), global_batch_size=count)

        value, grads = jd.value_and_grad(mean, variables)()
        optimizer.apply_gradients(grads)
        return here().all_reduce("SUM", value)

    losses: list[float] = []
    with caplog.at_level(logging.WARNING):
        for tokens in strategy.experimental_distribute_dataset(batches):
            value = execute(executor, strategy, replica_step, tokens)
            losses.append(float(strategy.experimental_local_results(value)[0]))
    wanted, params = by_hand(loss, batches, 2)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for name, variable in variables.items():
        np.testing.assert_allclose(variable.numpy(), params[name], rtol=1e-4, atol=1e-6)
    parts_ways = executor == "compiled" and loss in (by_condition, by_loop)
    assert ("replicas of several devices do not share" in caplog.text) == parts_ways


def test_a_print_on_uneven_rows_is_made_once_for_each_replica(capsys: pytest.CaptureFixture[str]) -> None:
    strategy = jd.MirroredStrategy(devices(4), devices_per_replica=2, layout=LAYOUT)

    def replica_step(tokens: Any) -> Any:
        jax.debug.print("rows {}", tokens.shape[0])
        return here().all_reduce("SUM", tokens.sum())

    (tokens,) = strategy.experimental_distribute_dataset([np.ones((3, 6), np.int32)])
    result = execute("compiled", strategy, replica_step, tokens)
    assert int(strategy.experimental_local_results(result)[0]) == 18
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.split()) == ["1", "2", "rows", "rows"]
