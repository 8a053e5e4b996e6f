"""Tables with `updates="exact"` do what dense gradients do, to rows that steps leave alone as well."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ContextError
from jaxtribute.integrations import safetensors
from samples import ALL_CASES

ROWS, WIDTH = 40, 2
WINDOW = optax.join_schedules([optax.constant_schedule(rate) for rate in (0.0, 0.1, 0.0)], [11, 900])
"""A learning rate that is 0 at steps by which one might want to judge."""
TRANSFORMS = {
    "adam": lambda: optax.chain(optax.clip_by_global_norm(0.2), optax.adam(optax.exponential_decay(0.05, 50, 0.8))),
    "momentum": lambda: optax.sgd(0.02, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.02, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optax.rmsprop(0.01, momentum=0.8),
    "nadam": lambda: optax.nadam(0.02),
    "adagrad": lambda: optax.adagrad(0.1),
}


class Training:
    """A table under a strategy, and the same by dense gradients of Optax."""

    def __init__(self, transform: Any, strategy: Any, *, compiled: bool = True) -> None:
        self.strategy, self.first = strategy, np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
        with strategy.scope():
            self.table = jd.nn.ShardedTable(ROWS, WIDTH, self.first, name="items", updates="exact")
            self.dense = jd.Variable(np.ones(WIDTH, "float32"), name="dense")
            self.optimizer = jd.Optimizer(transform, [self.table, self.dense])
        self.step = jd.function(self._step) if compiled else self._step
        self.params = (jnp.asarray(self.first), jnp.ones(WIDTH))
        self.state, self.transform = transform.init(self.params), transform
        self.reference = jax.jit(self._reference)

    def _step(self, ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            def loss() -> Any:
                return ((jd.nn.embedding_lookup(self.table, ids) @ self.dense) ** 2).sum() / jnp.float32(8)

            value, gradients = jd.value_and_grad(loss, [self.table, self.dense])()
            self.optimizer.apply_gradients(gradients)
            return value

        return self.strategy.reduce("SUM", self.strategy.run(replica, (ids,)), axis=None)

    def _reference(self, params: Any, state: Any, ids: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda params: ((params[0][ids] @ params[1]) ** 2).sum() / 8)(params)
        updates, state = self.transform.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    def run(self, batches: Any) -> None:
        """Trains both, and compares losses."""
        replicas = self.strategy.num_replicas_in_sync
        for ids in batches:
            parts = np.split(ids, replicas)
            split = self.strategy.experimental_distribute_values_from_function(
                lambda context, parts=parts: jnp.asarray(parts[context.replica_id_in_sync_group])
            )
            loss = self.step(split)
            with jax.numpy_dtype_promotion("standard"):
                value, self.params, self.state = self.reference(self.params, self.state, ids)
            np.testing.assert_allclose(float(loss), float(value), rtol=2e-5, atol=1e-6)

    def check(self) -> None:
        """Compares the table and the state, as anyone reads them."""
        np.testing.assert_allclose(self.table.numpy(), self.params[0], rtol=1e-5, atol=3e-6)
        for slot, leaf in zip(self.optimizer.variables, jax.tree.leaves(self.state), strict=True):
            np.testing.assert_allclose(np.asarray(slot.read_value()), leaf, rtol=3e-5, atol=1e-7)


def batches(steps: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Ids of which few come often."""
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.zipf(1.4, size=8) - 1, ROWS - 1).astype("int32") for _ in range(steps)]


@pytest.mark.parametrize("name", TRANSFORMS if ALL_CASES else ["adam", "momentum"])
def test_exact_updates_are_dense_ones(name: str) -> None:
    for replicas in (1, 2, 4) if ALL_CASES else (2,):
        training = Training(TRANSFORMS[name](), jd.MirroredStrategy(replicas))
        training.run(batches(30))
        training.check()
        # Some rows are left alone for longer than their moments change them.
        training.run([np.arange(8, dtype=np.int32) % 2] * 300)
        training.run(batches(5, seed=1))
        training.check()


def test_a_learning_rate_of_zero_at_first_and_at_last() -> None:
    training = Training(optax.adam(WINDOW), jd.OneDeviceStrategy("cpu:0"))
    training.run([np.arange(8, dtype=np.int32) % 3, *[np.zeros(8, np.int32)] * 20])
    training.check()


def test_eager_steps_do_the_same() -> None:
    training = Training(TRANSFORMS["adam"](), jd.MirroredStrategy(2), compiled=False)
    training.run(batches(4))
    training.check()
    training = Training(TRANSFORMS["momentum"](), jd.OneDeviceStrategy("cpu:0"))
    training.run(batches(4))
    training.check()


def test_a_save_in_between_is_of_the_present_step(tmp_path: Path) -> None:
    """Also onto another number of replicas, into a training that has rows of its own to make up for, and a variable."""
    training = Training(TRANSFORMS["momentum"](), jd.MirroredStrategy(2))
    training.run(batches(12))
    path = jd.Checkpoint(table=training.table, dense=training.dense, optimizer=training.optimizer).save(tmp_path / "c")
    again = Training(TRANSFORMS["momentum"](), jd.MirroredStrategy(4))
    again.run(batches(3, seed=5))
    jd.Checkpoint(table=again.table, dense=again.dense, optimizer=again.optimizer).restore(path)
    again.params, again.state = training.params, training.state
    again.check()
    again.run(batches(6, seed=2))
    again.check()
    again.table.assign(training.first)
    np.testing.assert_array_equal(again.table.numpy(), training.first)


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (optax.adamw(0.1), "weight decay"),
        (optax.lion(0.1, weight_decay=0.0), "falls by 1 a step"),
        (optax.amsgrad(0.1), "constant factors"),
        (optax.inject_hyperparams(optax.adam)(learning_rate=0.1), "no count"),
        (optax.sgd(0.1, momentum=0.999), "too slowly"),
        (optax.adam(0.0), "change nothing at any step"),
        (optax.adamw(WINDOW, weight_decay=0.1), "weight decay"),
    ],
    ids=["adamw", "lion", "amsgrad", "hyperparams", "slow", "nothing", "window"],
)
def test_what_cannot_be_made_up_for_is_refused_by_name(transform: Any, why: str) -> None:
    with pytest.raises(ArgumentError, match=rf"cannot update items:0 exactly: .*{why}.*HINT"):
        jd.Optimizer(transform, [jd.nn.ShardedTable(5, 2, name="items", updates="exact")])


def _of_two_optimizers(replicas: int) -> weakref.ref[Any]:
    """Trains a table by one after the other, and checks lookups."""
    strategy = jd.MirroredStrategy(replicas)
    with strategy.scope():
        table = jd.nn.ShardedTable(4, 2, np.ones((4, 2), "float32"), name="items", updates="exact")

    def replica(ids: Any) -> Any:
        return jd.nn.embedding_lookup(table, ids)

    def looked_up() -> Any:
        return strategy.run(replica, (jnp.array([0]),))

    def trained(rate: float) -> Any:
        optimizer = jd.Optimizer(optax.adam(rate), [table])

        def step(ids: Any) -> None:
            gradients = jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])()
            optimizer.apply_gradients(gradients, "MEAN")

        compiled = jd.function(lambda ids: strategy.run(step, (ids,)))
        for ids in ([0], [1], [1], [1]):
            compiled(jnp.array(ids))
        return optimizer

    compiled = jd.function(looked_up)
    compiled()
    for rate in (0.001, 0.1):
        optimizer = trained(rate)
        found = [strategy.experimental_local_results(look())[-1] for look in (looked_up, compiled)]
        expected = table.numpy()[:1]
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)
        np.testing.assert_allclose(found[1], expected, rtol=1e-6)
        del optimizer
    return weakref.ref(table)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_next_optimizer_is_that_of_lookups_before_and_after(replicas: int) -> None:
    """Rows that lag are what its moments make of them: in compiled functions and in eager code of replicas."""
    table = _of_two_optimizers(replicas)
    gc.collect()
    assert table() is None, "a cache of programs keeps the table, with all its rows"


def _lagging() -> tuple[Any, Any]:
    """A table whose row 0 has steps to make up for, and its optimizer."""
    table = jd.nn.ShardedTable(4, 2, np.ones((4, 2), "float32"), name="items", updates="exact")
    optimizer = jd.Optimizer(optax.adam(0.1), [table])
    step = jd.function(
        lambda ids: optimizer.apply_gradients(jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])())
    )
    for ids in ([0], [1], [1], [1]):
        step(jnp.array(ids))
    return table, optimizer


@pytest.mark.parametrize("way", ["checkpoint", "safetensors"])
def test_what_is_restored_is_not_moved_on_by_moments_of_before(way: str, tmp_path: Path) -> None:
    """The table by itself: the optimizer goes on with its moments, as it does after a plain variable's restoration."""
    first = jd.nn.ShardedTable(4, 2, np.ones((4, 2), "float32"), updates="exact")
    table, optimizer = _lagging()
    if way == "checkpoint":
        path = jd.Checkpoint(table=first).save(tmp_path / "c")
        jd.Checkpoint(table=table).restore(path)
    else:
        safetensors.save({"table": first}, tmp_path / "c.safetensors")
        safetensors.load({"table": table}, tmp_path / "c.safetensors")
    np.testing.assert_array_equal(jd.nn.embedding_lookup(table, jnp.arange(4)), 1)
    np.testing.assert_array_equal(table.numpy(), 1)
    np.testing.assert_allclose(optimizer.variables[1].numpy()[0], 0.1 * 0.9**3, rtol=1e-5)


def test_the_state_is_that_of_the_present_step() -> None:
    table, optimizer = _lagging()
    np.testing.assert_allclose(optimizer.state[0].mu[0].numpy()[0], 0.1 * 0.9**3, rtol=1e-5)
    table, optimizer = _lagging()
    expected, same = _lagging()[0].numpy(), optimizer._slots  # pyright: ignore[reportPrivateUsage]
    optimizer.state = jax.tree.map(np.zeros_like, same.state([np.asarray(slot.stored) for slot in same.variables]))
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)


def test_what_else_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"updates is 'sometimes'"):
        jd.nn.ShardedTable(5, 2, updates="sometimes")  # pyright: ignore[reportArgumentType]
    table = jd.nn.ShardedTable(5, 2, name="items", updates="exact")
    optimizer = jd.Optimizer(optax.adam(0.1), [table])
    with pytest.raises(ArgumentError, match="items:0 is updated exactly by another optimizer"):
        jd.Optimizer(optax.adagrad(0.1), [table])
    with pytest.raises(ContextError, match="embedding_lookup"):
        jd.grad(lambda: table.read_value().sum(), [table])()
    del optimizer
    jd.Optimizer(optax.sgd(0.1), [table])
