"""Writes what `tf.nn`'s distributed losses give, as `losses.json` beside this file.

Made with tensorflow-cpu 2.21 in an environment of its own:

    python tests/oracle/record_losses.py
"""

import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # type: ignore[import-not-found]

EXAMPLES = [[1.0, 2.0, 4.0], [[1.0, 2.0], [3.0, 5.0]], [3.0], [], [[[1.0], [2.0]], [[3.0], [4.0]]], 2.0]
WEIGHTS = [None, 2.0, [1.0, 3.0], [0.0, 1.0, 2.0], [[1.0], [2.0]], [[1.0, 0.0], [2.0, 1.0]], [[1.0], [2.0], [3.0]]]
SIZES = (None, 8, 0)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # noqa: BLE001
        return {"error": type(error).__name__}


def rows() -> Iterator[list[Any]]:
    """Function, replicas, losses, weights, global batch size, and the first replica's result."""
    for replicas in (1, 2, 4):
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])

        def first(fn: Callable[[], Any], strategy: Any = strategy) -> Any:
            return outcome(lambda: float(strategy.experimental_local_results(strategy.run(fn))[0].numpy()))

        for loss in EXAMPLES:
            array = tf.constant(loss, tf.float32)
            for weight, size in itertools.product(WEIGHTS, SIZES):
                given = None if weight is None else tf.constant(weight)
                shown = first(lambda a=array, w=given, n=size: tf.nn.compute_average_loss(a, w, n))
                yield ["average", replicas, loss, weight, size, shown]
            shown = first(lambda array=array: tf.nn.scale_regularization_loss(array))
            yield ["regularization", replicas, loss, None, None, shown]
    for size in (-1, 2.5, [3]):
        shown = outcome(lambda size=size: tf.nn.compute_average_loss(tf.constant([1.0, 2.0]), None, size).numpy())
        yield ["average", 1, [1.0, 2.0], None, size, shown]


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    lines = ",\n".join(json.dumps(row) for row in rows())
    pathlib.Path(__file__).with_name("losses.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
