"""Records how TensorFlow 2.21 cuts batches, as `tf_tables.json` beside this file.

python tests/core/input/make_tf_tables.py        (a Python that has TensorFlow)
"""

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

tf: Any = importlib.import_module("tensorflow")
distribute: Any = importlib.import_module("tensorflow.python.data.experimental.ops.distribute")
input_ops: Any = importlib.import_module("tensorflow.python.distribute.input_ops")

REPLICAS = (2, 3, 4)


def strategy(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def per_replica(strategy: Any, element: Any) -> list[Any]:
    return [part.numpy().tolist() for part in strategy.experimental_local_results(element)]


def mirrored() -> list[dict[str, Any]]:
    """Elements of `experimental_distribute_dataset(range(examples).batch(batch))`."""
    rows: list[dict[str, Any]] = []
    for replicas in REPLICAS:
        for examples, batch, drop in [(13, 5, False), (12, 4, False), (9, 4, False), (7, 8, False), (13, 5, True)]:
            dataset = tf.data.Dataset.range(examples).batch(batch, drop_remainder=drop)
            chosen = strategy(replicas)
            distributed = chosen.experimental_distribute_dataset(dataset)
            elements = [per_replica(chosen, element) for element in distributed]
            spec = [
                shape if shape is None else int(shape) for shape in (distributed.element_spec._value_specs[0].shape)
            ]
            rows.append(
                {
                    "replicas": replicas,
                    "examples": examples,
                    "batch": batch,
                    "drop": drop,
                    "spec": spec,
                    "elements": elements,
                }
            )
    return rows


def from_function() -> list[dict[str, Any]]:
    """Elements of `distribute_datasets_from_function` over `range(examples).batch(batch)`."""
    rows: list[dict[str, Any]] = []
    for replicas in REPLICAS:
        for examples, batch, drop in [(12, 2, False), (7, 2, False), (9, 2, True)]:
            chosen = strategy(replicas)
            distributed = chosen.distribute_datasets_from_function(
                lambda _, e=examples, b=batch, d=drop: tf.data.Dataset.range(e).batch(b, drop_remainder=d)
            )
            elements = [per_replica(chosen, element) for element in distributed]
            rows.append(
                {"replicas": replicas, "examples": examples, "batch": batch, "drop": drop, "elements": elements}
            )
    return rows


def sharded(dataset: Any, workers: int, worker: int, replicas: int, policy: str) -> list[list[int]]:
    """One worker's slices, as the multi-worker strategy makes them."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    dataset = dataset.with_options(options)
    sizes = distribute.batch_sizes_for_worker(
        distribute.compute_batch_size(dataset), workers, replicas // workers, worker
    )
    dataset = dataset.rebatch(sizes).prefetch(replicas // workers)
    dataset = input_ops.auto_shard_dataset(dataset, workers, worker, replicas)
    return [element.numpy().tolist() for element in dataset]


def over_workers() -> list[dict[str, Any]]:
    """Slices of each worker under DATA, and under FILE for files of ten and six records."""
    rows: list[dict[str, Any]] = []
    for workers, replicas, batch in [(2, 2, 4), (2, 4, 8), (2, 4, 5), (2, 4, 7)]:
        data = [
            sharded(tf.data.Dataset.range(19).batch(batch), workers, worker, replicas, "DATA")
            for worker in range(workers)
        ]
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/{number}" for number in range(2)]
            for number, count in enumerate((10, 6)):
                with tf.io.TFRecordWriter(files[number]) as writer:
                    for record in range(count):
                        writer.write(str(10 * number + record).encode())
            reader = tf.data.TFRecordDataset(files).map(tf.strings.to_number).batch(batch)
            file = [sharded(reader, workers, worker, replicas, "FILE") for worker in range(workers)]
        file = [[[int(row) for row in part] for part in worker] for worker in file]
        rows.append({"workers": workers, "replicas": replicas, "batch": batch, "data": data, "file": file})
    return rows


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * max(REPLICAS))
    tables = {
        "tensorflow": tf.__version__,
        "mirrored": mirrored(),
        "from_function": from_function(),
        "over_workers": over_workers(),
    }
    path = Path(__file__).with_name("tf_tables.json")
    path.write_text("{\n" + ",\n".join(f'"{key}": {_lines(value)}' for key, value in tables.items()) + "\n}\n")


def _lines(value: Any) -> str:
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


if __name__ == "__main__":
    main()
