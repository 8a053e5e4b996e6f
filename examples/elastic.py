"""Trains a classifier on handwritten digits, in processes of which any may be killed: the others go on.

    python examples/elastic.py                                                        alone
    jaxtribute launch --elastic --workers 3 examples/elastic.py --kill 1              two of three finish
    jaxtribute launch --elastic --workers 3 --max-restarts 3 examples/elastic.py --kill 1 --epochs 200

Each process is an island: it has a device, and runs the whole program. With `--kill` one of them kills itself in the
second epoch, as if its machine had gone; with `--max-restarts` it is started again, which takes seconds, and joins the
others if they are not done by then. With `--checkpoints DIR` a job that is started again goes on after the last epoch
that was saved. At the end each island says how often it has seen each image.
"""

import argparse
import os
import signal
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH, IMAGES = 64, 1797


def main() -> int:
    """Trains, and returns 0 if each image was seen once in each epoch."""
    parser = argparse.ArgumentParser(description="Training that goes on when a process is killed.")
    parser.add_argument("--kill", type=int, metavar="ISLAND", help="the island that kills itself in the second epoch")
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="passes over the images (4)")
    parser.add_argument("--checkpoints", metavar="DIR", help="a folder that all machines see; saves each epoch")
    options = parser.parse_args()
    strategy = jd.experimental.ElasticStrategy()
    found: Any = load_digits()
    data = (found.data / 16).astype(np.float32), found.target.astype(np.int32), np.arange(IMAGES, dtype=np.int32)
    random = np.random.default_rng(0)
    with strategy.scope():
        hidden = jd.Variable(random.normal(scale=0.2, size=(64, 64)).astype(np.float32))
        output = jd.Variable(random.normal(scale=0.2, size=(64, 10)).astype(np.float32))
        seen = jd.Variable(jnp.zeros(IMAGES, jnp.int32), aggregation=jd.VariableAggregation.SUM)
        optimizer = jd.Optimizer(optax.adam(3e-3), [hidden, output])

    def replica(images: jax.Array, labels: jax.Array, numbers: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            logits = jax.nn.relu(images @ hidden.read_value()) @ output.read_value()
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

        value, gradients = jd.value_and_grad(loss, [hidden, output])()
        optimizer.apply_gradients(gradients)
        seen.assign_add(jnp.zeros(IMAGES, jnp.int32).at[numbers].add(1))
        return value

    @jd.function
    def step(batch: Any) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(replica, batch), axis=None)

    examples = strategy.experimental_make_numpy_dataset(data)
    first_life = os.environ.get("JAXTRIBUTE_INCARNATION", "0") == "0"
    checkpoint = jd.Checkpoint(hidden=hidden, output=output, seen=seen, optimizer=optimizer)
    manager = jd.CheckpointManager(checkpoint, options.checkpoints) if options.checkpoints else None
    if manager is not None:
        manager.restore_or_initialize()
    for epoch in range(int(np.max(seen)), options.epochs):
        # All islands read the same batches, and so does a job that goes on: each epoch is shuffled by its number.
        dataset = examples.shuffle(seed=epoch).batch(BATCH)
        losses: list[float] = []
        for number, batch in enumerate(strategy.experimental_distribute_dataset(dataset)):
            if first_life and strategy.island == options.kill and (epoch, number) == (1, 10):
                os.kill(os.getpid(), signal.SIGKILL)
            losses.append(float(step(batch)))
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}, islands {list(strategy.islands)}", flush=True)
        if manager is not None:
            manager.save()
    if manager is not None:
        manager.close()
    times = sorted({int(count) for count in np.asarray(seen)})
    print(f"Each of {IMAGES} images was seen {' or '.join(map(str, times))} times.")
    return 0 if times == [options.epochs] else 1


if __name__ == "__main__":
    sys.exit(main())
