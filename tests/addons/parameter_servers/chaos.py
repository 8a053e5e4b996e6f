"""Trains a classifier while its workers and servers are killed, and checks what comes out.

python tests/addons/parameter_servers/chaos.py --workers 20 --servers 5 [--replicas 1]

Where TF_CONFIG describes a cluster, one process a task, it is the task that TF_CONFIG says. A counter must end at
exactly the number of steps, and the loss must be that of an undisturbed run within 2 %.
"""

import argparse
import json
import os
import random
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH = 64
SAVE_EVERY = 50


def build(strategy: Any) -> tuple[Any, Any, Any]:
    """A counter, a training step and the loss over all digits."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    generator = np.random.default_rng(0)
    with strategy.scope():
        shapes = [(64, 64), (64,), (64, 10), (10,)]
        variables = [jd.Variable(generator.normal(size=s) * 0.1, dtype=np.float32) for s in shapes]
        count = jd.Variable(0, dtype=np.int32, name="count")
        optimizer = jd.Optimizer(optax.sgd(0.05), variables)

    def loss_of(x: Any, y: Any) -> Any:
        w, b, u, c = variables
        logits = jax.nn.relu(x @ w + b) @ u + c
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jd.function
    def step(number: Any) -> Any:
        start = (number * BATCH) % (len(images) - BATCH)
        x = jax.lax.dynamic_slice_in_dim(jnp.asarray(images), start, BATCH)
        y = jax.lax.dynamic_slice_in_dim(jnp.asarray(labels), start, BATCH)
        value, gradients = jd.value_and_grad(lambda: loss_of(x, y), variables)()
        optimizer.apply_gradients(gradients)
        count.assign_add(1)
        return value

    return count, step, jd.function(lambda: loss_of(jnp.asarray(images), jnp.asarray(labels)))


def main() -> None:
    """Runs it and prints the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=20, help="workers to kill")
    parser.add_argument("--servers", type=int, default=5, help="servers to kill")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between kills, at least")
    options = parser.parse_args()
    resolver = jd.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        jd.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
        return
    cluster = resolver if resolver.task_type == "chief" else {"ps": 1, "worker": 2}
    victims = ["worker"] * options.workers + ["ps"] * options.servers
    random.Random(0).shuffle(victims)
    with jd.ParameterServerStrategy(cluster, replicas=options.replicas) as strategy:
        workers = strategy.cluster.workers if strategy.cluster is not None else 0
        coordinator = jd.coordinator.ClusterCoordinator(strategy)
        count, step, loss = build(strategy)
        coordinator.save()
        done, restored, kills, last = 0, 0, 0, time.monotonic()
        while done < options.steps or victims:
            try:
                for number in range(done, done + SAVE_EVERY):
                    coordinator.schedule(step, (np.int32(number),))
                    if victims and time.monotonic() - last > options.pause:
                        job = victims.pop()
                        os.kill(
                            strategy.process_of(job, random.randrange(workers) if job == "worker" else 0),
                            signal.SIGKILL,
                        )
                        kills, last = kills + 1, time.monotonic()
                coordinator.join()
                coordinator.save()
                done += SAVE_EVERY
            except jd.errors.ClusterError as error:
                if "parameter server 0" not in str(error):
                    raise
                coordinator.restore()
                restored += 1
        counted = int(count)
        final = float(loss())
    one = jd.OneDeviceStrategy("cpu:0")
    _, step, loss = build(one)
    for number in range(done):
        step(np.int32(number))
    expected = float(loss())
    result = {
        "workers": workers,
        "steps": done,
        "counted": counted,
        "kills": kills,
        "restored": restored,
        "loss": final,
    }
    print(json.dumps({**result, "undisturbed": expected}))
    assert counted == done, "updates were lost or applied twice"
    assert abs(final - expected) <= 0.02 * expected


if __name__ == "__main__":
    main()
