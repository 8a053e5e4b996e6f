"""Which part of TensorFlow an expression of a program is."""

import ast
import textwrap

import pytest

from jaxtribute._src.addons.compat.migrate.naming import Names


def name_of(expression: str, before: str = "", imports: str = "import tensorflow as tf") -> str | None:
    tree = ast.parse(f"{imports}\n{textwrap.dedent(before)}\n{expression}")
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    return Names(tree).of(last.value)


@pytest.mark.parametrize(
    ("imports", "expression", "name"),
    [
        ("import tensorflow as tf", "tf.data.Dataset", "tf.data.Dataset"),
        ("import tensorflow", "tensorflow.function", "tf.function"),
        ("import tensorflow.compat.v1 as tf", "tf.Session", "tf.compat.v1.Session"),
        ("import tensorflow.data", "tensorflow.data.Dataset", "tf.data.Dataset"),
        ("from tensorflow import distribute as d", "d.Strategy", "tf.distribute.Strategy"),
        ("from tensorflow.distribute import MirroredStrategy", "MirroredStrategy", "tf.distribute.MirroredStrategy"),
        ("from jaxtribute.compat import tf", "tf.nn.relu", "tf.nn.relu"),
        ("import jaxtribute.compat.tf as tf", "tf.nn.relu", "tf.nn.relu"),
        ("from jaxtribute.compat import v1", "v1.Strategy", "tf.compat.v1.distribute.Strategy"),
        ("import numpy as np", "np.zeros", None),
    ],
)
def test_imports(imports: str, expression: str, name: str | None) -> None:
    assert name_of(expression, imports=imports) == name


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("tf.data.Dataset.range(3)", "tf.data.Dataset"),
        ("tf.data.Dataset.range(3).batch(2).map", "tf.data.Dataset.map"),
        ("tf.data.TFRecordDataset('a').take", "tf.data.Dataset.take"),
        ("tf.data.Dataset.range(3).as_numpy_iterator()", None),
        ("tf.distribute.MirroredStrategy()", "tf.distribute.Strategy"),
        ("tf.distribute.experimental.CentralStorageStrategy().run", "tf.distribute.Strategy.run"),
        ("tf.compat.v1.distribute.OneDeviceStrategy('a').reduce", "tf.compat.v1.distribute.Strategy.reduce"),
        ("tf.distribute.get_strategy().scope", "tf.distribute.Strategy.scope"),
        ("tf.distribute.get_replica_context().merge_call", "tf.distribute.ReplicaContext.merge_call"),
        ("tf.distribute.MirroredStrategy().extended.update", "tf.distribute.StrategyExtended.update"),
        (
            "tf.distribute.InputOptions().experimental_fetch_to_device",
            "tf.distribute.InputOptions.experimental_fetch_to_device",
        ),
        ("tf.distribute.has_strategy()", None),
        ("tf.constant(1)", None),
        ("f(tf.constant)", None),
    ],
)
def test_calls(expression: str, name: str | None) -> None:
    assert name_of(expression) == name


@pytest.mark.parametrize(
    ("before", "expression", "name"),
    [
        ("strategy = tf.distribute.MirroredStrategy()", "strategy.run", "tf.distribute.Strategy.run"),
        ("d = tf.data.Dataset.range(3)\nd = d.batch(2)", "d.map", "tf.data.Dataset.map"),
        ("keras = tf.keras", "keras.Model", "tf.keras.Model"),
        ("with tf.device('a') as x: pass", "x", None),
        (
            "def f():\n    return s.scope()\ns = tf.distribute.MirroredStrategy()",
            "s.scope",
            "tf.distribute.Strategy.scope",
        ),
        (
            "s = tf.distribute.MirroredStrategy()\ndata = s.experimental_distribute_dataset(d)",
            "data.element_spec",
            "tf.distribute.DistributedDataset.element_spec",
        ),
        ("x = y = tf.data.Dataset.range(3)", "x", None),
    ],
)
def test_names_that_values_are_given(before: str, expression: str, name: str | None) -> None:
    assert name_of(expression, before) == name
