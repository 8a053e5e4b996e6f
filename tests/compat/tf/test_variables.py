"""`tf.Variable` is a `jd.Variable` with TensorFlow's types and arguments."""

from typing import Any

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
    assert isinstance(variable, jd.Variable)
    assert variable.name == "v:0"
    assert not variable.trainable
    assert len(variable.values) == 2


def test_assigning_takes_tensorflows_arguments_and_returns_the_variable() -> None:
    variable = tf.Variable(1.0)
    assert variable.assign(2.0, use_locking=True, name="a", read_value=False) is variable
    assert variable.assign_add(delta=3.0) is variable
    assert variable.assign_sub(delta=1.0, read_value=True) is variable
    assert float(variable.value()) == 4.0


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
    with pytest.raises(ArgumentError, match="HINT"):
        tf.Variable(**{"initial_value": [1.0, 2.0], **options})


def test_the_right_shape_is_accepted() -> None:
    assert tf.Variable([1.0, 2.0], shape=[2]).shape == (2,)
