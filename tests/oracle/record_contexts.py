"""Writes what TensorFlow reads from a variable in each context after it was written in one, as JSON beside this file.

    python tests/oracle/record_contexts.py

Made with tensorflow-cpu 2.21 in an environment of its own; see `record.py`.
"""

import itertools
import json
import os
import pathlib
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # type: ignore[import-not-found]

HERE = pathlib.Path(__file__).parent
STRATEGIES = {
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
}


def shown(strategy: Any, value: Any) -> list[float]:
    return [float(part) for part in strategy.experimental_local_results(value)]


def attempt(action: Any) -> Any:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 (what fails is a row of the table)
        return {"error": type(error).__name__}


def own() -> Any:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32) + 1.0


def write(strategy: Any, v: Any, where: str) -> None:
    def merged(strategy: Any, x: Any) -> None:
        total = strategy.reduce("SUM", x, axis=None)
        strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(total,))

    if where == "replica":
        strategy.run(lambda: (v.assign_add(own()), None)[1])
    elif where == "merge":
        strategy.run(lambda: (tf.distribute.get_replica_context().merge_call(merged, args=(own(),)), None)[1])
    else:
        with strategy.scope():
            v.assign(4.0)


def read(strategy: Any, v: Any, place: str) -> Any:
    if place == "replica":
        return strategy.run(lambda: v.read_value() * 1.0)
    if place == "merge":

        def at_once(_: Any) -> Any:
            return v.read_value() * 1.0

        return strategy.run(lambda: tf.distribute.get_replica_context().merge_call(at_once))
    with strategy.scope():
        return v.read_value() * 1.0


def case(strategy: Any, sync: str, aggregation: str, where: str, compiled: bool) -> Any:
    def make() -> Any:
        with strategy.scope():
            return tf.Variable(
                1.0,
                synchronization=tf.VariableSynchronization[sync],
                aggregation=tf.VariableAggregation[aggregation],
            )

    v = attempt(make)
    if isinstance(v, dict):
        return v

    def call(fn: Any, *args: Any) -> Any:
        def bound() -> Any:
            return fn(strategy, v, *args)

        return tf.function(bound)() if compiled else bound()

    failure = attempt(lambda: call(write, where))
    if failure:
        return failure
    return {place: attempt(lambda p=place: shown(strategy, call(read, p))) for place in ("replica", "merge", "cross")}


def main() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies = {name: make() for name, make in STRATEGIES.items()}
    rows = [
        [name, sync, aggregation, where, compiled, case(strategies[name], sync, aggregation, where, compiled)]
        for name, sync, aggregation, where, compiled in itertools.product(
            STRATEGIES,
            ("AUTO", "NONE", "ON_WRITE", "ON_READ"),
            ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"),
            ("replica", "merge", "cross"),
            (False, True),
        )
    ]
    (HERE / "contexts.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
