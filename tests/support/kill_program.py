"""Trains a perceptron on the digits, on all workers, and can be killed at any moment: nothing is lost.

    python kill_program.py FOLDER EPOCHS STEPS_BETWEEN_CHECKPOINTS EXAMPLES

At its end the first worker writes what it has learned, and how often it has seen each example in each epoch, to
`FOLDER/result.npz`. Under `jaxtribute launch --max-restarts` it goes on after a kill where the last checkpoint was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH = 64


def main(folder: Path, epochs: int, every: int, examples: int) -> None:
    strategy = jd.MultiWorkerMirroredStrategy()
    images, labels = (part[:examples] for part in load_digits(return_X_y=True))
    rng = np.random.default_rng(0)
    with strategy.scope():
        model = [
            jd.Variable(rng.normal(scale=0.1, size=(64, 32)).astype(np.float32), name="hidden"),
            jd.Variable(rng.normal(scale=0.1, size=(32, 10)).astype(np.float32), name="output"),
        ]
        seen = jd.Variable(
            np.zeros((epochs, examples), np.int32), name="seen", aggregation=jd.VariableAggregation.SUM, trainable=False
        )
        step = jd.Variable(0, name="step", aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA, trainable=False)
    optimizer = jd.Optimizer(optax.adam(1e-2), model)
    per_epoch = -(-examples // BATCH)
    rows = (images.astype(np.float32) / 16, labels.astype(np.int32), np.arange(examples, dtype=np.int32))
    dataset = strategy.experimental_make_numpy_dataset(rows).shuffle(seed=7).batch(BATCH).repeat(epochs)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def replica(images: Any, labels: Any, ids: Any) -> None:
        def loss() -> Any:
            logits = jax.nn.relu(images @ model[0].read_value()) @ model[1].read_value()
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

        _, gradients = jd.value_and_grad(loss, model)()
        optimizer.apply_gradients(gradients)
        mine = jnp.zeros((epochs, examples), jnp.int32).at[step.read_value() // per_epoch, ids].add(1)
        seen.assign_add(mine)
        step.assign_add(jnp.int32(1))

    @jd.function
    def train(batch: Any) -> None:
        strategy.run(replica, batch)

    checkpoint = jd.Checkpoint(model=model, optimizer=optimizer, seen=seen, step=step, data=iterator)
    manager = jd.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=2)
    handler = jd.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)
    print(f"pid {os.getpid()} starts at {handler.total_run_calls}", flush=True)
    with handler.watch_preemption_scope():
        while handler.total_run_calls < epochs * per_epoch:
            handler.run(train, next(iterator))
            if handler.total_run_calls % every == 0:
                manager.save()
    manager.close()
    if strategy.cluster_resolver.task_id == 0:
        arrays: dict[str, Any] = {variable.name: np.asarray(variable.read_value()) for variable in [*model, seen, step]}
        np.savez(folder / "result.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
