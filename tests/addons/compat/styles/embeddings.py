"""Recommending: embeddings of users and items in a subclassed model with a train step of its own."""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(4)
users, items = 20, 30
pairs = np.stack([rng.integers(0, users, 400), rng.integers(0, items, 400)], axis=1).astype(np.int32)
ratings = rng.uniform(1, 5, size=(400,)).astype(np.float32)


class RecommenderNet(tf.keras.Model):
    def __init__(self, num_users, num_items, size, **kwargs):
        super().__init__(**kwargs)
        start = tf.keras.initializers.Constant(0.1)
        self.user_embedding = tf.keras.layers.Embedding(num_users, size, embeddings_initializer=start)
        self.user_bias = tf.keras.layers.Embedding(num_users, 1, embeddings_initializer="zeros")
        self.item_embedding = tf.keras.layers.Embedding(num_items, size, embeddings_initializer=start)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        item_vector = self.item_embedding(inputs[:, 1])
        dot = tf.reduce_sum(user_vector * item_vector, axis=1, keepdims=True)
        return tf.nn.sigmoid(dot + self.user_bias(inputs[:, 0]))


strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((pairs, (ratings[:, None] - 1) / 4)).batch(50)
with strategy.scope():
    model = RecommenderNet(users, items, 6)
    model.compile(loss=tf.keras.losses.BinaryCrossentropy(), optimizer=tf.keras.optimizers.Adam(learning_rate=0.01))
history = model.fit(dataset, epochs=4, verbose=0)

table = tf.Variable(tf.random.uniform([10, 4], -0.1, 0.1), name="table")
rows = tf.nn.embedding_lookup(table, tf.constant([1, 3, 3]))
print("rows:", rows.shape)
scores = model.predict(pairs[:8], verbose=0).flatten()
top = scores.argsort()[-3:][::-1]
print(json.dumps({"loss": float(history.history["loss"][-1]), "best": float(scores[top[0]])}))
