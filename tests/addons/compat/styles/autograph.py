"""Loops and branches over tensors in functions that AutoGraph compiles."""

import json

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
rng = np.random.default_rng(8)
x = rng.normal(size=(64, 4)).astype(np.float32)
y = (x @ np.array([1, 2, -1, 0.5], np.float32)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

with strategy.scope():
    w = tf.Variable(tf.zeros([4]), name="w")
    step = tf.Variable(0, dtype=tf.int64, trainable=False)


@tf.function
def collatz(n):
    count = tf.constant(0)
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        count += 1
    return count


@tf.function
def cube_sum(values):
    total = tf.constant(0.0)
    for v in values:
        if v > 0:
            total += v**3
    return total


def replica_step(features, target):
    with tf.GradientTape() as tape:
        error = tf.linalg.matvec(features, w) - target
        loss = tf.reduce_sum(error**2) / 16.0
    gradient = tape.gradient(loss, w)
    reduced = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
    w.assign_sub(0.1 * reduced)
    return loss


@tf.function
def train_epoch(iterator):
    total = tf.constant(0.0)
    for _ in tf.range(4):
        features, target = next(iterator)
        losses = strategy.run(replica_step, args=(features, target))
        total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
    return total / 4.0


distributed = strategy.experimental_distribute_dataset(dataset)
for epoch in range(3):
    loss = train_epoch(iter(distributed))
    step.assign_add(4)
print(
    json.dumps(
        {
            "loss": float(loss),
            "collatz": int(collatz(tf.constant(27))),
            "cubes": float(cube_sum(tf.constant([1.0, -2.0, 3.0]))),
        }
    )
)
