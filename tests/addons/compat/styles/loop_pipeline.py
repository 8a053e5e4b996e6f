"""A loop of one's own over a pipeline of `tf.data`: map, cache, shuffle, batch, prefetch; test metrics."""

import json

import numpy as np
import tensorflow as tf

BATCH_SIZE_PER_REPLICA = 16
EPOCHS = 3

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))
GLOBAL_BATCH_SIZE = 32

rng = np.random.default_rng(0)
images = rng.integers(0, 256, size=(200, 6, 6)).astype("uint8")
labels = (images.reshape(200, -1)[:, :3].sum(axis=1) > 380).astype("int64")


def scale(image, label):
    image = tf.cast(image, tf.float32) / 255.0
    return tf.reshape(image, [36]), label


train_dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    .cache()
    .shuffle(200, seed=1)
    .batch(GLOBAL_BATCH_SIZE)
    .prefetch(tf.data.AUTOTUNE)
)
test_dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(scale).batch(GLOBAL_BATCH_SIZE)
train_dist = strategy.experimental_distribute_dataset(train_dataset)
test_dist = strategy.experimental_distribute_dataset(test_dataset)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(shape=(36,)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    model.set_weights([rng.normal(size=w.shape).astype("float32") * 0.2 for w in model.get_weights()])
    optimizer = tf.keras.optimizers.Adam(0.01)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )
    test_loss = tf.keras.metrics.Mean(name="test_loss")
    test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


def compute_loss(labels, predictions):
    per_example_loss = loss_object(labels, predictions)
    return tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def test_step(inputs):
    images, labels = inputs
    predictions = model(images, training=False)
    test_loss.update_state(loss_object(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(dataset_inputs):
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(dataset_inputs):
    return strategy.run(test_step, args=(dataset_inputs,))


for epoch in range(EPOCHS):
    total_loss, num_batches = 0.0, 0
    for batch in train_dist:
        total_loss += distributed_train_step(batch)
        num_batches += 1
    for batch in test_dist:
        distributed_test_step(batch)
    print(f"Epoch {epoch + 1}, loss: {total_loss / num_batches}, accuracy: {test_accuracy.result() * 100}")
    result = {"loss": float(test_loss.result()), "accuracy": float(test_accuracy.result())}
    test_loss.reset_state()
    test_accuracy.reset_state()
print(json.dumps({f"sane_{name}": value for name, value in result.items()}))
