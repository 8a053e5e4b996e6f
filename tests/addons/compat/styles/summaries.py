"""Curves for TensorBoard from a loop of one's own."""

import datetime
import json
import os
import tempfile

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(9)
x = rng.normal(size=(96, 6)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int32)
train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(24)
test_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)

model = tf.keras.models.Sequential(
    [tf.keras.layers.Input(shape=(6,)), tf.keras.layers.Dense(2, activation="softmax", kernel_initializer="zeros")]
)
loss_object = tf.keras.losses.SparseCategoricalCrossentropy()
optimizer = tf.keras.optimizers.Adam(0.05)
train_loss = tf.keras.metrics.Mean("train_loss", dtype=tf.float32)
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("train_accuracy")
test_loss = tf.keras.metrics.Mean("test_loss", dtype=tf.float32)


@tf.function
def train_step(model, optimizer, x_train, y_train):
    with tf.GradientTape() as tape:
        predictions = model(x_train, training=True)
        loss = loss_object(y_train, predictions)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    train_loss(loss)
    train_accuracy(y_train, predictions)


def test_step(model, x_test, y_test):
    predictions = model(x_test)
    test_loss(loss_object(y_test, predictions))


current_time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
logs = tempfile.mkdtemp()
train_log_dir = os.path.join(logs, current_time, "train")
test_log_dir = os.path.join(logs, current_time, "test")
train_summary_writer = tf.summary.create_file_writer(train_log_dir)
test_summary_writer = tf.summary.create_file_writer(test_log_dir)

for epoch in range(3):
    for x_train, y_train in train_dataset:
        train_step(model, optimizer, x_train, y_train)
    with train_summary_writer.as_default():
        tf.summary.scalar("loss", train_loss.result(), step=epoch)
        tf.summary.scalar("accuracy", train_accuracy.result(), step=epoch)
        tf.summary.histogram("kernel", model.trainable_variables[0], step=epoch)
    for x_test, y_test in test_dataset:
        test_step(model, x_test, y_test)
    with test_summary_writer.as_default():
        tf.summary.scalar("loss", test_loss.result(), step=epoch)
    result = {"loss": float(train_loss.result()), "test_loss": float(test_loss.result())}
    train_loss.reset_state()
    test_loss.reset_state()
    train_accuracy.reset_state()
train_summary_writer.close()
assert len(tf.io.gfile.listdir(train_log_dir)) == 1
print(json.dumps(result))
