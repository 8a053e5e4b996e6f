"""Trains a classifier on handwritten digits over all workers; saves after each epoch, and when it is told to go.

jaxtribute launch --workers 2 --max-restarts 10 examples/cluster/train.py --checkpoints=checkpoints
"""

import argparse
from itertools import islice

import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH, EPOCHS = 64, 15


def main() -> None:
    """Trains to the end, or until a preemption."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, metavar="DIR", help="a folder that all machines see")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help=f"passes over the images ({EPOCHS})")
    options = parser.parse_args()

    strategy = jd.MultiWorkerMirroredStrategy()
    pixels, digits = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype(np.float32), digits.astype(np.int32)
    with strategy.scope():
        kernel = jd.Variable(jnp.zeros((64, 10)), name="kernel")
        bias = jd.Variable(jnp.zeros(10), name="bias")
        optimizer = jd.Optimizer(optax.sgd(0.5), [kernel, bias])

    def update(images: jnp.ndarray, labels: jnp.ndarray) -> jnp.ndarray:
        def loss() -> jnp.ndarray:
            losses = optax.softmax_cross_entropy_with_integer_labels(images @ kernel + bias, labels)
            return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

        value, gradients = jd.value_and_grad(loss, [kernel, bias])()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(batch: tuple[jnp.ndarray, jnp.ndarray]) -> jnp.ndarray:
        return strategy.reduce("SUM", strategy.run(update, args=batch), axis=None)

    manager = jd.CheckpointManager(jd.Checkpoint(optimizer=optimizer, variables=[kernel, bias]), options.checkpoints)
    handler = jd.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)
    batches, value = len(images) // BATCH, jnp.zeros(())
    examples = strategy.experimental_make_numpy_dataset((images, labels))
    # A start that goes on at the end of an epoch has no batch left in it: what follows the loop must not need one.
    for epoch in range(handler.total_run_calls // batches, options.epochs):
        # Shuffled by the number of the epoch, so that the batches that were trained on are known and left out.
        data = strategy.experimental_distribute_dataset(examples.shuffle(seed=epoch).batch(BATCH, drop_remainder=True))
        for batch in islice(data, handler.total_run_calls % batches, None):
            value = handler.run(step, batch)
        manager.save()  # a worker that is killed cannot: the others and its next start go on from here
        if jd.is_main():
            print(f"epoch {epoch + 1}: loss {float(value):.4f}", flush=True)
    handler.close()  # after the last save has come to its end


if __name__ == "__main__":
    main()
