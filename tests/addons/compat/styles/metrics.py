"""Metrics: Keras's own, one of one's own, results in an evaluation loop."""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(12)
x = rng.normal(size=(90, 4)).astype(np.float32)
y = (x[:, 0] - x[:, 3] > 0).astype(np.int32)


class CategoricalTruePositives(tf.keras.metrics.Metric):
    def __init__(self, name="true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_weight(name="ctp", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = tf.cast(y_pred > 0.5, tf.int32)
        values = tf.cast(tf.cast(y_true, tf.int32) == tf.reshape(y_pred, [-1]), "float32")
        if sample_weight is not None:
            values = tf.multiply(values, tf.cast(sample_weight, "float32"))
        self.true_positives.assign_add(tf.reduce_sum(values))

    def result(self):
        return self.true_positives

    def reset_state(self):
        self.true_positives.assign(0.0)


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = tf.keras.Input((4,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid", kernel_initializer="zeros")(inputs))
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9, nesterov=True)
    loss_fn = tf.keras.losses.BinaryCrossentropy(reduction="none")
    train_metric = CategoricalTruePositives()
    auc = tf.keras.metrics.AUC(num_thresholds=50)
    precision, recall = tf.keras.metrics.Precision(), tf.keras.metrics.Recall()


@tf.function
def train_step(batch):
    def replica(x, y):
        with tf.GradientTape() as tape:
            probabilities = model(x, training=True)
            loss_value = tf.nn.compute_average_loss(loss_fn(y[:, None], probabilities), global_batch_size=20)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights))
        train_metric.update_state(y, probabilities)
        return loss_value

    return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)


@tf.function
def evaluate(batch):
    def replica(x, y):
        probabilities = model(x, training=False)[:, 0]
        auc.update_state(y, probabilities)
        precision.update_state(y, probabilities)
        recall.update_state(y, probabilities)

    strategy.run(replica, args=batch)


dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
for epoch in range(3):
    for step, batch in enumerate(dataset):
        loss_value = train_step(batch)
    right = train_metric.result().numpy()
    train_metric.reset_state()
for batch in dataset:
    evaluate(batch)
f1 = 2 * precision.result() * recall.result() / (precision.result() + recall.result())
print(json.dumps({"loss": float(loss_value), "right": float(right), "auc": float(auc.result()), "f1": float(f1)}))
