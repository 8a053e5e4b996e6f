"""Gradient accumulation over several batches, in variables that each replica has."""

import json
import numpy as np
import tensorflow as tf


class GradientAccumulator(object):
    def __init__(self):
        self._gradients = []
        self._accum_steps = None

    @property
    def step(self):
        if self._accum_steps is None:
            self._accum_steps = tf.Variable(
                tf.constant(0, dtype=tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        return self._accum_steps.value()

    @property
    def gradients(self):
        return list(gradient.value() for gradient in self._gradients)

    def __call__(self, gradients):
        if not self._gradients:
            _ = self.step
            self._gradients.extend(
                [
                    tf.Variable(
                        tf.zeros_like(g),
                        trainable=False,
                        synchronization=tf.VariableSynchronization.ON_READ,
                        aggregation=tf.VariableAggregation.NONE,
                    )
                    for g in gradients
                ]
            )
        for acc, gradient in zip(self._gradients, gradients):
            acc.assign_add(gradient)
        self._accum_steps.assign_add(1)

    def reset(self):
        if not self._gradients:
            return
        self._accum_steps.assign(0)
        for gradient in self._gradients:
            gradient.assign(tf.zeros_like(gradient))


strategy = tf.distribute.MirroredStrategy()
rng = np.random.default_rng(5)
x = rng.normal(size=(96, 4)).astype("float32")
y = (x @ rng.normal(size=(4, 2))).astype("float32")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input(shape=(4,)), tf.keras.layers.Dense(2, kernel_initializer="zeros")])
    optimizer = tf.keras.optimizers.SGD(0.2)
    accumulator = GradientAccumulator()
    loss_fn = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
ds = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(16))


def forward(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loss_fn(labels, model(features, training=True))) / 16
    gradients = tape.gradient(loss, model.trainable_variables)
    accumulator(gradients)
    return loss


def apply():
    gradients = [g / tf.cast(accumulator.step, g.dtype) for g in accumulator.gradients]
    optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))
    accumulator.reset()


@tf.function
def forward_all(batch):
    per_replica = strategy.run(forward, args=batch)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


@tf.function
def apply_all():
    strategy.run(apply)


losses = []
for epoch in range(3):
    for i, batch in enumerate(ds):
        losses.append(float(forward_all(batch)))
        if (i + 1) % 3 == 0:
            apply_all()
print(
    json.dumps(
        {
            "first": losses[0],
            "last": losses[-1],
            "iterations": int(optimizer.iterations.numpy()),
            "w": float(np.abs(model.get_weights()[0]).sum()),
        }
    )
)
