"""Classifying texts: a standardization of one's own, TextVectorization, an embedding, pooling."""

import json
import re
import string

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, losses

good = ["great film", "loved every minute!", "what a <br /> wonderful cast", "a fine, warm story"]
bad = ["terrible film", "hated every minute...", "what a <br /> dull cast", "a poor, cold story"]
texts = (good + bad) * 8
labels = ([1] * 4 + [0] * 4) * 8
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(16)


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, "[%s]" % re.escape(string.punctuation), "")


max_features = 100
sequence_length = 8
vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
train_text = raw_train_ds.map(lambda x, y: x)
vectorize_layer.adapt(train_text)


def vectorize_text(text, label):
    text = tf.expand_dims(text, -1)
    return vectorize_layer(text), label


print("Vocabulary size: {}".format(len(vectorize_layer.get_vocabulary())))
train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=tf.data.AUTOTUNE)

rng = np.random.default_rng(0)
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((sequence_length,), dtype="int64"),
            layers.Embedding(max_features, 8),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.set_weights([rng.normal(size=w.shape).astype("float32") * 0.3 for w in model.get_weights()])
    model.compile(
        loss=losses.BinaryCrossentropy(),
        optimizer=tf.keras.optimizers.Adam(0.05),
        metrics=[tf.metrics.BinaryAccuracy(threshold=0.5)],
    )
history = model.fit(train_ds, epochs=5, verbose=0)
print(json.dumps({"loss": float(history.history["loss"][-1])}))
