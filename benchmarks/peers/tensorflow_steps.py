"""The same training step by TensorFlow's `tf.distribute`; run by an interpreter that has it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import serve
from benchmarks.peers.arguments import Asked, Step, parse, timed
from benchmarks.problems import LEARNING_RATE, MOMENTUM, Problem

tf: Any = importlib.import_module("tensorflow")
CALL = 16


class Operations:
    """Of TensorFlow."""

    relu, softmax, log_softmax = map(staticmethod, (tf.nn.relu, tf.nn.softmax, tf.nn.log_softmax))
    tanh, sqrt, reshape, transpose, sum = map(staticmethod, (tf.tanh, tf.sqrt, tf.reshape, tf.transpose, tf.reduce_sum))

    def mean_last(self, x: Any) -> Any:
        return tf.reduce_mean(x, -1, keepdims=True)

    def as_float(self, x: Any) -> Any:
        return tf.cast(x, tf.float32)

    def pick(self, rows: Any, columns: Any) -> Any:
        return tf.gather(rows, columns, batch_dims=1)

    def conv(self, x: Any, kernel: Any, stride: int) -> Any:
        return tf.nn.conv2d(x, kernel, stride, [[0, 0], [1, 1], [1, 1], [0, 0]])


OPS: Any = Operations()


def step_of(kind: str, problem: Problem, strategy: Any) -> Step:
    """`tensorflow`: one step a call; `tensorflow-16`: 16 of them in a `tf.function`."""
    with strategy.scope():
        variables = [tf.Variable(p) for p in problem.params]
        momenta = [tf.Variable(tf.zeros_like(p)) for p in problem.params]
    count = strategy.num_replicas_in_sync

    def values(index: int) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(problem.part(context.replica_id_in_sync_group, count)[index])
        )

    data = values(0), values(1)

    def replica_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = problem.loss(OPS, variables, x, y) / float(problem.batch)
        grads = tape.gradient(loss, variables)
        grads = tf.distribute.get_replica_context().all_reduce("SUM", grads)
        for variable, momentum, grad in zip(variables, momenta, grads, strict=True):
            # The replicas' values are equal: their local copies take them, with no further reduction.
            _local(momentum).assign(MOMENTUM * momentum + grad)
            _local(variable).assign_sub(LEARNING_RATE * momentum)
        return loss

    def one(data: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, data), axis=None)

    @tf.function(reduce_retracing=True)
    def step(data: Any) -> Any:
        return one(data)

    @tf.function(reduce_retracing=True)
    def several(data: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in tf.range(CALL):
            loss = one(data)
        return loss

    if kind == "tensorflow":
        return timed(lambda: step(data), lambda loss: float(loss.numpy()))

    def run(steps: int) -> tuple[float, float]:
        assert steps % CALL == 0, f"{steps} steps are no multiple of {CALL}"
        seconds, loss = timed(lambda: several(data), lambda loss: float(loss.numpy()))(steps // CALL)
        return seconds / CALL, loss

    return run


def _local(variable: Any) -> Any:
    """This replica's copy of a mirrored variable; a plain variable itself."""
    return variable._get_on_device_or_primary() if hasattr(variable, "_get_on_device_or_primary") else variable


def strategy_of(devices: int) -> Any:
    """The strategy for this process, with its logical devices made."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if "TF_CONFIG" in os.environ:
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if devices == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def contenders(asked: Asked) -> dict[str, Step]:
    """The steps that were asked for."""
    strategy = strategy_of(asked.devices)
    return {name: step_of(name, asked.problem, strategy) for name in asked.contenders}


def main(arguments: Sequence[str] = ()) -> None:
    """Serves them."""
    del arguments
    serve(contenders(parse()))


if __name__ == "__main__":
    main()
