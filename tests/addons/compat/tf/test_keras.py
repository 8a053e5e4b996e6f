"""`tf.keras` is Keras 3 on JAX, and reads datasets of `tf.data`."""

import json

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

PROGRAM = """
import json, warnings
import numpy as np
import jaxtribute.compat.tf as tf
from jaxtribute.compat.tf.keras import layers

warnings.simplefilter("ignore", UserWarning)  # Keras's, of a dataset that ends
rows = np.arange(30, dtype=np.float32).reshape(10, 3) / 30
dataset = tf.data.Dataset.from_tensor_slices((rows, rows.sum(1, keepdims=True)))
streamed = dataset.filter(lambda x, y: True)

def trained(strategy, dataset):
    with strategy.scope():
        tf.random.set_seed(0)
        model = tf.keras.Sequential([tf.keras.Input([3]), layers.Dense(1)])
        model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(0.1))
    history = model.fit(dataset.batch(4), epochs=2, verbose=0).history
    return [*history["loss"], model.evaluate(dataset.batch(4), verbose=0)]

two = tf.distribute.MirroredStrategy()
assert two.num_replicas_in_sync == 2
print(json.dumps([trained(s, d) for s in (tf.distribute.get_strategy(), two) for d in (dataset, streamed)]))
"""


NAMES = """
import warnings
warnings.simplefilter("ignore")  # Keras's, of names that are deprecated
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.catalog.keras import keras_names

for name in keras_names():
    found = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)
print(len(keras_names()))
"""


def test_models_are_fitted_and_every_name_that_migrate_believes_exists() -> None:
    *_, told, count = run_python(PROGRAM + NAMES, devices=2).strip().split("\n")
    assert int(count) > 1000
    losses = json.loads(told)
    for other in losses[1:]:
        assert all(abs(a - b) < 1e-5 for a, b in zip(losses[0], other, strict=True)), losses
    assert losses[0][2] < losses[0][0]
