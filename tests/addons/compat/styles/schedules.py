"""Learning rates: a schedule of one's own with warm-up, Keras's schedules, a decay by hand."""

import json

import numpy as np
import tensorflow as tf


class CustomSchedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=10):
        super().__init__()
        self.d_model = tf.cast(d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = tf.cast(step, dtype=tf.float32)
        arg1 = tf.math.rsqrt(step)
        arg2 = step * (self.warmup_steps**-1.5)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(arg1, arg2)


cosine = tf.keras.optimizers.schedules.CosineDecayRestarts(0.1, first_decay_steps=10)
steps_decay = tf.keras.optimizers.schedules.PiecewiseConstantDecay([5, 10], [0.1, 0.05, 0.01])
rates = [float(schedule(tf.constant(7))) for schedule in (CustomSchedule(16), cosine, steps_decay)]

rng = np.random.default_rng(14)
x = rng.normal(size=(80, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential()
    model.add(tf.keras.Input(shape=(5,)))
    model.add(tf.keras.layers.Dense(1, kernel_initializer="zeros", kernel_regularizer=tf.keras.regularizers.l2(1e-3)))
    model.compile(
        loss="mse",
        optimizer=tf.keras.optimizers.Adam(CustomSchedule(16), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        metrics=[tf.keras.metrics.RootMeanSquaredError()],
    )
model.fit(x, y, batch_size=20, epochs=3, shuffle=False, verbose=0)
results = model.evaluate(x, y, verbose=0, return_dict=True)

w = tf.Variable(tf.zeros([5, 1]))
optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
for epoch in range(3):
    optimizer.learning_rate.assign(0.1 * 0.5**epoch)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x, w) - y) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
print(json.dumps({"loss": results["loss"], "by_hand": float(loss), "rates": sum(rates)}))
