"""A small DLRM on made-up clicks, whose losses should not depend on how many replicas train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

BATCH, ROWS, WIDTH, SEEN = 48, 500, 8, 3
"""The batch can be split over 1 to 4 replicas."""


def visits(step: int) -> dict[str, np.ndarray[Any, Any]]:
    """The batch of a step, in which few users and items come often."""
    rng = np.random.default_rng(step)
    ids = np.minimum(rng.zipf(1.3, (BATCH, SEEN + 2)) - 1, ROWS - 1).astype(np.int32)
    user, shown, seen = ids[:, 0], ids[:, 1], ids[:, 2:]
    clicks = (user % 5 == shown % 5).astype(np.float32)
    return {"user": user, "shown": shown, "seen": np.where(rng.random(seen.shape) < 0.3, -1, seen), "click": clicks}


class Recommender:
    """A DLRM under a strategy.

    Args:
      strategy: the strategy.
    """

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        rng = np.random.default_rng(0)
        shapes = ((ROWS, WIDTH), (ROWS, WIDTH), (3 * WIDTH + 3, 16), (16, 1))
        users, items, first, last = (rng.normal(scale=0.3, size=shape).astype(np.float32) for shape in shapes)
        with strategy.scope():
            self.tables = [
                jd.nn.ShardedTable(ROWS, WIDTH, rows, name=name) for rows, name in ((users, "users"), (items, "items"))
            ]
            self.layers = [jd.Variable(first, name="first"), jd.Variable(last, name="last")]
            self.optimizer = jd.Optimizer(optax.adagrad(0.1), [*self.tables, *self.layers])
        self.step = jd.function(self._step)
        self.checkpoint = jd.Checkpoint(tables=self.tables, layers=self.layers, optimizer=self.optimizer)

    def _loss(self, batch: dict[str, Any]) -> Any:
        users, items = self.tables
        tables = {"user": users, "seen": items, "shown": items}
        found = jd.nn.embedding_lookup(tables, {name: batch[name] for name in tables}, combiner={"seen": "mean"})
        features = list(found.values())
        pairs = [(features[i] * features[j]).sum(axis=1, keepdims=True) for i in range(3) for j in range(i)]
        hidden = jnp.maximum(jnp.concatenate([*features, *pairs], axis=1) @ self.layers[0], 0)
        losses = optax.sigmoid_binary_cross_entropy((hidden @ self.layers[1])[:, 0], batch["click"])
        return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

    def _step(self, batch: Any) -> Any:
        def replica(batch: Any) -> Any:
            value, gradients = jd.value_and_grad(lambda: self._loss(batch), [*self.tables, *self.layers])()
            self.optimizer.apply_gradients(gradients)
            return value

        return self.strategy.reduce("SUM", self.strategy.run(replica, (batch,)), axis=None)

    def losses(self, steps: range) -> list[float]:
        """Trains on the batches of steps; returns the losses."""
        replicas = self.strategy.num_replicas_in_sync
        found: list[float] = []
        for number in steps:
            batch = visits(number)

            def part(context: Any, batch: Any = batch) -> Any:
                own = slice(*(np.arange(2) + context.replica_id_in_sync_group) * (BATCH // replicas))
                return {name: jnp.asarray(array[own]) for name, array in batch.items()}

            found.append(float(self.step(self.strategy.experimental_distribute_values_from_function(part))))
        return found


def losses_on_worker(steps: int, folder: str | None = None) -> list[float]:
    """The losses on a worker of a cluster: of the first steps, saved then; or of the further ones, from a save."""
    model = Recommender(jd.MultiWorkerMirroredStrategy())
    if folder is None:
        return model.losses(range(steps))
    saved = Path(f"{folder}-1")
    if not saved.exists():
        found = model.losses(range(steps // 2))
        model.checkpoint.save(folder)
        return found
    model.checkpoint.restore(saved)
    return model.losses(range(steps // 2, steps))
