"""What `lockstep.py` measures, in TensorFlow; run by a Python that has it. Prints JSON."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # type: ignore[import-not-found]


def milliseconds_a_call(call: Callable[[], Any], seconds: float) -> float:
    for _ in range(20):
        call()
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(20):
            call()
        rounds.append((time.perf_counter() - start) / 20)
    return 1e3 * statistics.median(rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * arguments.replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(arguments.replicas)])
    value = strategy.experimental_distribute_values_from_function(
        lambda c: tf.fill([8], tf.cast(c.replica_id_in_sync_group, tf.float32))
    )

    def small(x: Any) -> Any:
        return x * 2.0 + 1.0

    def reduced(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", x * 2.0)

    figures = {
        "run": milliseconds_a_call(lambda: strategy.run(small, (value,)), arguments.seconds),
        "run with all_reduce": milliseconds_a_call(lambda: strategy.run(reduced, (value,)), arguments.seconds),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
