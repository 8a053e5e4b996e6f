"""`tf.Variable` is a `jd.Variable` with TensorFlow's types and arguments."""

from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentError


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.0, "float32"), (1, "int32"), ([1.0, 2.0], "float32"), (True, "bool"), (lambda: 2.0, "float32")],
)
def test_types_of_python_numbers(value: Any, dtype: str) -> None:
    assert tf.Variable(value).dtype == dtype


def test_type_can_be_given() -> None:
    assert tf.Variable(1, dtype=tf.float32).dtype == np.float32


def test_is_a_variable_of_this_library() -> None:
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variable = tf.Variable([1.0, 2.0], name="v", trainable=False)
    assert type(variable) is jd.Variable
    assert isinstance(variable, tf.Variable)
    assert not isinstance(1.0, tf.Variable)
    assert issubclass(jd.Variable, tf.Variable)
    assert tf.Variable.assign is jd.Variable.assign
    assert variable.name == "v:0"
    assert not variable.trainable
    assert len(variable.values) == 2


def test_is_a_value_to_jax() -> None:
    assert jax.tree.map(lambda leaf: leaf * 2, {"a": tf.Variable(2.0)}) == {"a": 4.0}


def test_another_variable_is_a_value() -> None:
    assert tf.Variable(tf.Variable([1, 2])).numpy().tolist() == [1, 2]


def test_aggregation_and_synchronization() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    strategy.run(lambda: total.assign_add(1.0))
    assert float(total.read_value()) == 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"validate_shape": False},
        {"constraint": abs},
        {"variable_def": object()},
        {"initial_value": None},
        {"shape": (3,)},
    ],
)
def test_what_is_not_supported_is_an_error(options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"initial_value": [1.0, 2.0], **options}
    with pytest.raises(ArgumentError, match="HINT"):
        tf.Variable(**arguments)


def test_the_right_shape_is_accepted() -> None:
    assert tf.Variable([1.0, 2.0], shape=[2]).shape == (2,)
