"""Mixed precision: a global policy, a loss-scaled optimizer in a loop of one's own."""

import json

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers, mixed_precision

policy = mixed_precision.Policy("mixed_float16")
mixed_precision.set_global_policy(policy)
print("Compute dtype: %s" % policy.compute_dtype)
print("Variable dtype: %s" % policy.variable_dtype)

rng = np.random.default_rng(6)
x_train = rng.normal(size=(128, 10)).astype("float32")
y_train = (x_train[:, 0] + x_train[:, 1] > 0).astype("int32")

inputs = keras.Input(shape=(10,), name="digits")
x = layers.Dense(32, activation="relu", name="dense_1")(inputs)
x = layers.Dense(2, name="dense_logits")(x)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.set_weights([rng.normal(size=w.shape).astype("float32") * 0.2 for w in model.get_weights()])

optimizer = keras.optimizers.RMSprop(learning_rate=0.01)
optimizer = mixed_precision.LossScaleOptimizer(optimizer)
loss_object = keras.losses.SparseCategoricalCrossentropy()
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(32)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        predictions = model(x)
        loss = loss_object(y, predictions)
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(3):
    epoch_loss_avg = tf.keras.metrics.Mean()
    for x, y in train_dataset:
        loss = train_step(x, y)
        epoch_loss_avg(loss)
    print("Epoch {}: loss={}".format(epoch, epoch_loss_avg.result()))
print(json.dumps({"half_loss": float(epoch_loss_avg.result())}))
