"""Islands that die and come back, each in a thread of this process: the result is that of one device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.addons.elastic.test_strategy import Job, Killed

import jaxtribute as jd

DEADLINE_S = 60.0


@dataclass
class History:
    """What happens to the islands of a job.

    Attributes:
      count: the number of islands; the one of rank `immortal` never dies.
      deaths: ranks and the steps before which they die, each once.
      sizes: of the batches.
    """

    count: int
    immortal: int
    deaths: list[tuple[int, int]]
    sizes: list[int]
    delays: list[float]
    done: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    @classmethod
    def drawn(cls, seed: int) -> History:
        chance = np.random.default_rng(seed)
        count = int(chance.choice([2, 3, 3, 4]))
        immortal = int(chance.integers(count))
        sizes = [int(size) for size in chance.choice([7, 2], 10)]
        mortal = [rank for rank in range(count) if rank != immortal]
        deaths = {(int(chance.choice(mortal)), int(chance.integers(0, 7))) for _ in range(int(chance.integers(1, 5)))}
        return cls(count, immortal, sorted(deaths), sizes, [float(each) for each in chance.uniform(0, 0.3, 9)])

    def data(self) -> list[tuple[Any, Any, Any]]:
        chance = np.random.default_rng(3)
        made: list[tuple[Any, Any, Any]] = []
        for size in self.sizes:
            x = chance.normal(size=(size, 4)).astype("float32")
            ids = np.arange(size, dtype="int32") + 1 + sum(len(each[0]) for each in made)
            made.append((x, x @ np.arange(1, 5, dtype="float32"), ids))
        return made


Each = Callable[[int, list[float]], None]


def training(strategy: jd.Strategy, data: list[Any], *, compiled: bool, each: Each | None = None) -> Any:
    """Trains a linear model with Adam; returns the losses, the sum of the examples' ids, and the weights."""
    with strategy.scope():
        w = jd.Variable(jnp.zeros(4), name="w")
        ledger = jd.Variable(0, aggregation=jd.VariableAggregation.SUM, name="ledger")
        optimizer = jd.Optimizer(optax.adam(0.1), [w])

    def replica(x: jax.Array, y: jax.Array, ids: jax.Array, total: jax.Array) -> jax.Array:
        loss, grads = jd.value_and_grad(lambda: jnp.sum((x @ w - y) ** 2) / total, [w])()
        optimizer.apply_gradients(zip(grads, [w], strict=True))
        ledger.assign_add(jnp.sum(ids).astype(jnp.int32))
        return jd.get_replica_context().all_reduce("SUM", loss)

    @jd.function
    def step(x: Any, y: Any, ids: Any, total: jax.Array) -> jax.Array:
        return strategy.reduce("MEAN", strategy.run(replica, (x, y, ids, total)), axis=None)

    seen: list[float] = []
    for number, batch in enumerate(strategy.experimental_distribute_dataset(data)):
        if each is not None:
            each(number, seen)
        total = jnp.float32(len(data[number][0]))
        if compiled:
            loss = step(*batch, total)
        else:
            loss = strategy.reduce("MEAN", strategy.run(replica, (*batch, total)), axis=None)
        seen.append(float(loss))
        if number % 3 == 1:
            seen.append(float(ledger))  # which a newcomer has not computed
    return seen, int(ledger), np.asarray(w)


def lives(job: Job, rank: int, history: History, body: Callable[..., Any]) -> Any:
    """Starts an island again and again, until its program has ended; returns what it returned, and its last number."""
    for incarnation in range(20):
        strategy = job.strategy(rank, incarnation)

        def each(number: int, seen: list[float], strategy: Any = strategy) -> None:
            death = rank, number
            if death in history.deaths and death not in history.done:
                history.done.add(death)
                strategy.close()
                raise Killed
            if rank == history.immortal and number == len(history.sizes) - 2:
                end = time.monotonic() + DEADLINE_S
                while len(strategy.islands) < history.count or len(history.done) < len(history.deaths):
                    assert time.monotonic() < end, f"{strategy.islands} of {history}"
                    time.sleep(0.01)

        try:
            return body(strategy, each), incarnation
        except Killed:
            time.sleep(history.delays[incarnation])
        finally:
            strategy.close()
    raise AssertionError("it died too often")


def played(history: History, body: Callable[..., Any], **settings: Any) -> list[Any]:
    job = Job(history.count, **settings)
    with ThreadPoolExecutor(history.count) as pool:
        futures = [pool.submit(lives, job, rank, history, body) for rank in range(history.count)]
        return [future.result(timeout=2 * DEADLINE_S) for future in futures]


SEEDS = range(40 if os.environ.get("JAXTRIBUTE_ALL_CASES") else 2)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("seed", SEEDS)
def test_islands_that_come_back_go_on_where_the_others_are(seed: int, compiled: bool) -> None:
    history = History.drawn(seed)
    data = history.data()
    results = played(history, lambda strategy, each: training(strategy, data, compiled=compiled, each=each))
    expected = training(jd.OneDeviceStrategy("CPU:0"), data, compiled=True)
    assert sum(incarnation for _, incarnation in results) == len(history.deaths)
    first = results[0][0]
    for (seen, ledger, weights), _ in results:
        np.testing.assert_allclose(seen, expected[0], rtol=1e-5, atol=1e-6)
        assert seen == first[0]
        assert ledger == expected[1] == sum(range(1, sum(history.sizes) + 1))
        np.testing.assert_allclose(weights, expected[2], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(weights, first[2])
