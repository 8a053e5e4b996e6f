"""Writes what TensorFlow does with variables and reductions on logical CPU devices, as JSON beside this file.

The suite compares with the recorded tables and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an
environment of its own:

    python tests/oracle/record.py
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import itertools
import json
import multiprocessing
import os
import pathlib
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # type: ignore[import-not-found]

HERE = pathlib.Path(__file__).parent
SYNC = tf.VariableSynchronization
AGG = tf.VariableAggregation
UPDATES = ("assign", "assign_add", "assign_sub")


def replica_id() -> Any:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the outcome)
        return {"error": type(error).__name__}


def variable_case(strategy: Any, sync: str, agg: str, where: str, update: str, value: str) -> Any:
    with strategy.scope():
        v = tf.Variable(1.0, synchronization=SYNC[sync], aggregation=AGG[agg])

    def given() -> Any:
        return 2.0 if value == "number" else replica_id() + 1.0

    def write() -> None:
        if where == "replica":
            strategy.run(lambda: (getattr(v, update)(given()), None)[1])
        elif where == "update":

            def merged(strategy: Any, x: Any) -> None:
                x = strategy.reduce("SUM", x, axis=None) if value == "tensor" else x
                strategy.extended.update(v, lambda v, x: getattr(v, update)(x), args=(x,))

            strategy.run(lambda: tf.distribute.get_replica_context().merge_call(merged, args=(given(),)))
        else:
            with strategy.scope():
                each = strategy.run(given) if value == "tensor" else 2.0
                getattr(v, update)(each)

    failure = outcome(write)
    if failure:
        return failure
    return {
        "local": [float(x.numpy()) for x in strategy.experimental_local_results(v)],
        "read": outcome(lambda: float(v.read_value().numpy())),
    }


def variables() -> list[Any]:
    rows = []
    for replicas in (1, 2, 4):
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        for sync, agg, where, update, value in itertools.product(
            ("AUTO", "ON_WRITE", "ON_READ"),
            ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"),
            ("replica", "cross", "update"),
            UPDATES,
            ("number", "tensor"),
        ):
            result = variable_case(strategy, sync, agg, where, update, value)
            row = [replicas, sync, agg, where, update, value, result]
            rows.append(row)
    return rows


def reductions(replicas: int) -> list[Any]:
    """`Strategy.reduce` and `gather` of what replicas return; replica i holds the i-th list."""
    use_logical_devices()
    values = {
        "scalars": [1.0, 2.0, 4.0, 8.0],
        "ints": [1, 2, 3, 5],
        "vectors": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 9.0]],
        "matrices": [[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]], [[7.0, 8.0, 9.0]], [[1.0, 1.0, 2.0]]],
        "uneven": [[1.0, 2.0], [3.0, 4.0], [6.0], []],
    }
    rows = []
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for name, parts in values.items():
        dtype = tf.int32 if name == "ints" else tf.float32
        each = strategy.experimental_distribute_values_from_function(
            lambda c, parts=parts, dtype=dtype: tf.constant(parts[c.replica_id_in_sync_group], dtype)
        )
        for op, axis in itertools.product(("SUM", "MEAN"), (None, 0, 1, (0, 1), -1)):
            shown = outcome(lambda op=op, axis=axis, each=each: strategy.reduce(op, each, axis=axis).numpy().tolist())
            rows.append([replicas, parts[:replicas], op, axis, shown])
        for axis in (0, 1, -1):
            shown = outcome(lambda axis=axis, each=each: strategy.gather(each, axis=axis).numpy().tolist())
            rows.append([replicas, parts[:replicas], "GATHER", axis, shown])
    return rows


def use_logical_devices() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)


def main() -> None:
    # A process cannot run the collectives of two strategies of different size.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        table = [row for rows in pool.map(reductions, (2, 4), chunksize=1) for row in rows]
    use_logical_devices()
    for name, rows in (("variables", variables()), ("reductions", table)):
        lines = ",\n".join(json.dumps(row) for row in rows)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
