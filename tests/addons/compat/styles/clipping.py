"""Gradients clipped by their global norm, and averaged over several steps before they are applied."""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(13)
x = rng.normal(size=(64, 6)).astype(np.float32) * 3
y = (x @ rng.normal(size=(6, 1)).astype(np.float32)).astype(np.float32)

inputs = tf.keras.Input(shape=(6,))
hidden = tf.keras.layers.Dense(10, activation=tf.nn.tanh)(inputs)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
model.set_weights([rng.normal(size=w.shape).astype(np.float32) * 0.3 for w in model.get_weights()])
optimizer = tf.keras.optimizers.SGD(learning_rate=0.05, clipvalue=1.0)
accumulated = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


@tf.function
def accumulate(features, target):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.MSE(target, model(features, training=True)))
        loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, norm = tf.clip_by_global_norm(gradients, 2.0)
    gradients = [tf.clip_by_norm(g, 1.5) for g in gradients]
    for slot, gradient in zip(accumulated, gradients):
        slot.assign_add(gradient / 2.0)
    return loss, norm


@tf.function
def apply():
    optimizer.apply_gradients(zip(accumulated, model.trainable_variables))
    for slot in accumulated:
        slot.assign(tf.zeros_like(slot))


for epoch in range(4):
    for step, (features, target) in enumerate(dataset):
        loss, norm = accumulate(features, target)
        if (step + 1) % 2 == 0:
            apply()
    print("epoch", epoch, "loss", loss.numpy(), "norm", norm.numpy())
print(json.dumps({"loss": float(loss), "norm": float(norm)}))
