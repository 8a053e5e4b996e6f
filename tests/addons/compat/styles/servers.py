"""Parameter servers: a cluster in one process, a coordinator that schedules steps, a partitioned embedding."""

import json
import socket

import numpy as np
import tensorflow as tf


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def create_in_process_cluster(num_workers, num_ps):
    cluster_dict = {
        "worker": ["localhost:%s" % free_port() for _ in range(num_workers)],
        "ps": ["localhost:%s" % free_port() for _ in range(num_ps)],
    }
    cluster_spec = tf.train.ClusterSpec(cluster_dict)
    for i in range(num_workers):
        tf.distribute.Server(cluster_spec, job_name="worker", task_index=i, protocol="grpc")
    for i in range(num_ps):
        tf.distribute.Server(cluster_spec, job_name="ps", task_index=i, protocol="grpc")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")


cluster_resolver = create_in_process_cluster(1, 1)
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=1
)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=variable_partitioner)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    kernel = tf.Variable(tf.zeros([4, 1]), name="kernel")


def dataset_fn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    y = x @ np.array([[1], [2], [3], [4]], np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(10).repeat()


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(lambda _: dataset_fn())


@tf.function
def step_fn(iterator):
    def replica_fn(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel) - y))
        grads = tape.gradient(loss, [kernel])
        kernel.assign_sub(0.1 * grads[0])
        return loss

    losses = strategy.run(replica_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for epoch in range(3):
    for _ in range(4):
        result = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print("Finished epoch %d, loss is %f." % (epoch, result.fetch()))
print(json.dumps({"loss": float(result.fetch())}))
