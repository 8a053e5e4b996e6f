"""Trains a linear classifier on several machines, which the environment variable TF_CONFIG names."""

import json
import os

import numpy as np
import tensorflow as tf

GLOBAL_BATCH_SIZE = 16

strategy = tf.distribute.MultiWorkerMirroredStrategy()
cluster = json.loads(os.environ["TF_CONFIG"])
assert strategy.cluster_resolver.task_type == cluster["task"]["type"]
assert strategy.cluster_resolver.task_id == cluster["task"]["index"]
assert strategy.num_replicas_in_sync == len(cluster["cluster"]["worker"])

random = np.random.default_rng(2)
images = random.normal(size=(40, 6)).astype(np.float32)
labels = (images.sum(axis=1) > 0).astype(np.float32)


def dataset_fn(context):
    batch_size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.repeat().batch(batch_size)


data = strategy.distribute_datasets_from_function(dataset_fn)
with strategy.scope():
    weights = tf.Variable(tf.zeros([6, 1]), aggregation=tf.VariableAggregation.MEAN)


@tf.function
def train_step(inputs):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.reshape(tf.matmul(x, weights), [-1])
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        weights.assign_sub(0.5 * gradient)
        return loss

    return strategy.reduce("SUM", strategy.run(replica_step, args=inputs), axis=None)


results = {"losses": []}
iterator = iter(data)
for _ in range(10):
    results["losses"].append(float(train_step(next(iterator))))
print(json.dumps(results))
