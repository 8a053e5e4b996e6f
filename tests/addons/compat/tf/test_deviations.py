"""What stays different from TensorFlow 2.21, as the guide tells it: strategies and checkpoints through `compat.tf`."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute.compat.tf as tf
from jaxtribute.errors import AggregationError, ArgumentError, ContextError, DeviceError, InputError, VariableError

distribute: Any = tf.distribute
DEVICES = ["CPU:0", "CPU:1"]


def mirrored() -> Any:
    return distribute.MirroredStrategy(DEVICES)


def central() -> Any:
    return distribute.experimental.CentralStorageStrategy(DEVICES, "CPU:0")


def replica() -> Any:
    return distribute.get_replica_context().replica_id_in_sync_group


@pytest.mark.parametrize("make", [mirrored, central])
@pytest.mark.parametrize(
    ("aggregation", "expected"), [("SUM", [1, 2, 0]), ("MEAN", [0.5, 1, 0]), ("ONLY_FIRST_REPLICA", [1, 0, 0])]
)
def test_scatters_of_replicas_are_combined_by_the_aggregation(make: Any, aggregation: str, expected: Any) -> None:
    strategy = make()
    with strategy.scope():
        variable = tf.Variable([0.0, 0.0, 0.0], aggregation=tf.VariableAggregation[aggregation])
        without = tf.Variable([0.0, 0.0, 0.0])

    def scatter(into: Any) -> None:
        into.scatter_add(
            tf.IndexedSlices(tf.constant([1.0]) * tf.cast(replica() + 1, tf.float32), tf.reshape(replica(), [1]))
        )

    strategy.run(lambda: scatter(variable))
    assert variable.numpy().tolist() == expected
    with pytest.raises(AggregationError, match="HINT"):
        strategy.run(lambda: scatter(without))


def test_a_number_that_replicas_assign_to_a_sum_is_each_ones_value() -> None:
    strategy = central()
    with strategy.scope():
        total = tf.Variable(
            1.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    strategy.run(lambda: total.assign(3.0))
    assert float(total) == 6.0


def test_of_the_position_of_a_dataset_the_distributed_iterator_is_saved(tmp_path: Path) -> None:
    dataset = tf.data.Dataset.range(6).batch(1)
    with pytest.raises(TypeError, match="distributed iterators"):
        tf.train.Checkpoint(it=iter(dataset)).save(tmp_path / "ckpt")
    iterator = iter(distribute.get_strategy().experimental_distribute_dataset(dataset))
    assert int(next(iterator)[0]) == 0
    path = tf.train.Checkpoint(it=iterator).save(tmp_path / "ckpt")
    again = iter(distribute.get_strategy().experimental_distribute_dataset(dataset))
    tf.train.Checkpoint(it=again).restore(path)
    assert int(next(again)[0]) == 1


def test_update_non_slot_calls_once_and_the_default_strategy_chooses_no_devices() -> None:
    strategy, calls = mirrored(), list[int]()
    with strategy.scope():
        variable = tf.Variable(1.0)
    strategy.extended.update_non_slot(strategy.extended.non_slot_devices([variable]), lambda: calls.append(1))
    assert calls == [1]
    with pytest.raises(ContextError, match="HINT"):
        distribute.get_strategy().extended.non_slot_devices([tf.Variable(1.0)])


def test_other_classes_of_errors() -> None:
    with pytest.raises(DeviceError, match="HINT"):
        distribute.MirroredStrategy(["CPU:0", "CPU:0"])
    strategy = mirrored()
    with strategy.scope():
        total = tf.Variable(
            [1.0], synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )
    with pytest.raises(VariableError, match="HINT"), strategy.scope():
        total.scatter_add(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])))


def test_more_is_refused() -> None:
    strategy = mirrored()
    with strategy.scope():
        variable = tf.Variable(1.0)
    empty = strategy.experimental_distribute_dataset(tf.data.Dataset.range(0).batch(2))
    options = distribute.InputOptions(experimental_place_dataset_on_device=True, experimental_fetch_to_device=False)
    refused: list[tuple[type[Exception], Any]] = [
        (InputError, lambda: empty.element_spec),
        (ArgumentError, lambda: tf.nn.compute_average_loss([1, 2], global_batch_size=4)),
        (ArgumentError, lambda: distribute.InputContext(2, 5, 6)),
        (ValueError, lambda: tf.train.ClusterSpec({"worker": {-1: "a:1"}})),
        (ArgumentError, lambda: distribute.experimental.partitioners.MaxSizePartitioner(4, 0)),
        (ArgumentError, lambda: distribute.experimental.partitioners.FixedShardsPartitioner(0)),
        (VariableError, lambda: strategy.run(lambda: copy.copy(variable))),
        (InputError, lambda: list(strategy.distribute_datasets_from_function(lambda _: unbatched()))),
        (InputError, lambda: strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2), options)),
    ]
    for error, call in refused:
        with pytest.raises(error, match="HINT"):
            call()


def unbatched() -> Any:
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((3, 2), "float32"), np.arange(3.0)))
    return rows.map(lambda row, number: (row, number))


def test_texts_and_an_axis_in_a_list() -> None:
    assert str(distribute.InputContext(2, 1, 6)).startswith("jaxtribute.")
    assert distribute.cluster_resolver.TFConfigClusterResolver().environment == ""
    strategy = mirrored()
    assert float(strategy.reduce("SUM", strategy.run(lambda: tf.constant([1.0, 2.0])), axis=[0])) == 6.0
