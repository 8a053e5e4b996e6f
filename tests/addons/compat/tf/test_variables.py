"""`tf.Variable` is a `jd.Variable` with TensorFlow's types and arguments."""

import copy
import operator
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


_STRATEGIES = {
    "default": jd.get_strategy,
    "one": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
@pytest.mark.parametrize("place", ["cross-replica", "replica", "compiled"])
@pytest.mark.parametrize("make", _STRATEGIES.values(), ids=_STRATEGIES.keys())
@pytest.mark.parametrize(
    ("in_place", "instead"),
    [
        (operator.iadd, r"variable\.assign_add\(x\)"),
        (operator.isub, r"variable\.assign_sub\(x\)"),
        (operator.imul, r"variable\.assign\(variable \* x\)"),
        (operator.itruediv, r"variable\.assign\(variable / x\)"),
        (operator.ipow, r"variable\.assign\(variable \*\* x\)"),
    ],
)
def test_no_operator_in_place_gives_the_name_to_an_array(
    in_place: Any, instead: str, make: Any, place: str, synchronization: str
) -> None:
    strategy = make()
    with strategy.scope():
        variable = tf.Variable(
            2.0,
            synchronization=tf.VariableSynchronization[synchronization],
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def step() -> Any:
        return in_place(variable, 3.0)

    run = {
        "cross-replica": step,
        "replica": lambda: strategy.run(step),
        "compiled": tf.function(lambda: strategy.run(step)),
    }[place]
    with pytest.raises(RuntimeError, match=instead):
        run()
    with pytest.raises(RuntimeError, match="HINT"):
        in_place(copy.deepcopy(variable), 3.0)


@pytest.mark.parametrize("in_place", [operator.ifloordiv, operator.imod, operator.imatmul])
def test_operators_in_place_that_tensorflow_has_are_those_without_it(in_place: Any) -> None:
    result = in_place(tf.Variable([[3.0]]), tf.constant([[2.0]]))
    assert np.asarray(result) == in_place(np.full((1, 1), 3.0, np.float32), np.full((1, 1), 2.0, np.float32))


def test_in_place_on_variables_of_the_library_and_on_arrays_is_as_before() -> None:
    variable = jd.Variable(2.0)
    total = tf.constant(1.0)
    total += tf.Variable(2.0)
    assert float(operator.iadd(variable, 3.0)) == 5.0
    assert float(operator.ipow(variable, 3.0)) == 8.0
    assert float(total) == 3.0
    with pytest.raises(TypeError):
        operator.iadd(variable, object())


def test_what_is_added_is_called_delta() -> None:
    variable = tf.Variable(1.0)
    assert float(variable.assign_add(delta=2.0)) == 3.0
    assert float(variable.assign_sub(delta=1.0)) == 2.0
    assert float(variable.assign(value=5.0)) == 5.0
