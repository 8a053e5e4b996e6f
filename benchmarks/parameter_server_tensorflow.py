"""TensorFlow's side of `benchmarks.parameter_server`: run by an interpreter that has TensorFlow."""

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import serve
from benchmarks.parameter_server import CHECKED_STEPS, LARGE, RATE, alternating, batch, first_values, timed


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def task(cluster: str, job: str, index: int) -> None:
    """Serves as a task of the cluster, until the process that started it has ended."""
    tf: Any = importlib.import_module("tensorflow")
    server = tf.distribute.Server(tf.train.ClusterSpec(json.loads(cluster)), job, index, protocol="grpc", start=True)
    sys.stdin.read()
    del server
    os._exit(0)


def sent_bytes() -> int:
    """Number of bytes that this machine has sent, to itself too."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.rpartition(":")[2].split()[8]) for line in lines)


def check_sent(call: Callable[[], Any], size: int) -> None:
    """Checks that a call, when it is repeated, sends at least `size` bytes each time."""
    call()
    before = sent_bytes()
    for _ in range(4):
        call()
    sent = (sent_bytes() - before) / 4
    assert sent >= size, f"a push sends {sent:.0f} bytes, not {size}"


def main() -> None:
    """Starts a server and two workers, or takes those that TF_CONFIG tells, and serves."""
    tasks: list[subprocess.Popen[bytes]] = []
    if "TF_CONFIG" in os.environ:
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    else:
        cluster = {"ps": [f"localhost:{free_port()}"], "worker": [f"localhost:{free_port()}" for _ in range(2)]}
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                command = [sys.executable, "-m", __spec__.name, json.dumps(cluster), job, str(index)]
                tasks.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    tf: Any = importlib.import_module("tensorflow")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(value) for value in first_values()]
        large = tf.Variable(np.zeros(LARGE, np.float32))
        small = tf.Variable(0.0)
    x, y = batch()

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            w1, b1, w2, b2, w3, b3 = variables
            hidden = tf.nn.relu(x @ w1 + b1)
            logits = tf.nn.relu(hidden @ w2 + b2) @ w3 + b3
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function
    def trivial() -> Any:
        return 1

    def losses(count: int) -> tuple[float, float]:
        del count
        return 0.0, [float(coordinator.schedule(step).fetch()) for _ in range(CHECKED_STEPS)][-1]

    delta = tf.ones(LARGE)

    def push() -> None:
        # A tensor that was sent before stays on the server and is not sent again; a training step's is always new.
        large.assign_add(tf.identity(delta))  # returns before it is done; the server does one thing after the other
        small.assign_add(1.0).numpy()

    check_sent(push, 4 * LARGE)

    def close(count: int) -> tuple[float, float]:
        del count
        for process in tasks:
            process.kill()
        return 0.0, 0.0

    serve(
        {
            "losses": losses,
            "step": timed(lambda: coordinator.schedule(step), coordinator.join, lambda last: float(last.fetch())),
            "trivial": timed(lambda: coordinator.schedule(trivial), coordinator.join, lambda last: float(last.fetch())),
            **alternating(large.numpy, push),
            "close": close,
        }
    )
    os._exit(0)  # the coordinator's threads wait for the tasks


if __name__ == "__main__":
    if len(sys.argv) > 1:
        task(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
