"""Trains a classifier on handwritten digits, on islands that meet after 20 steps only: for cables that are slow.

    python examples/local_sgd.py                                             one island
    jaxtribute launch --elastic --workers 2 examples/local_sgd.py            two, with the bytes that a step has sent
    jaxtribute launch --elastic --workers 2 examples/local_sgd.py --wire int4 --overlap 10

Each process is an island, which trains alone on its rows of each batch. After `--every` steps the islands exchange the
change of their parameters, and an outer optimizer updates the common ones; with `--overlap` that travels while they go
on. Any island may be killed: the others wait for it at most until they meet.
"""

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH, EPOCHS, IMAGES = 64, 12, 1500


def main() -> int:
    """Trains, and returns 0 if most of the other images are told."""
    parser = argparse.ArgumentParser(description="Training with few exchanges.")
    parser.add_argument("--every", type=int, default=20, metavar="STEPS", help="steps between two meetings")
    parser.add_argument("--overlap", type=int, default=0, metavar="STEPS", help="steps in which changes may travel")
    parser.add_argument("--wire", choices=["bfloat16", "int8", "int4"], help="the type in which changes travel")
    options = parser.parse_args()
    strategy = jd.experimental.ElasticStrategy(
        sync_every=options.every,
        outer_optimizer=optax.sgd(0.7, momentum=0.9, nesterov=True),
        overlap_steps=options.overlap,
        communication_options=jd.experimental.CommunicationOptions(
            wire=options.wire, error_feedback=options.wire == "int4"
        ),
    )
    found: Any = load_digits()
    images, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int32)
    random = np.random.default_rng(0)
    with strategy.scope():
        hidden = jd.Variable(random.normal(scale=0.2, size=(64, 64)).astype(np.float32))
        output = jd.Variable(random.normal(scale=0.2, size=(64, 10)).astype(np.float32))
        seen = jd.Variable(0, aggregation=jd.VariableAggregation.SUM)
        optimizer = jd.Optimizer(optax.adam(3e-3), [hidden, output])

    def logits(images: jax.Array) -> jax.Array:
        return jax.nn.relu(images @ hidden.read_value()) @ output.read_value()

    def replica(images: jax.Array, labels: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            # By the island's own examples, as it trains alone.
            return optax.softmax_cross_entropy_with_integer_labels(logits(images), labels).mean()

        value, gradients = jd.value_and_grad(loss, [hidden, output])()
        optimizer.apply_gradients(gradients, reduce_op="MEAN")
        seen.assign_add(jnp.int32(images.shape[0]))
        return value

    @jd.function
    def step(batch: Any) -> jax.Array:
        return strategy.reduce("MEAN", strategy.run(replica, batch), axis=None)

    # All islands read the same batches, so what shuffles is seeded.
    rows = strategy.experimental_make_numpy_dataset((images[:IMAGES], labels[:IMAGES]))
    dataset = strategy.experimental_distribute_dataset(rows.shuffle(seed=0).batch(BATCH, drop_remainder=True))
    for epoch in range(EPOCHS):
        losses = [float(step(batch)) for batch in dataset]
        print(f"epoch {epoch}: loss of this island {np.mean(losses):.4f}", flush=True)
    strategy.synchronize()
    told = float(jnp.mean(jnp.argmax(logits(jnp.asarray(images[IMAGES:])), -1) == labels[IMAGES:]))
    print(f"{int(seen)} examples were seen; {told:.1%} of the other images are told.")
    return 0 if told > 0.85 else 1


if __name__ == "__main__":
    sys.exit(main())
