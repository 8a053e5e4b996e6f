"""Writes the public members of TensorFlow's objects, as JSON, for the test beside this file.

Made with tensorflow-cpu 2.21 in an environment of its own:

    python tests/addons/compat/tf/record_members.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]


def objects(folder: str) -> dict[str, Any]:
    """An object, or several, for each name."""
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    dataset = tf.data.Dataset.range(4).batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        mirrored = tf.Variable(tf.ones([1]))
    function, checkpoint = tf.function(lambda x: x), tf.train.Checkpoint()
    return {
        "tf.function": (function, function.get_concrete_function(tf.constant(1.0))),
        "tf.Variable": (tf.Variable(tf.ones([1])), mirrored),
        "tf.Tensor": tf.constant(1.0),
        "tf.GradientTape": tf.GradientTape(),
        "tf.data.Dataset": dataset,
        "tf.data.Iterator": iter(dataset),
        "tf.data.NumpyIterator": dataset.as_numpy_iterator(),
        "tf.data.Options": tf.data.Options(),
        "tf.experimental.Optional": iter(dataset).get_next_as_optional(),
        "tf.Module": tf.Module(),
        "tf.train.Checkpoint": checkpoint,
        "tf.train.CheckpointManager": tf.train.CheckpointManager(checkpoint, folder, 1),
        "tf.train.RestoreStatus": checkpoint.restore(None),
        "tf.train.ExponentialMovingAverage": tf.train.ExponentialMovingAverage(0.9),
        "tf.train.ClusterSpec": tf.train.ClusterSpec({}),
        "tf.TensorSpec": tf.TensorSpec([None]),
        "tf.TensorShape": tf.TensorShape([1]),
        "tf.DType": tf.float32,
        "tf.IndexedSlices": tf.IndexedSlices(tf.ones([1]), tf.constant([0])),
        "tf.errors.OpError": tf.errors.InvalidArgumentError(None, None, ""),
        "tf.config.PhysicalDevice": tf.config.list_physical_devices()[0],
        "tf.config.LogicalDevice": tf.config.list_logical_devices()[0],
        "tf.io.gfile.GFile": tf.io.gfile.GFile(__file__),
        "tf.io.TFRecordWriter": tf.io.TFRecordWriter(f"{folder}/records"),
        "tf.io.TFRecordOptions": tf.io.TFRecordOptions(),
        "tf.summary.SummaryWriter": tf.summary.create_file_writer(folder),
        "tf.distribute.DistributedDataset": distributed,
        "tf.distribute.DistributedIterator": iter(distributed),
        **{
            f"tf.distribute.{name}": getattr(tf.distribute, name)
            for name in ("DistributedValues", "InputContext", "InputOptions", "ReplicaContext", "Strategy")
        },
    }


def main() -> None:
    table: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for of, some in objects(folder).items():
            found = {name for one in (some if type(some) is tuple else (some,)) for name in dir(one)}
            table[of] = sorted(name for name in found if not name.startswith("_"))
    lines = ",\n".join(f"{json.dumps(of)}: {json.dumps(' '.join(names))}" for of, names in table.items())
    Path(__file__).with_name("members.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
