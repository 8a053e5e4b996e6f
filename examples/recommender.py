"""Recommends items by embeddings whose rows lie over the replicas: a two-tower model, and a DLRM for clicks.

    python examples/recommender.py
    python examples/recommender.py --rows 1000000 --devices 4

Users and items are made up, but as in a shop: few items are seen by most, and a user's taste decides. A step exchanges
and updates the rows that its examples name, however many rows there are.
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import pick_devices
from rich.console import Console

import jaxtribute as jd

WIDTH, SEEN, BATCH, TASTES = 16, 5, 512, 20


def visits(rows: int, seed: int) -> dict[str, np.ndarray]:
    """A batch of visits: who came, what they have seen, what they were shown, and whether they clicked."""
    random = np.random.default_rng(seed)
    users = (random.zipf(1.3, BATCH) - 1) % rows
    # A user likes items of one taste: every so many numbers.
    items = (random.zipf(1.3, (BATCH, SEEN + 1)) - 1) * TASTES + users[:, None] % TASTES
    shown = np.where(random.random(BATCH) < 0.5, items[:, -1], random.integers(0, rows, BATCH))
    seen = np.where(random.random((BATCH, SEEN)) < 0.3, -1, items[:, :SEEN] % rows)
    clicks = (shown % TASTES == users % TASTES) ^ (random.random(BATCH) < 0.05)
    found = {"user": users, "seen": seen, "shown": shown % rows}
    return {name: ids.astype(np.int32) for name, ids in found.items()} | {"click": clicks.astype(np.float32)}


def first_rows(ids: jax.Array, seed: int) -> jax.Array:
    """The first rows of some ids: no process ever makes the whole table."""
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(ids)
    return jax.vmap(lambda key: 0.3 * jax.random.normal(key, (WIDTH,)))(keys)


def main() -> None:
    """Trains both models, and shows how well they tell clicks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    console, strategy = Console(), jd.MirroredStrategy(pick_devices(options.devices))
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> jd.Variable:
        return jd.Variable((random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    with strategy.scope():
        users = jd.nn.ShardedTable(options.rows, WIDTH, partial(first_rows, seed=0), name="users")
        items = jd.nn.ShardedTable(options.rows, WIDTH, partial(first_rows, seed=1), name="items")
        layers = [matrix(3 * WIDTH + 3, 64), matrix(64, 1)]
        towers = jd.Optimizer(optax.adagrad(0.5), [users, items])
        clicks = jd.Optimizer(optax.adagrad(0.2), [users, items, *layers])

    def rows(batch: dict[str, Any]) -> tuple[Any, Any, Any]:
        tables = {"user": users, "seen": items, "shown": items}
        # In one call, so that all rows come in one exchange.
        found = jd.nn.embedding_lookup(tables, {name: batch[name] for name in tables}, combiner={"seen": "mean"})
        return found["user"], found["seen"], found["shown"]

    def two_towers(batch: dict[str, Any]) -> Any:
        user, seen, shown = rows(batch)
        return ((user + seen) * shown).sum(axis=1)

    def dlrm(batch: dict[str, Any]) -> Any:
        features = rows(batch)
        pairs = [(features[i] * features[j]).sum(axis=1, keepdims=True) for i in range(3) for j in range(i)]
        hidden = jnp.maximum(jnp.concatenate([*features, *pairs], axis=1) @ layers[0], 0)
        return (hidden @ layers[1])[:, 0]

    for name, model, optimizer in (("two towers", two_towers, towers), ("DLRM", dlrm, clicks)):

        def replica(batch: dict[str, Any], model: Any = model, optimizer: Any = optimizer) -> Any:
            def loss() -> Any:
                scores = model(batch)
                right = ((scores > 0) == (batch["click"] > 0.5)).astype(np.float32)
                losses = optax.sigmoid_binary_cross_entropy(scores, batch["click"])
                average = jd.nn.compute_average_loss(losses, global_batch_size=BATCH)
                return average, jd.nn.compute_average_loss(right, global_batch_size=BATCH)

            (value, right), gradients = jd.value_and_grad(loss, list(optimizer.trainable_variables), has_aux=True)()
            optimizer.apply_gradients(gradients)
            return value, right

        @jd.function
        def step(batch: Any, replica: Any = replica) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, (batch,)), axis=None)

        start = time.perf_counter()
        batches = (visits(options.rows, seed) for seed in range(options.steps))
        found = [step(batch) for batch in strategy.experimental_distribute_dataset(batches)]
        values = np.array([[float(number) for number in pair] for pair in found])
        few, speed = max(1, options.steps // 10), options.steps / (time.perf_counter() - start)
        (first, _), (last, right) = values[:few].mean(axis=0), values[-few:].mean(axis=0)
        console.print(
            f"{name}: loss {first:.3f} -> {last:.3f}, {right:.0%} right, {speed:,.0f} steps/s", highlight=False
        )


if __name__ == "__main__":
    main()
