"""Random numbers in replicas: different from replica to replica, or the same for an example wherever it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import each_executor, execute, here, mirrored, one_device, per_replica

KEYS = {"new": lambda: jax.random.key(3), "old": lambda: jax.random.PRNGKey(3)}
each_key = pytest.mark.parametrize("kind", KEYS)


def draw(keys: Any) -> Any:
    return jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)


def whole(value: Any) -> Any:
    return np.concatenate([np.asarray(part) for part in getattr(value, "values", (value,))])


@pytest.mark.quick_cases(2)
@each_executor
@each_key
@pytest.mark.parametrize("given", ["argument", "from around"])
def test_replicas_draw_different_numbers(executor: str, kind: str, given: str) -> None:
    key = KEYS[kind]()

    def replica(*keys: Any) -> Any:
        return jax.random.normal(here().fold_in(keys[0] if keys else key), (2,))

    arguments = (key,) if given == "argument" else ()
    result = execute(executor, mirrored(3), replica, *arguments)
    wanted = [jax.random.normal(jax.random.fold_in(key, i), (2,)) for i in range(3)]
    np.testing.assert_array_equal([np.asarray(part) for part in result.values], np.asarray(wanted))


@each_executor
def test_fold_in_with_one_replica(executor: str) -> None:
    key = jax.random.key(1)
    result = execute(executor, one_device(2), lambda k: jax.random.uniform(here().fold_in(k)), key)
    assert float(result) == float(jax.random.uniform(jax.random.fold_in(key, 0)))


def test_fold_in_outside_every_strategy() -> None:
    key = jax.random.key(1)
    assert here().fold_in(key) == jax.random.fold_in(key, 0)
    np.testing.assert_array_equal(draw(here().example_keys(key, 2)), draw(reference(key, 2)))


def reference(key: Any, count: int) -> Any:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


@pytest.mark.quick_cases(2)
@each_executor
@pytest.mark.parametrize(("replicas", "kind"), [(1, "new"), (2, "old"), (4, "new")])
def test_an_example_draws_the_same_wherever_it_is(executor: str, replicas: int, kind: str) -> None:
    strategy = mirrored(replicas)
    key, data = KEYS[kind](), jnp.arange(8.0)
    batch = per_replica(strategy, [np.asarray(part) for part in np.split(data, replicas)])

    def replica(x: Any, key: Any) -> Any:
        return draw(here().example_keys(key, x.shape[0]))

    result = execute(executor, strategy, replica, batch, key)
    np.testing.assert_array_equal(whole(result), np.asarray(draw(reference(key, 8))))


@pytest.mark.quick_cases(1)
@each_executor
@pytest.mark.parametrize("sizes", [(2, 2, 1), (3, 1, 0), (1, 0, 0)])
def test_uneven_replicas(executor: str, sizes: tuple[int, ...]) -> None:
    strategy = mirrored(3)
    key = jax.random.key(5)
    batch = per_replica(strategy, [np.zeros(size, np.float32) for size in sizes])

    def replica(x: Any, key: Any) -> Any:
        return draw(here().example_keys(key, x.shape[0]))

    result = execute(executor, strategy, replica, batch, key)
    np.testing.assert_array_equal(whole(result), np.asarray(draw(reference(key, sum(sizes)))))


@pytest.mark.quick_cases(1)
@each_executor
def test_dropout_gives_the_same_loss_for_any_number_of_replicas(executor: str) -> None:
    def loss(replicas: int) -> float:
        strategy = mirrored(replicas)
        batch = per_replica(strategy, np.split(np.arange(12, dtype=np.float32), replicas))

        def replica(x: Any, key: Any) -> Any:
            keep = jax.vmap(lambda k: jax.random.bernoulli(k, 0.5))(here().example_keys(key, x.shape[0]))
            return jnp.where(keep, x, jnp.zeros_like(x)).sum()

        return float(strategy.reduce("SUM", execute(executor, strategy, replica, batch, jax.random.key(0)), axis=None))

    assert loss(1) == loss(2) == loss(4)
    assert isinstance(jd.get_strategy(), jd.Strategy)
