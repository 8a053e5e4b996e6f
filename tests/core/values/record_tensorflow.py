"""Writes what TensorFlow's variables hold after each write of `tensorflow_writes.CASES`, as JSON.

The suite compares with what is recorded and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment
of its own:

    python tests/core/values/record_tensorflow.py
"""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow_writes import CASES, START, Case, write


def ran(strategy: Any, case: Case) -> Any:
    """The copies and the value that is read afterwards, or the kind of error."""

    def rows(values: Any, indices: Any) -> Any:
        return tf.IndexedSlices(values, indices, tf.constant([len(START)]))

    def array(values: list[Any], dtype: str) -> Any:
        return tf.cast(tf.stack(values), dtype)

    def replica() -> None:
        write(case, variable, tf.distribute.get_replica_context().replica_id_in_sync_group, array, rows)

    try:
        with strategy.scope():
            variable = tf.Variable(
                array(START, case.dtype),
                synchronization=tf.VariableSynchronization[case.synchronization],
                aggregation=tf.VariableAggregation[case.aggregation],
            )
        if case.place == "replica":
            tf.function(lambda: strategy.run(replica))()
        else:
            write(case, variable, 0, array, rows)
        copies = [copy.numpy().tolist() for copy in strategy.experimental_local_results(variable)]
    except Exception as error:  # noqa: BLE001  # its kind is what is recorded
        kinds = (NotImplementedError, TypeError, ValueError)
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), "Exception")
    try:
        return [copies, variable.read_value().numpy().tolist()]
    except ValueError:
        return [copies, "ValueError"]


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    lines = [f" {json.dumps(name)}: {json.dumps(ran(strategy, case))}" for name, case in CASES.items()]
    Path(__file__).with_name("tensorflow.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
