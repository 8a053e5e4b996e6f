"""Functions of `tf` with a Keras model's symbolic tensors."""

from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

PROGRAM = """
import warnings
import numpy as np
import jaxtribute.compat.tf as tf

x = tf.keras.Input((3,))
hidden = tf.keras.layers.Embedding(5, 4)(x)
mean = tf.reduce_mean(hidden, axis=1)
parts = tf.concat([mean, tf.nn.relu(mean) * 2.0, tf.math.log(tf.square(mean) + 1.0)], axis=-1)
left, right = tf.split(tf.cast(parts, tf.float16), 2, axis=-1)
model = tf.keras.Model(x, [left, right])
assert left.shape == (None, 6) and left.dtype == "float16", left

numbers = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]])
found = np.concatenate(model(numbers), -1)
table = np.asarray(model.weights[0])
want = table[numbers.astype(int)].mean(1)
want = np.concatenate([want, np.maximum(want, 0) * 2, np.log(want**2 + 1)], -1)
np.testing.assert_allclose(found, want, atol=1e-3)

warnings.simplefilter("ignore", DeprecationWarning)  # Keras's own, of how NumPy copies
model.save("symbolic.keras")
again = tf.keras.models.load_model("symbolic.keras")
np.testing.assert_array_equal(np.concatenate(again(numbers), -1), found)

sums = tf.keras.Model(x, tf.add_n([x, x]) + tf.reduce_sum(x, axis=-1, keepdims=True))
sums.compile("sgd", "mse")
np.testing.assert_allclose(sums.predict(numbers, verbose=0), 2 * numbers + numbers.sum(-1, keepdims=True), rtol=1e-6)

class Heads(tf.keras.layers.Layer):
    def call(self, x):
        rows = tf.shape(x)[0]
        cut = tf.reshape(x, (rows, 3, -1)) + tf.zeros((rows, 3, 1)) + tf.broadcast_to([1.0], (rows, 3, 1))
        shape = tf.concat([tf.shape(x)[:-1], [3]], 0)
        return tf.reshape(cut, shape) + 0.0 * tf.random.normal(shape=tf.shape(x)) * tf.random.uniform((rows, 1))

heads = tf.keras.Model(x, Heads()(x))
assert heads.output_shape == (None, 3)
np.testing.assert_allclose(heads.predict(numbers, verbose=0), numbers + 1)

from jaxtribute._src.addons.keras.functions import FunctionOperation
try:
    FunctionOperation("os.getcwd").call()
except ValueError as error:
    assert "os.getcwd is no function" in str(error)
else:
    raise AssertionError("a damaged file called another function")
print("done")
"""


LOAD = """
import warnings
import numpy as np
import jaxtribute.compat.tf as tf

warnings.simplefilter("ignore", DeprecationWarning)  # Keras's own, of how NumPy copies
model = tf.keras.models.load_model("symbolic.keras")
assert np.concatenate(model(np.ones((2, 3))), -1).shape == (2, 12)
print("loaded")
"""
LOOKUPS = """
import numpy as np
import jaxtribute.compat.tf as tf
from jaxtribute.compat.tf.keras import layers
from jaxtribute.integrations import keras as ours

assert layers.StringLookup is tf.keras.layers.StringLookup is ours.StringLookup
assert tf.keras.callbacks.TensorBoard is ours.TensorBoard
assert "Dense" in dir(layers) and issubclass(layers.Dense, layers.Layer)
words = layers.Input((2,), dtype=tf.string, name="words")
stage = tf.keras.Model({"words": words}, layers.StringLookup(vocabulary=["a", "b"])(words))
data = tf.data.Dataset.from_tensor_slices({"words": [["a", "b"], ["c", "a"]]})
print([row.tolist() for row in data.map(lambda row: stage(row["words"])).batch(2)])
"""


def test_calls_become_steps_of_the_model_and_strings_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(PROGRAM).split()[-1] == "done"
    printed = run_python(LOAD + LOOKUPS)
    assert "loaded" in printed
    assert printed.strip().endswith("[[[1, 2], [0, 1]]]")
