"""Boilerplate of TPU guides, with several steps in one call over an iterator."""

import json

import numpy as np
import tensorflow as tf

try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
    print("All devices: ", tf.config.list_logical_devices("TPU"))
except (ValueError, tf.errors.NotFoundError):
    strategy = tf.distribute.get_strategy()
print("REPLICAS: ", strategy.num_replicas_in_sync)

batch_size = 64
per_replica_batch_size = batch_size // strategy.num_replicas_in_sync
rng = np.random.default_rng(3)
features = rng.normal(size=(512, 10)).astype("float32")
targets = (features[:, 0] > features[:, 1]).astype("int32")


def get_dataset(batch_size, is_training=True):
    dataset = tf.data.Dataset.from_tensor_slices((features, targets))
    if is_training:
        dataset = dataset.repeat()
    return dataset.batch(batch_size, drop_remainder=True)


def create_model():
    return tf.keras.Sequential(
        [tf.keras.Input((10,)), tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(2)]
    )


with strategy.scope():
    model = create_model()
    model.set_weights([rng.normal(size=w.shape).astype("float32") * 0.3 for w in model.get_weights()])
    optimizer = tf.keras.optimizers.Adam()
    training_loss = tf.keras.metrics.Mean("training_loss", dtype=tf.float32)
    training_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("training_accuracy", dtype=tf.float32)

train_dataset = strategy.distribute_datasets_from_function(lambda _: get_dataset(per_replica_batch_size))


@tf.function
def train_multiple_steps(iterator, steps):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            per_example_loss = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(per_example_loss, global_batch_size=batch_size)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        training_loss.update_state(loss * strategy.num_replicas_in_sync)
        training_accuracy.update_state(labels, logits)

    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


steps_per_epoch = 8
train_iterator = iter(train_dataset)
for epoch in range(3):
    train_multiple_steps(train_iterator, tf.convert_to_tensor(steps_per_epoch))
    print(
        "Current step: {}, training loss: {}".format(
            optimizer.iterations.numpy(), round(float(training_loss.result()), 4)
        )
    )
    result = {"loss": float(training_loss.result()), "accuracy": float(training_accuracy.result())}
    training_loss.reset_state()
    training_accuracy.reset_state()
print(json.dumps(result))
