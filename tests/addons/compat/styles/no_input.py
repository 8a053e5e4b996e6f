"""A `Sequential` without an `Input`, in a loop of one's own."""

import json

import numpy as np
import tensorflow as tf
from tensorflow.keras import Sequential
from tensorflow.keras.layers import Dense, Flatten

rng = np.random.default_rng(11)
images = rng.uniform(size=(128, 5, 5)).astype("float32")
labels = (images[:, 0, 0] > 0.5).astype("int32")
mirrored_strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(128).batch(32)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)

with mirrored_strategy.scope():
    model = Sequential([Flatten(), Dense(32, activation="relu"), Dense(2)])
    optimizer = tf.keras.optimizers.Adam(0.02)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(dist_inputs):
    def step_fn(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            cross_entropy = loss_object(labels, logits)
            loss = tf.reduce_sum(cross_entropy) * (1.0 / 32)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        return cross_entropy

    per_example_losses = mirrored_strategy.run(step_fn, args=(dist_inputs,))
    return mirrored_strategy.reduce(tf.distribute.ReduceOp.MEAN, per_example_losses, axis=0)


for epoch in range(8):
    for inputs in dist_dataset:
        loss = train_step(inputs)
print(json.dumps({"sane_loss": float(loss)}))
