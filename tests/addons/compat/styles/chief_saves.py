"""Several workers: the chief saves the model, the others write to a temporary folder that they delete."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = 32


def make_dataset(batch_size):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(128, 5)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0, 0.5, 0.0, 2.0], np.float32))[:, None]
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def build_model():
    inputs = tf.keras.Input(shape=(5,))
    outputs = tf.keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
    return tf.keras.Model(inputs, outputs)


with strategy.scope():
    dataset = strategy.experimental_distribute_dataset(make_dataset(global_batch_size))
    model = build_model()
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
    epoch_variable = tf.Variable(0, dtype=tf.int64, name="epoch")
    train_loss = tf.keras.metrics.Mean()


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            error = tf.reduce_sum(tf.square(model(x, training=True) - y), axis=-1)
            loss = tf.nn.compute_average_loss(error, global_batch_size=global_batch_size)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    per_replica = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None or task_type == "chief"


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = os.path.join(dirpath, "workertemp_" + str(task_id))
        tf.io.gfile.makedirs(dirpath)
    return os.path.join(dirpath, base)


task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
folder = os.environ.get("MODEL_DIR") or tempfile.mkdtemp()
checkpoint_dir = os.path.join(folder, "ckpt")
checkpoint = tf.train.Checkpoint(model=model, epoch=epoch_variable)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

while epoch_variable.numpy() < 3:
    iterator = iter(dataset)
    total_loss, steps = 0.0, 0
    while steps < 4:
        total_loss += train_step(iterator)
        steps += 1
    loss = float(total_loss / steps)
    epoch_variable.assign_add(1)
    checkpoint_manager.save()
    if not _is_chief(task_type, task_id):
        tf.io.gfile.rmtree(write_checkpoint_dir)
    print("Epoch: %d, train_loss: %f." % (epoch_variable.numpy(), loss))

model_path = write_filepath(os.path.join(folder, "model.keras"), task_type, task_id)
model.save(model_path)
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(model_path))
print(json.dumps({"loss": loss}))
