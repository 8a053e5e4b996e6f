"""Trains a linear model with a coordinator, a worker and a parameter server in one process."""

import json
import socket

import numpy as np
import tensorflow as tf


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


cluster = {"worker": [f"localhost:{free_port()}"], "ps": [f"localhost:{free_port()}"]}
cluster_spec = tf.train.ClusterSpec(cluster)
servers = [
    tf.distribute.Server(cluster_spec, job_name=job, task_index=0, protocol="grpc", start=True) for job in cluster
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")
partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=1)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

rows = np.random.default_rng(3).normal(size=(24, 4)).astype(np.float32)
targets = rows @ np.array([0.5, 1.0, -1.0, 2.0], np.float32)

with strategy.scope():
    weights = tf.Variable(tf.zeros([4]), name="weights")


def dataset_fn():
    return tf.data.Dataset.from_tensor_slices((rows, targets)).batch(6).repeat()


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(lambda context: dataset_fn())


@tf.function
def step(iterator):
    def replica_step(x, y):
        with tf.GradientTape() as tape:
            value = tf.convert_to_tensor(weights)
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * value, axis=1) - y))
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * gradient)
        return loss

    return strategy.run(replica_step, args=next(iterator))


iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
results = {"losses": []}
for _ in range(8):
    remote = coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    results["losses"].append(float(remote.fetch()))
print(json.dumps(results))
