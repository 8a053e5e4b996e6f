"""Trains a classifier in a loop of its own: metrics in variables, momentum, and a last batch that is smaller."""

import json

import numpy as np
import tensorflow as tf

REPLICAS = 4
GLOBAL_BATCH_SIZE = 32
EPOCHS = 3
LEARNING_RATE, MOMENTUM = 0.5, 0.9

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)

strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])
print("replicas:", strategy.num_replicas_in_sync)

random = np.random.default_rng(0)
images = random.normal(size=(150, 20)).astype(np.float32)
labels = np.argmax(images @ random.normal(size=(20, 3)), axis=1).astype(np.int32)
train = tf.data.Dataset.from_tensor_slices((images[:118], labels[:118])).batch(GLOBAL_BATCH_SIZE)
test = tf.data.Dataset.from_tensor_slices((images[118:], labels[118:])).batch(GLOBAL_BATCH_SIZE).prefetch(2)
train_data = strategy.experimental_distribute_dataset(train)
test_data = strategy.experimental_distribute_dataset(test)


class Classifier(tf.Module):
    """A perceptron with one hidden layer."""

    def __init__(self):
        super().__init__()
        mean = tf.VariableAggregation.MEAN
        hidden, output = random.normal(size=(20, 16)) * 0.3, random.normal(size=(16, 3)) * 0.3
        self.hidden = tf.Variable(hidden.astype(np.float32), name="hidden", aggregation=mean)
        self.hidden_bias = tf.Variable(tf.zeros([16]), name="hidden_bias", aggregation=mean)
        self.output = tf.Variable(output.astype(np.float32), name="output", aggregation=mean)
        self.output_bias = tf.Variable(tf.zeros([3]), name="output_bias", aggregation=mean)

    def __call__(self, x):
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, self.hidden), self.hidden_bias))
        return tf.nn.bias_add(tf.matmul(x, self.output), self.output_bias)


def metric(name):
    return tf.Variable(
        0.0,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


with strategy.scope():
    model = Classifier()
    slots = [
        tf.Variable(tf.zeros_like(v), trainable=False, aggregation=tf.VariableAggregation.MEAN)
        for v in model.trainable_variables
    ]
    correct, seen = metric("correct"), metric("seen")


def count(logits, y):
    hits = tf.cast(tf.argmax(logits, axis=1, output_type=tf.int32) == y, tf.float32)
    correct.assign_add(tf.reduce_sum(hits))
    seen.assign_add(tf.cast(tf.shape(y)[0], tf.float32))


def train_step(inputs):
    x, y = inputs
    with tf.GradientTape() as tape:
        logits = model(x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)
    gradients = tape.gradient(loss, model.trainable_variables)
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    for variable, slot, gradient in zip(model.trainable_variables, slots, gradients):
        slot.assign(MOMENTUM * slot + gradient)
        variable.assign_sub(LEARNING_RATE * slot)
    count(logits, y)
    return loss


def test_step(inputs):
    x, y = inputs
    logits = model(x)
    count(logits, y)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


@tf.function
def distributed_train_step(inputs):
    per_replica_loss = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_loss, axis=None)


@tf.function
def distributed_test_step(inputs):
    losses = strategy.run(test_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=0)


results = {}
for epoch in range(EPOCHS):
    total, batches = 0.0, 0
    for batch in train_data:
        total += distributed_train_step(batch)
        batches += 1
    accuracy = correct.numpy() / seen.numpy()
    print(f"epoch {epoch}: loss {float(total) / batches:.6f}, accuracy {accuracy:.4f}")
    results[f"train_loss_{epoch}"] = float(total) / batches
    results[f"train_accuracy_{epoch}"] = float(accuracy)
    correct.assign(0.0)
    seen.assign(0.0)

for batch in test_data:
    results["test_loss"] = float(distributed_test_step(batch).numpy())
results["test_accuracy"] = float(correct.numpy() / seen.numpy())
results["output_bias"] = [float(value) for value in model.output_bias.numpy()]
print(json.dumps(results))
