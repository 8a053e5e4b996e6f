"""Virtual replicas: training has the same bits on any number of islands, also when that changes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.addons.elastic.test_joining import History, played
from tests.addons.elastic.test_joining import training as linear
from tests.addons.elastic.test_local import LocalJob
from tests.addons.elastic.test_strategy import Job, Killed, alone, check_equal
from tests.addons.elastic.test_strategy import batches as linear_batches
from tests.addons.elastic.test_strategy import training as synchronous

import jaxtribute as jd
from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.virtual import Span, added, shares, subtrees
from jaxtribute.errors import ArgumentError, ClusterError, ContextError, TraceError, VariableError
from replicas import here
from samples import ALL_CASES

SIZES = [8, 8, 5, 1, 8]
WIDE = 16


def batches() -> list[tuple[Any, Any]]:
    chance = np.random.default_rng(3)
    made: list[tuple[Any, Any]] = []
    for size in SIZES:
        x = chance.normal(size=(size, WIDE)).astype("float32")
        made.append((x, np.sin(x.sum(1))))
    return made


def training(strategy: Any, killed: dict[int, int] | None = None) -> list[Any]:
    """Trains with LayerNorm, dropout, batch statistics and a counter; returns all that it has come to."""
    chance = np.random.default_rng(1)
    with strategy.scope():
        w = jd.Variable(chance.normal(size=(WIDE, WIDE)).astype("float32"), name="w")
        v = jd.Variable(chance.normal(size=WIDE).astype("float32"), name="v")
        mean = jd.Variable(jnp.zeros(WIDE), trainable=False, aggregation="MEAN", name="mean")
        seen = jd.Variable(0, aggregation="SUM", name="seen")
        optimizer = jd.Optimizer(optax.adam(0.01), [w, v])

    def replica(x: jax.Array, y: jax.Array, number: jax.Array, total: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(number), here().replica_id_in_sync_group)

        def loss() -> jax.Array:
            h = x @ w
            h = (h - h.mean(1, keepdims=True)) / jnp.sqrt(h.var(1, keepdims=True) + 1e-5)
            h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), jnp.tanh(h), jnp.zeros_like(h))
            return jnp.sum((h @ v - y) ** 2) / total

        value, grads = jd.value_and_grad(loss, [w, v])()
        optimizer.apply_gradients(zip(grads, [w, v], strict=True))
        mean.assign(jnp.mean(x, axis=0))
        seen.assign_add(jnp.int32(x.shape[0]))
        return value

    @jd.function
    def step(x: Any, y: Any, number: jax.Array, total: jax.Array) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(replica, (x, y, number, total)), axis=None)

    losses: list[Any] = []
    for number, (x, y) in enumerate(strategy.experimental_distribute_dataset(batches())):
        if killed is not None and killed.get(strategy.island) == number:
            strategy.close()
            raise Killed
        losses.append(np.asarray(step(x, y, jnp.int32(number), jnp.float32(SIZES[number]))))
    slots = [np.asarray(slot) for slot in optimizer.variables]
    return [*losses, *map(np.asarray, (w, v, mean, seen)), *slots]


def lived(job: Job, killed: dict[int, int] | None, replicas: int) -> list[list[Any]]:
    def body(strategy: Any) -> list[Any] | None:
        assert strategy.num_replicas_in_sync == replicas
        with contextlib.suppress(Killed):
            return training(strategy, killed)
        return None

    return [result for result in job.run(body) if result is not None]


def trained(islands: int, killed: dict[int, int] | None = None, virtual: int = 4) -> list[list[Any]]:
    return lived(Job(islands, virtual_replicas=virtual), killed, virtual)


@functools.cache
def undisturbed(virtual: int) -> list[Any]:
    (expected,) = trained(1, virtual=virtual)
    return expected


def same(results: Sequence[Sequence[Any]], expected: Sequence[Any]) -> None:
    for result in results:
        for mine, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True)


def check_close(result: Sequence[Any], virtual: int) -> None:
    """Compares with as many replicas of `MirroredStrategy`, but for slots, and means, which it does not weigh."""
    expected = training(jd.MirroredStrategy([f"CPU:{number}" for number in range(virtual)]))
    for place in (*range(len(SIZES) + 2), len(SIZES) + 3):
        np.testing.assert_allclose(result[place], expected[place], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*takes a mean over the replicas:RuntimeWarning")
@pytest.mark.parametrize("virtual", [4, 5] if ALL_CASES else [4])
def test_any_number_of_islands_comes_to_the_same_bits(virtual: int) -> None:
    expected = undisturbed(virtual)
    assert int(expected[len(SIZES) + 3]) == sum(SIZES)
    check_close(expected, virtual)
    for islands in (2, 3, 4) if ALL_CASES else ():
        results = trained(islands, virtual=virtual)
        assert len(results) == islands
        same(results, expected)
    # Two of four die, one after the other.
    results = trained(4, {0: 2, 2: 4}, virtual=virtual)
    assert len(results) == 2
    same(results, expected)


def test_islands_of_several_devices_share_replicas_as_others_do() -> None:
    expected = undisturbed(4)
    if ALL_CASES:
        same(lived(LocalJob([2, 2]), None, 4), expected)
    # The one that is left has two replicas on each device.
    same(lived(LocalJob([2, 2], virtual_replicas=4), {1: 3}, 4), expected)


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("killed", [None, 0, 1])
def test_islands_of_several_devices_go_on_without_each_other(killed: int | None) -> None:
    data = linear_batches([8, 8, 5, 1, 8])

    def body(strategy: Any) -> Any:
        def each(number: int) -> None:
            assert strategy.num_replicas_in_sync == 2 * len(strategy.islands)
            if (strategy.island, number) == (killed, 2):
                strategy.close()
                raise Killed

        with contextlib.suppress(Killed):
            return synchronous(strategy, data, compiled=True, each=each)
        return None

    results = [result for result in LocalJob([2, 2]).run(body) if result is not None]
    assert len(results) == (2 if killed is None else 1)
    check_equal(results, alone(data))


def test_islands_with_other_numbers_of_replicas_are_told() -> None:
    def body(strategy: Any) -> Any:
        step = jd.function(lambda: strategy.run(lambda: here().all_reduce("SUM", jnp.ones(2))))
        with pytest.raises(ClusterError, match="exchanges other values"):
            step()

    LocalJob([1, 2], virtual_replicas=None).run(body)


@pytest.mark.parametrize("rows", [3, 1])
def test_arrays_of_other_shapes_are_never_added(rows: int) -> None:
    """One has as many rows as the replica's share of a batch that they do not divide: NumPy would broadcast it."""
    with contextlib.closing(jd.experimental.ElasticStrategy(virtual_replicas=2)) as strategy:
        (batch,) = strategy.experimental_distribute_dataset([np.ones((rows, 1), np.float32)])
        step = jd.function(lambda x: strategy.run(lambda x: here().all_reduce("SUM", x), (x,)))
        with pytest.raises(ClusterError, match=r"one shape on all replicas"):
            step(batch)


@pytest.mark.parametrize("seed", range(20) if ALL_CASES else [0])
def test_islands_that_come_back_come_to_the_same_bits(seed: int) -> None:
    history = History.drawn(seed)
    data = history.data()

    def body(strategy: Any, each: Any) -> Any:
        return linear(strategy, data, compiled=True, each=each)

    def alone(strategy: Any) -> Any:
        return linear(strategy, data, compiled=True)

    (expected,) = Job(1, virtual_replicas=4).run(alone)
    results = played(history, body, virtual_replicas=4)
    assert sum(incarnation for _, incarnation in results) == len(history.deaths)
    for (seen, ledger, weights), _ in results:
        assert (seen, ledger) == expected[:2]
        np.testing.assert_array_equal(weights, expected[2])


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_sums_are_those_of_one_tree_whoever_has_its_parts(count: int) -> None:
    whole = Span(0, count)
    chance = np.random.default_rng(0)
    arrays = {Span(place, place + 1): [chance.normal(size=9).astype("float32")] for place in range(count)}
    (expected,) = added(whole, arrays)
    np.testing.assert_allclose(expected, sum(array for (array,) in arrays.values()), rtol=1e-5, atol=1e-6)
    for islands in range(1, count + 1):
        owned = shares(View(0, tuple(map(Island, range(islands)))), count)
        assert [place for span in owned.values() for place in range(*span)] == list(range(count))
        parts: dict[Span, Any] = {}
        for own in owned.values():
            spans = subtrees(own, whole)
            assert [place for span in spans for place in range(*span)] == list(range(*own))
            parts |= {span: added(span, arrays) for span in spans}
        np.testing.assert_array_equal(added(whole, parts)[0], expected)


def test_what_virtual_replicas_cannot_do_is_refused() -> None:
    elastic = jd.experimental.ElasticStrategy
    with pytest.raises(ArgumentError, match=r"virtual_replicas is 2, and sync_every 3"):
        elastic(virtual_replicas=2, sync_every=3)
    with pytest.raises(ArgumentError, match=r"virtual_replicas is 1, and there are 2 islands"):
        Job(2, virtual_replicas=1).strategy(0)
    with contextlib.closing(elastic(virtual_replicas=2)) as strategy:
        with strategy.scope():
            w = jd.Variable(0.0, aggregation="SUM", name="w")
        number = lambda: here().replica_id_in_sync_group  # noqa: E731
        with pytest.raises(
            ContextError, match=r"run outside of a jd.function, of 2 replicas, of which an island has several"
        ):
            strategy.run(number)
        with pytest.raises(VariableError, match=r"a jd.function returns, or prints after a sum, a value that differs"):
            jd.function(lambda: strategy.run(number))()
        total = jd.function(lambda: strategy.run(lambda: here().all_reduce("SUM", number() + 1)))()
        assert int(strategy.experimental_local_results(total)[0]) == 3
        with pytest.raises(ContextError, match=r"a sum outside of a jd.function"):
            strategy.reduce("SUM", total, axis=None)

        def looped() -> None:
            body = lambda _, x: here().all_reduce("SUM", x)  # noqa: E731
            w.assign_add(jax.lax.fori_loop(0, 2, body, jnp.float32(number())))

        with pytest.raises(TraceError, match=r"sums between replicas in a loop or a condition"):
            jd.function(lambda: strategy.run(looped))()
        jd.function(lambda: strategy.run(lambda: w.assign_add(number().astype(jnp.float32) + 1)))()
        assert float(w) == 3.0
