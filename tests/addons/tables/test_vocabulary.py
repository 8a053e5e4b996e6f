"""Keys without a bound in a table of few rows: each trains as if it had a row of its own, from when it last began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError

ROWS, WIDTH, RATE = 6, 2, 0.5


def first(ids: Any) -> Any:
    return jnp.stack([ids, ids * 10], axis=1).astype(np.float32)


class Training:
    """A table whose row gets a gradient of 1 each time that its key comes, and Adagrad by hand."""

    def __init__(self, strategy: jd.Strategy, updates: Any = "lazy") -> None:
        self.strategy = strategy
        with strategy.scope():
            self.table = jd.nn.ShardedTable(ROWS, WIDTH, first, updates=updates)
            self.optimizer = jd.Optimizer(optax.adagrad(RATE), [self.table])
        self.vocabulary = jd.nn.DynamicVocabulary(self.table)
        self.keys: dict[str, list[Any]] = {}
        """For each key the call in which it came last, its row's number, its row and its sum of squares."""
        self.calls = 0
        self.step = jd.function(lambda ids: strategy.run(self._replica, (ids,)))

    def _replica(self, ids: Any) -> None:
        replicas = self.strategy.num_replicas_in_sync

        def loss() -> Any:
            return jd.nn.embedding_lookup(self.table, ids, combiner="sum").sum() / jnp.float32(replicas)

        self.optimizer.apply_gradients(jd.grad(loss, [self.table])())

    def run(self, keys: list[str]) -> None:
        ids = self.vocabulary(keys)
        self.step(jnp.asarray(ids))
        names, counts = np.unique(keys, return_counts=True)
        free = [number for number in range(ROWS) if number not in {one[1] for one in self.keys.values()}]
        for name in keys:
            if name not in self.keys:
                if not free:
                    # The last call and the number of a row say which goes.
                    oldest = min((key for key in self.keys if key not in names), key=lambda key: self.keys[key][:2])
                    free.append(self.keys.pop(oldest)[1])
                number = free.pop(0)
                self.keys[name] = [0, number, np.array([number, number * 10.0]), 0.1]
        self.calls += 1
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            one = self.keys[name]
            one[0], one[3] = self.calls, one[3] + count**2
            one[2] = one[2] - RATE * count / np.sqrt(one[3] + 1e-7)

    def check(self) -> None:
        assert len(self.vocabulary) == len(self.keys)
        rows = self.table.numpy()[self.vocabulary(list(self.keys), training=False)]
        np.testing.assert_allclose(rows, [row for _, _, row, _ in self.keys.values()], rtol=1e-5)


@pytest.mark.parametrize(("replicas", "updates"), [(1, "lazy"), (2, "exact")])
def test_keys_train_as_if_each_had_a_row(replicas: int, updates: str, tmp_path: Path) -> None:
    """Also after a save in the middle, onto another number of replicas."""
    training = Training(jd.MirroredStrategy(replicas), updates)
    rng = np.random.default_rng(0)
    for number in range(12):
        training.run([f"k{key}" for key in rng.zipf(1.5, 4) % 15])
        training.check()
        if number == 6:
            parts = {name: getattr(training, name) for name in ("table", "optimizer", "vocabulary")}
            path = jd.Checkpoint(**parts).save(tmp_path / "c")
            again = Training(jd.MirroredStrategy(2), updates)
            again.run(["x", "y"])
            parts = {name: getattr(again, name) for name in parts}
            jd.Checkpoint(**parts).restore(path)
            again.keys, again.calls, training = training.keys, training.calls, again
            training.check()
    assert len(training.vocabulary) == ROWS


def test_the_rarest_key_loses_its_row() -> None:
    vocabulary = jd.nn.DynamicVocabulary(jd.nn.ShardedTable(2, 1), evict="rarest")
    np.testing.assert_array_equal(vocabulary([[7, 7], [8, -1]]), [[0, 0], [1, -1]])
    np.testing.assert_array_equal(vocabulary([8]), [1])
    np.testing.assert_array_equal(vocabulary([9]), [0], "of two as rare ones the older")
    np.testing.assert_array_equal(vocabulary([7, 8, 9], training=False), [-1, 1, 0])


def test_what_a_vocabulary_refuses() -> None:
    table = jd.nn.ShardedTable(2, 1, name="items")
    vocabulary = jd.nn.DynamicVocabulary(table)
    with pytest.raises(ArgumentError, match=r"3 different keys at once, and items:0 has 2 rows"):
        vocabulary([1, 2, 3])
    assert not len(vocabulary)
    with pytest.raises(ArgumentTypeError, match="float64"):
        vocabulary([1.5])
    with pytest.raises(ArgumentError, match="'newest'"):
        jd.nn.DynamicVocabulary(table, "newest")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="were an array"):
        jd.nn.DynamicVocabulary(jd.nn.ShardedTable(2, 1, np.ones((2, 1))))
    with pytest.raises(ArgumentTypeError, match="ShardedTable"):
        jd.nn.DynamicVocabulary(jd.Variable([1.0]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="3 keys was saved"):
        vocabulary.set_state({"keys": [1, 2, 3], "last": [0] * 3, "count": [0] * 3, "calls": 1})
