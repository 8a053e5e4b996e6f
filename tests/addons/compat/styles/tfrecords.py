"""Examples written as TFRecords, and parsed."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf


def _bytes_feature(value):
    if isinstance(value, type(tf.constant(0))):
        value = value.numpy()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _float_feature(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def serialize_example(image, weight, label):
    feature = {
        "image": _bytes_feature(image.tobytes()),
        "weight": _float_feature(weight),
        "label": _int64_feature(label),
    }
    example_proto = tf.train.Example(features=tf.train.Features(feature=feature))
    return example_proto.SerializeToString()


rng = np.random.default_rng(1)
images = rng.integers(0, 255, size=(120, 16)).astype(np.uint8)
weights = rng.uniform(size=(120, 2)).astype(np.float32)
labels = (images[:, 0] > 127).astype(np.int64)
folder = tempfile.mkdtemp()
for shard in range(2):
    with tf.io.TFRecordWriter(os.path.join(folder, f"part-{shard}.tfrecord")) as writer:
        for i in range(shard, 120, 2):
            writer.write(serialize_example(images[i], weights[i].tolist(), int(labels[i])))

feature_description = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "weight": tf.io.FixedLenFeature([2], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64, default_value=0),
}


def parse(example_proto):
    example = tf.io.parse_single_example(example_proto, feature_description)
    image = tf.io.decode_raw(example["image"], tf.uint8)
    image = tf.cast(image, tf.float32) / 255.0
    image = tf.concat([tf.reshape(image, [16]), example["weight"]], axis=0)
    return image, example["label"]


files = tf.data.Dataset.list_files(os.path.join(folder, "*.tfrecord"), shuffle=False)
dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE)
dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(20).prefetch(tf.data.AUTOTUNE)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((18,)), tf.keras.layers.Dense(2, kernel_initializer="zeros")])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(dataset, epochs=3, verbose=0)
raw = next(iter(tf.data.TFRecordDataset(os.path.join(folder, "part-0.tfrecord"))))
example = tf.train.Example()
example.ParseFromString(raw.numpy())
print("label of the first:", example.features.feature["label"].int64_list.value[0])
print(json.dumps({"loss": float(history.history["loss"][-1])}))
