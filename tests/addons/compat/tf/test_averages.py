"""Moving averages of variables: the numbers are those of TensorFlow 2.21, and of NumPy."""

from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentTypeError

STRATEGIES = [
    jd.get_strategy,
    lambda: jd.OneDeviceStrategy("CPU:0"),
    lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"]),
    lambda: jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    lambda: jd.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
]


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize("where", ["cross", "replica", "compiled"])
@pytest.mark.parametrize(("updates", "expected"), [(None, [10.1, 10.29]), (3, [10.692307, 11.597633])])
def test_averages_follow_their_variables(make: Any, where: str, updates: int | None, expected: list[float]) -> None:
    strategy = make()
    with strategy.scope():
        variable = tf.Variable([10.0, 20.0], aggregation=tf.VariableAggregation.MEAN)
        averages = tf.train.ExponentialMovingAverage(0.9, num_updates=updates)
        averages.apply([variable])

    def step() -> None:
        variable.assign_add(tf.ones([2]))
        averages.apply([variable])

    def run() -> None:
        strategy.run(step)

    average = averages.average(variable)
    assert average is not None
    assert average.numpy().tolist() == [10.0, 20.0]
    with strategy.scope():
        one = {"cross": step, "replica": run, "compiled": tf.function(run)}[where]
        for value in expected:
            one()
            np.testing.assert_allclose(average.numpy(), [value, value + 10], rtol=1e-6)
    assert not average.trainable


def test_averages_are_made_in_a_replicas_function() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable([1.0], aggregation=tf.VariableAggregation.MEAN)
        averages = tf.train.ExponentialMovingAverage(0.8)

        def step() -> Any:
            averages.apply([variable])
            variable.assign_sub([0.5])
            averages.apply([variable])
            average = averages.average(variable)
            assert average is not None
            return average.read_value()

        found = strategy.run(step)
    np.testing.assert_allclose(strategy.experimental_local_results(found), [[0.9], [0.9]], rtol=1e-6)


def test_a_variable_that_differs_on_the_replicas_is_averaged_by_their_mean() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = jd.Variable(0.0, synchronization="on_read", aggregation="mean", trainable=False)
        averages = tf.train.ExponentialMovingAverage(0.5)
        averages.apply([variable])

    def step() -> None:
        replica = jd.get_replica_context()
        assert replica is not None
        variable.assign(4.0 * tf.cast(replica.replica_id_in_sync_group, tf.float32))
        averages.apply([variable])

    strategy.run(step)
    average = averages.average(variable)
    assert average is not None
    assert average.numpy() == 1.0


def test_names() -> None:
    averages = tf.train.ExponentialMovingAverage(0.5, name="shadow")
    variable, other = tf.Variable(1.0, name="w"), tf.Variable(1.0, name="o")
    assert averages.average(variable) is None
    averages.apply([variable])
    averages.apply([variable])
    average = averages.average(variable)
    assert average is not None
    assert (averages.name, average.name, averages.average_name(other)) == ("shadow", "w/shadow:0", "o/shadow")
    assert averages.variables_to_restore() == {"w/shadow": variable}
    assert list(averages.variables_to_restore([variable, other])) == ["w/shadow", "o/shadow"]
    averages.apply()


@pytest.mark.parametrize(("wrong", "message"), [(tf.Variable(1), "holds int32"), (np.ones(2), "not ndarray")])
def test_what_cannot_be_averaged_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        tf.train.ExponentialMovingAverage(0.5).apply([wrong])
