"""TensorFlow's side of `benchmarks.input`: run by an interpreter that has TensorFlow."""

import importlib
from collections.abc import Iterable
from typing import Any

from benchmarks.harness import serve
from benchmarks.input import BATCH, REPLICAS, arrays, epoch

SHUFFLE_BUFFER = 10_000


def main() -> None:
    """Serves `arrays`: an epoch of `experimental_distribute_dataset` over arrays in memory."""
    tf: Any = importlib.import_module("tensorflow")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(REPLICAS)])
    dataset = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(SHUFFLE_BUFFER).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(dataset)

    def replicas(element: Any) -> Iterable[tuple[Any, Any]]:
        return zip(*(strategy.experimental_local_results(part) for part in element), strict=True)

    serve({"arrays": lambda _: epoch(distributed, replicas)})


if __name__ == "__main__":
    main()
