"""Fits a line with variables on one device: datasets made by a function, explicit iterators, gather and merge_call."""

import json

import numpy as np
import tensorflow as tf

REPLICAS = 2
GLOBAL_BATCH_SIZE = 8

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
strategy = tf.distribute.experimental.CentralStorageStrategy([f"/cpu:{i}" for i in range(REPLICAS)], "/cpu:0")

rows = np.random.default_rng(1).normal(size=(48, 3)).astype(np.float32)
targets = (rows @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25).astype(np.float32)


def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    dataset = tf.data.Dataset.from_tensor_slices({"x": rows, "y": targets})
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    dataset = dataset.map(lambda row: (row["x"] * 2.0, row["y"]), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size, drop_remainder=True).repeat()


with strategy.scope():
    weights = tf.Variable(tf.zeros([3]), name="weights")
    bias = tf.Variable(0.0, name="bias")
    steps = tf.Variable(0, name="steps", trainable=False)


def apply_update(distribution, gradients):
    reduced = distribution.extended.batch_reduce_to("SUM", list(zip(gradients, [weights, bias])))
    for variable, gradient in zip([weights, bias], reduced):
        distribution.extended.update(variable, lambda v, g: v.assign_sub(0.05 * g), args=(gradient,))
    distribution.extended.update(steps, lambda v: v.assign_add(1))


@tf.function
def step(inputs):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            error = tf.linalg.matmul(x, tf.reshape(weights, [3, 1]))[:, 0] + bias - y
            loss = tf.reduce_sum(tf.square(error)) / GLOBAL_BATCH_SIZE
        gradients = tape.gradient(loss, [weights, bias])
        tf.distribute.get_replica_context().merge_call(apply_update, args=(gradients,))
        return loss, error

    return strategy.run(replica_step, args=inputs)


iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
results = {"losses": []}
errors = None
for _ in range(30):
    losses, errors = step(iterator.get_next())
    results["losses"].append(float(strategy.reduce("SUM", losses, axis=None)))
results["steps"] = int(steps.numpy())
results["weights"] = [float(value) for value in weights.numpy()]
results["bias"] = float(bias.numpy())
results["error_norm"] = float(tf.norm(strategy.gather(errors, axis=0)))
print(json.dumps(results))
