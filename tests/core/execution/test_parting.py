"""Replicas that decide a loop or a condition by themselves, where a collective is on one of the ways.

A compiled program would wait there for ever. What all replicas decide alike stays compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ContextError
from replicas import here

ROWS = {"even": np.asarray([1.0, 1.0, 8.0, 8.0], np.float32), "uneven": np.asarray([1.0, 1.0, 8.0], np.float32)}
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "mirrored": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"]),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
}
Decide = Callable[[Any], Any]


def total(x: Any) -> Any:
    return here().all_reduce("SUM", x.sum())


def condition(x: Any, decide: Decide) -> Any:
    return jax.lax.cond(decide(x), lambda: total(x), lambda: x.sum() * 0)


def switch(x: Any, decide: Decide) -> Any:
    ways = (lambda: x.sum() * 0, lambda: here().all_gather(x, axis=0).sum())
    return jax.lax.switch(decide(x).astype(jnp.int32), ways)


def loop(x: Any, decide: Decide) -> Any:
    turn = lambda c: (c[0] + 1, c[1] + total(x), ~decide(x))  # noqa: E731
    return jax.lax.while_loop(lambda c: (c[0] < 1) | (c[2] & (c[0] < 3)), turn, (0, jnp.float32(0), True))[1]


def loop_whose_condition_sums(x: Any, decide: Decide) -> Any:
    goes_on = lambda c: (total(x) > 0) & ((c[0] < 1) | (~decide(x) & (c[0] < 3)))  # noqa: E731
    return jax.lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] + x.sum()), (0, jnp.float32(0)))[1]


def nested(x: Any, decide: Decide) -> Any:
    turn = lambda c, _: (c + jax.jit(lambda: condition(x, decide))(), None)  # noqa: E731
    return jax.lax.scan(turn, jnp.float32(0), None, length=2)[0]


WAYS = (condition, switch, loop, loop_whose_condition_sums, nested)


def stepping(strategy: jd.Strategy, way: Callable[..., Any], decide: Decide, rows: str) -> Any:
    [x] = strategy.experimental_distribute_dataset([ROWS[rows]])
    return jd.function(lambda x: strategy.run(lambda x: way(x, decide), (x,)))(x)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_replicas_that_part_are_told(way: Any, name: str, rows: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ContextError, match="the replicas do not meet"), caplog.at_level(logging.WARNING, "jaxtribute"):
        stepping(STRATEGIES[name](), way, lambda x: x.sum() > 4, rows)
    assert "runs uncompiled: a collective inside" in caplog.text


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_replicas_that_happen_to_agree_are_exact(way: Any, name: str, rows: str) -> None:
    strategy = STRATEGIES[name]()
    result = strategy.experimental_local_results(stepping(strategy, way, lambda x: x.sum() > 0, rows))
    times = 2 if way is nested else 1
    wanted = ROWS[rows].reshape(-1)
    if way is loop_whose_condition_sums:
        np.testing.assert_allclose(result, [wanted[:2].sum(), wanted[2:].sum()], rtol=1e-6)
    else:
        np.testing.assert_allclose(result, [times * wanted.sum()] * 2, rtol=1e-6)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_what_replicas_decide_together_stays_compiled(way: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxtribute"):
        stepping(STRATEGIES[name](), way, lambda x: total(x) > 4, "even")
    assert "uncompiled" not in caplog.text
