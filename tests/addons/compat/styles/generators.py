"""Sequences of different lengths from a generator, padded in batches."""

import json

import numpy as np
import tensorflow as tf


def gen_series():
    rng = np.random.default_rng(7)
    for i in range(60):
        size = rng.integers(1, 9)
        values = rng.normal(size=(size,)).astype(np.float32)
        yield values, np.int32(values.sum() > 0)


ds_series = tf.data.Dataset.from_generator(
    gen_series,
    output_signature=(tf.TensorSpec(shape=(None,), dtype=tf.float32), tf.TensorSpec(shape=(), dtype=tf.int32)),
)
ds_batch = ds_series.padded_batch(10, padded_shapes=([8], []))
for sequence, label in ds_batch.take(1):
    print(sequence.numpy().shape, label.numpy().shape)

counter = tf.data.Dataset.from_generator(lambda stop: range(stop), args=[6], output_types=tf.int32, output_shapes=())
windows = counter.window(3, shift=1, drop_remainder=True).flat_map(lambda w: w.batch(3))
total = sum(int(tf.reduce_sum(w)) for w in windows)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    kernel = tf.Variable(tf.zeros([8, 1]), name="kernel")
    bias = tf.Variable(0.0, name="bias")
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build([kernel, bias])


def step(x, y):
    with tf.GradientTape() as tape:
        logits = tf.squeeze(tf.matmul(x, kernel), axis=1) + bias
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(y, tf.float32), logits=logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=10)
    grads = tape.gradient(loss, [kernel, bias])
    optimizer.apply_gradients(zip(grads, [kernel, bias]))
    return loss


@tf.function
def train_step(batch):
    return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)


for epoch in range(4):
    losses = []
    for batch in strategy.experimental_distribute_dataset(ds_batch):
        losses.append(train_step(batch))
print(json.dumps({"loss": float(tf.reduce_mean(losses)), "windows": total}))
