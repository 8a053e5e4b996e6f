"""What Keras 2 took and Keras 3 refuses or ignores: against the Keras that is installed."""

import json

import pytest

from jaxtribute._src.addons.compat.catalog import keras2
from jaxtribute._src.addons.compat.catalog.keras import keras_problem
from jaxtribute._src.addons.compat.migrate.scan import scan
from processes import run_python

TF = "import jaxtribute.compat.tf as tf\n"


def left(code: str, imports: str = TF) -> dict[str, str]:
    return {finding.name: finding.advice for finding in scan(imports + code).left()}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ('tf.keras.callbacks.ModelCheckpoint("a.keras", period=3)', "tf.keras.callbacks.ModelCheckpoint(period=)"),
        ("tf.optimizers.SGD(0.1, decay=1e-6)", "tf.keras.optimizers.SGD(decay=)"),
        ("tf.keras.layers.LSTM(3, time_major=True)", "tf.keras.layers.LSTM(time_major=)"),
        ("tf.keras.layers.Dense(3, weights=[w])", "tf.keras.layers.Dense(weights=)"),
        ("tf.keras.layers.BatchNormalization(fused=True)", "tf.keras.layers.BatchNormalization(fused=)"),
        ("tf.keras.layers.LSTM(3, batch_input_shape=(1, 2, 3))", "tf.keras.layers.LSTM(batch_input_shape=)"),
        ("tf.keras.Input((3,), ragged=True)", "tf.keras.Input(ragged=)"),
        ('tf.keras.utils.image_dataset_from_directory("d")', "tf.keras.utils.image_dataset_from_directory"),
        (
            "tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.AUTO)",
            "tf.keras.losses.Reduction.AUTO",
        ),
        ("model.fit(x, workers=4)", "fit(workers=)"),
        ("model.compile(loss, sample_weight_mode='temporal')", "compile(sample_weight_mode=)"),
        ("self.add_weight('w', (3,))", "add_weight(name)"),
        ("self.add_weight(name='w', shape=(3,), partitioner=p)", "add_weight(partitioner=)"),
        ("model.predict_classes(x)", ".predict_classes"),
        ("self.compiled_loss(y, p)", ".compiled_loss"),
        ("optimizer.minimize(loss, variables)", ".minimize of an optimizer"),
        ("o = tf.keras.optimizers.SGD()\no.weights", ".weights of an optimizer"),
        ("self.optimizer.get_weights()", ".get_weights of an optimizer"),
        ("dataset.make_one_shot_iterator()", ".make_one_shot_iterator"),
        ("from tensorflow.keras import backend as K\nK.mean(x)", "tf.keras.backend.mean"),
        ("tf.keras.layers.ThresholdedReLU()", "tf.keras.layers.ThresholdedReLU"),
        ("tf.keras.layers.Hashing(3)", "tf.keras.layers.Hashing"),
        ("tf.keras.utils.split_dataset(d, 0.5)", "tf.keras.utils.split_dataset"),
    ],
)
def test_what_keras_3_does_not_take_is_left(code: str, name: str) -> None:
    assert name in left(code)
    assert left(code)[name]


@pytest.mark.parametrize(
    "code",
    [
        'tf.keras.callbacks.ModelCheckpoint("a.keras", save_freq=3)',
        "tf.keras.optimizers.Adam(learning_rate=0.1, clipnorm=1.0, name='a')",
        "tf.keras.layers.Dense(3, input_shape=(2,), dtype='float32', name='d', kernel_regularizer=None)",
        "tf.keras.layers.Embedding(3, 2, weights=[w], input_length=4)",
        "tf.keras.layers.BatchNormalization(momentum=0.9, synchronized=True)",
        "tf.keras.layers.Input(shape=(3,), batch_size=2, dtype='int32')",
        "tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)",
        "tf.keras.metrics.Mean(name='m', dtype='float32')",
        "tf.keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3))",
        "tf.keras.Model(inputs=i, outputs=o, name='m')",
        "tf.keras.utils.image_dataset_from_directory('d', format='grain')",
        "tf.keras.layers.TextVectorization(max_tokens=3)",
        "tf.keras.backend.clear_session()",
        "tf.keras.backend.floatx()",
        "optimizer.learning_rate\nargs.lr\nself.lr",
        "scipy.optimize.minimize(f)\nlayer.get_weights()",
        "model.fit(x, epochs=2, steps_per_epoch=3)\nmodel.compile(loss, weighted_metrics=[])",
        "self.add_weight(name='w', shape=(3,))\nself.add_weight((3,))",
    ],
)
def test_what_it_takes_is_not(code: str) -> None:
    assert left(code) == {}


PACKAGE = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n'


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import keras\nkeras.layers.TextVectorization()", "keras.layers.TextVectorization"),
        ("from keras import layers\nlayers.StringLookup()", "keras.layers.StringLookup"),
        ("from keras.layers import Hashing", "keras.layers.Hashing"),
        ("from keras.preprocessing.text import Tokenizer", "keras.preprocessing.text.Tokenizer"),
        ("import keras\nkeras.preprocessing.text.Tokenizer()", "keras.preprocessing.text.Tokenizer"),
        ("import keras.backend as K\nK.sum(x)", "keras.backend.sum"),
        ("from keras.layers.core import Dense", "keras.layers.core.Dense"),
        ("from keras.src import backend", "keras.src.backend"),
        (
            "import keras as k\nk.callbacks.ModelCheckpoint('a.keras', period=1)",
            "tf.keras.callbacks.ModelCheckpoint(period=)",
        ),
    ],
)
def test_the_package_itself_is_read_too(code: str, name: str) -> None:
    assert name in left(code, PACKAGE)


def test_the_packages_own_lines_stay() -> None:
    code = "import keras\nfrom keras import layers, ops\nm = keras.Sequential([layers.Dense(1)])\nops.sum(1)\n"
    assert left(code, PACKAGE) == {}
    assert scan(PACKAGE + code).rewritten() == PACKAGE + code


def test_what_is_advised_for_keras_2s_backend_exists_and_needs_no_tensorflow() -> None:
    for advice in keras2.BACKEND.values():
        for word in advice.replace("(", " ").replace(",", " ").split():
            if word.startswith("tf.keras."):
                assert keras_problem(word) == "", word


CALLS = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "jax"
import numpy as np
import jaxtribute.compat.tf as tf

K, L, x = tf.keras, tf.keras.layers, np.ones((2, 3), np.float32)
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        eval(name)
        failed[name] = ""
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


@pytest.mark.slow
def test_what_is_told_to_need_tensorflow_does() -> None:
    """Each of them fails, so that nothing is taken from programs that works; and their replacements do not."""
    needs = ["K.backend.sum(x)", "K.backend.eval(x)", "L.Hashing(3)(x)", "K.utils.split_dataset(x, 0.5)"]
    needs += ["L.ThresholdedReLU(0.5)(x)", "L.LSTM(2, time_major=True)"]
    needs += ["L.Dense(1, weights=[x])", "K.optimizers.Adam(lr=1)", "K.callbacks.ModelCheckpoint('a.keras', period=1)"]
    needs += ["K.Input((3,), ragged=True)", "K.losses.MeanSquaredError(reduction=K.losses.Reduction.AUTO)"]
    works = [
        "K.ops.sum(x)",
        "L.Discretization(num_bins=2).adapt(x)",
        "L.TextVectorization(vocabulary=['a'])(['a'])",
        "K.backend.clear_session()",
    ]
    code = CALLS.replace("sys.argv[1]", repr(json.dumps(needs + works)))
    failed = json.loads(run_python(code).strip().split("\n")[-1])
    assert [name for name in needs if not failed[name]] == []
    assert [failed[name] for name in works] == [""] * len(works)
