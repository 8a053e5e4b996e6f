"""A loop in the style of estimators: input functions, a model function with modes, a spec."""

import collections
import json

import numpy as np
import tensorflow as tf

EstimatorSpec = collections.namedtuple("EstimatorSpec", ["predictions", "loss", "train_op"])


class ModeKeys:
    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


def input_fn(features, labels, training=True, batch_size=25):
    dataset = tf.data.Dataset.from_tensor_slices((dict(features), labels))
    if training:
        dataset = dataset.repeat(2)
    return dataset.batch(batch_size)


rng = np.random.default_rng(10)
data = {name: rng.normal(size=(150,)).astype(np.float32) for name in ("SepalLength", "SepalWidth", "PetalLength")}
labels = (data["SepalLength"] > data["PetalLength"]).astype(np.int32)

strategy = tf.distribute.MirroredStrategy()
params = {"hidden": [8], "learning_rate": 0.05, "n_classes": 2}
with strategy.scope():
    weights = [
        tf.Variable(rng.normal(size=(3, 8)).astype(np.float32) * 0.5, name="w0"),
        tf.Variable(tf.zeros([8]), name="b0"),
        tf.Variable(rng.normal(size=(8, 2)).astype(np.float32) * 0.5, name="w1"),
        tf.Variable(tf.zeros([2]), name="b1"),
    ]
    optimizer = tf.keras.optimizers.Adagrad(params["learning_rate"])
    global_step = tf.Variable(0, trainable=False, dtype=tf.int64)


def net(features):
    columns = tf.stack([features[name] for name in sorted(features)], axis=1)
    hidden = tf.nn.relu(tf.matmul(columns, weights[0]) + weights[1])
    return tf.matmul(hidden, weights[2]) + weights[3]


def model_fn(features, labels, mode, params):
    if mode == ModeKeys.PREDICT:
        logits = net(features)
        return EstimatorSpec({"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}, None, None)
    with tf.GradientTape() as tape:
        logits = net(features)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=25)
    if mode == ModeKeys.TRAIN:
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights))
    return EstimatorSpec(None, loss, None)


@tf.function
def train(features, labels):
    spec = strategy.run(model_fn, args=(features, labels, ModeKeys.TRAIN, params))
    return strategy.reduce("SUM", spec.loss, axis=None)


for features, target in strategy.experimental_distribute_dataset(input_fn(data, labels)):
    loss = train(features, target)
    global_step.assign_add(1)
    if global_step.numpy() % 4 == 0:
        tf.print("step", global_step, "loss", loss)
predicted = model_fn({k: tf.constant(v) for k, v in data.items()}, None, ModeKeys.PREDICT, params).predictions
accuracy = np.mean(predicted["classes"].numpy() == labels)
print(json.dumps({"loss": float(loss), "accuracy": float(accuracy), "steps": int(global_step.numpy())}))
