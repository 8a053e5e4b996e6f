"""Parameter servers against TensorFlow's: steps of a classifier, trivial functions, 16 MB of parameters.

python -m benchmarks.parameter_server --tensorflow /path/to/its/python [--quick] [--json FILE]

Losses are compared before anything is timed. Each library has a coordinator, one server and two workers, in processes
of their own; the two take turns. A bare socket shows what the machine gives.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Peer, Result, ratio, serve

SHAPES = ((64, 256), (256,), (256, 256), (256,), (256, 10), (10,))
BATCH = 64
RATE = 0.05
LARGE = 16 * 2**20 // 4
WIDTH = 64
CHECKED_STEPS = 20
BARS = {"step": 1 / 2, "trivial": 1 / 3, "pull": 1.0, "push": 1.0}
"""The most of TensorFlow's time that each may take."""
SOCKET_BAR = 2.0


def first_values() -> list[np.ndarray[Any, Any]]:
    """The classifier's initial parameters."""
    random = np.random.default_rng(0)
    return [
        (random.normal(size=s) * (2 / s[0]) ** 0.5 if len(s) > 1 else np.zeros(s)).astype(np.float32) for s in SHAPES
    ]


def batch() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images and labels like those of the handwritten digits."""
    random = np.random.default_rng(1)
    return random.normal(size=(BATCH, 64)).astype(np.float32), random.integers(0, 10, BATCH).astype(np.int32)


def timed(schedule: Callable[[], Any], join: Callable[[], None], fetch: Callable[[Any], float]) -> Any:
    """A contender that schedules a function `count` times and waits for all; seconds a call."""

    def run(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        last = None
        for _ in range(count):
            last = schedule()
        join()
        return (time.perf_counter() - start) / count, fetch(last)

    return run


def alternating(pull: Callable[[], Any], push: Callable[[], Any]) -> dict[str, Any]:
    """Contenders that push and pull in turn and time one of the two."""

    def run(count: int, timed_one: str) -> tuple[float, float]:
        total = 0.0
        for _ in range(max(1, count // 20)):
            for name, call in (("push", push), ("pull", pull)):
                start = time.perf_counter()
                call()
                total += (time.perf_counter() - start) * (name == timed_one)
        return total / max(1, count // 20), 0.0

    return {name: lambda count, name=name: run(count, name) for name in ("pull", "push")}


def library(workers: int) -> Mapping[str, Any]:
    """This library's contenders, with servers and workers of this process, or of the cluster that TF_CONFIG tells."""
    import jax
    import jax.numpy as jnp

    import jaxtribute as jd

    cluster: Any = {"ps": 1, "worker": workers}
    if "TF_CONFIG" in os.environ:
        cluster = jd.cluster_resolver.TFConfigClusterResolver()
    strategy = jd.ParameterServerStrategy(cluster, timeout_s=240)
    coordinator = jd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [jd.Variable(value) for value in first_values()]
        large = jd.Variable(np.zeros(LARGE, np.float32))
    x, y = batch()

    @jd.function
    def step() -> jax.Array:
        def loss() -> jax.Array:
            w1, b1, w2, b2, w3, b3 = variables
            hidden = jax.nn.relu(jnp.asarray(x) @ w1 + b1)
            logits = jax.nn.relu(hidden @ w2 + b2) @ w3 + b3
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(y)[:, None], axis=1).mean()

        value, gradients = jd.value_and_grad(loss, variables)()
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        return value

    def trivial() -> int:
        return 1

    def losses(count: int) -> tuple[float, float]:
        del count
        return 0.0, float([coordinator.schedule(step).fetch() for _ in range(CHECKED_STEPS)][-1])

    delta = np.ones(LARGE, np.float32)
    contenders: dict[str, Any] = {
        "losses": losses,
        "step": timed(lambda: coordinator.schedule(step), coordinator.join, lambda last: float(last.fetch())),
        "trivial": timed(lambda: coordinator.schedule(trivial), coordinator.join, lambda last: float(last.fetch())),
        **alternating(large.numpy, lambda: large.assign_add(delta)),
        "close": lambda _: (strategy.close(), (0.0, 0.0))[1],
    }
    return contenders


def sockets() -> Mapping[str, Any]:
    """A bare socket to a thread of another process that adds what it gets to what it holds, and sends that."""
    server, port = socket.create_server(("127.0.0.1", 0)), 0
    port = server.getsockname()[1]
    code = f"from benchmarks.parameter_server import answer; answer({port})"
    process = subprocess.Popen([sys.executable, "-c", code])
    connection = server.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    delta, values = np.ones(LARGE, np.float32), np.zeros(LARGE, np.float32)

    def pull() -> None:
        connection.sendall(b"r")
        fill(connection, values)

    def push() -> None:
        connection.sendall(b"w")
        connection.sendall(memoryview(delta).cast("B"))
        connection.recv(1)

    def close(_: int) -> tuple[float, float]:
        connection.close()
        process.wait()
        return 0.0, 0.0

    return {**alternating(pull, push), "close": close}


def rows_of_table(shape: tuple[int, ...], dtype: Any, shard_info: Any) -> np.ndarray[Any, Any]:
    """A part of the embedding table, computed where it is kept."""
    return np.random.default_rng(shard_info.offset[0]).random(shape, dtype)


def embedding(steps: int) -> dict[str, Any]:
    """A table of 1 M x 64 on two servers: what a step on 1,024 ids moves and takes, and what processes hold for it."""
    import jaxtribute as jd

    rows, small, ids = 1_000_000, 2048, 1024
    partitioner = jd.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    with jd.ParameterServerStrategy({"ps": 2, "worker": 1}, partitioner, timeout_s=120) as strategy:
        coordinator = jd.coordinator.ClusterCoordinator(strategy)
        tasks = {f"{job} {i}": strategy.process_of(job, i) for job, i in (("ps", 0), ("ps", 1), ("worker", 0))}
        tasks["coordinator"] = os.getpid()

        def moved() -> int:
            mine: Any = jd.get_strategy()
            client = mine.parameter_servers.server_policy.access.client
            return client.sent_bytes + client.received_bytes

        def train(step: Any, rows: int, steps: int) -> None:
            random = np.random.default_rng(0)
            for _ in range(steps):
                coordinator.schedule(step, (random.integers(0, rows, ids).astype(np.int32),))
            coordinator.join()

        train(lookups(strategy, small), small, 20)  # all that a small table needs, such as compiled programs
        before = {name: resident(pid) for name, pid in tasks.items()}
        for pid in tasks.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # restarts the count of the highest
        step = lookups(strategy, rows)
        train(step, rows, 1)
        bytes_before, start = coordinator.schedule(moved).fetch(), time.perf_counter()
        train(step, rows, steps)
        seconds = (time.perf_counter() - start) / steps
        bytes_a_step = (coordinator.schedule(moved).fetch() - bytes_before) / steps
        held = {name: resident(pid) - before[name] for name, pid in tasks.items()}
        coordinator.save()
        coordinator.restore()
        train(step, rows, 20)
        peak = {name: resident(pid, "VmHWM") - before[name] for name, pid in tasks.items()}
    return {
        "bytes a step": round(bytes_a_step),
        "bar": 10**6,
        "ms a step": round(seconds * 1e3, 3),
        "MiB of a shard": round(rows // 2 * WIDTH * 4 / 2**20),
        "MiB held for the table": {name: round(size / 2**20) for name, size in held.items()},
        "MiB at the most, with save and restore": {name: round(size / 2**20) for name, size in peak.items()},
    }


def rates(calls: int) -> dict[str, Any]:
    """Functions that do nothing, and steps, which a coordinator gets done in a second on 1 to 16 workers."""
    found: dict[str, dict[int, list[float]]] = {"trivial": {}, "step": {}}
    counts = (1, 2, 8, 16)
    for order in (counts, counts[::-1]):
        for workers in order:
            peer = Peer("benchmarks.parameter_server", ["--serve", "library", "--workers", str(workers)])
            try:
                for problem, taken in found.items():
                    peer.steps(problem, calls)  # warms up
                    taken.setdefault(workers, []).extend(1 / peer.steps(problem, calls)[0] for _ in range(3))
            finally:
                with suppress(RuntimeError, BrokenPipeError):
                    peer.steps("close", 0)
                peer.close()
    return {
        problem: {workers: round(statistics.median(seen)) for workers, seen in sorted(taken.items())}
        for problem, taken in found.items()
    }


def lookups(strategy: Any, rows: int) -> Any:
    """A table of so many rows on the servers, and a step that trains those that it is given."""
    import functools

    import jax
    import optax

    import jaxtribute as jd

    with strategy.scope():
        table = jd.Variable(functools.partial(rows_of_table, shape=(rows, WIDTH), dtype=np.float32))
        optimizer = jd.Optimizer(optax.sgd(0.1), [table])

    @jd.function
    def step(batch: jax.Array) -> None:
        def loss() -> jax.Array:
            return (jd.nn.embedding_lookup(table, batch) ** 2).sum()

        optimizer.apply_gradients(jd.grad(loss, [table])())

    return step


def resident(pid: int, field: str = "VmRSS") -> int:
    """A process's resident memory in bytes: now (`VmRSS`) or at its highest (`VmHWM`)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def fill(connection: socket.socket, array: np.ndarray[Any, Any]) -> None:
    """Reads an array's bytes from a socket."""
    view = memoryview(array).cast("B")
    while view:
        view = view[connection.recv_into(view) :]


def answer(port: int) -> None:
    """The server behind the bare socket."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    held, given = np.zeros(LARGE, np.float32), np.zeros(LARGE, np.float32)
    while kind := connection.recv(1):
        if kind == b"r":
            connection.sendall(memoryview(held).cast("B"))
        else:
            fill(connection, given)
            np.add(held, given, out=held)
            connection.sendall(b"k")


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", help="the interpreter of an installation of TensorFlow")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--serve", choices=["library", "sockets"], help=argparse.SUPPRESS)
    parser.add_argument("--embedding", action="store_true", help="the embedding table alone")
    parser.add_argument("--rates", action="store_true", help="functions scheduled in a second, by workers, alone")
    options = parser.parse_args()
    if options.rates:
        print(json.dumps(rates(100 if options.quick else 1000)))
        return
    if options.embedding:
        print(json.dumps(embedding(50 if options.quick else 500)))
        return
    if options.serve:
        serve(library(options.workers) if options.serve == "library" else sockets())
        return
    steps, rounds = (100, 3) if options.quick else (400, 9)
    peers = {"jaxtribute": Peer("benchmarks.parameter_server", ["--serve", "library"])}
    if options.tensorflow:
        peers["TensorFlow"] = Peer(
            "benchmarks.parameter_server_tensorflow", [], {"CUDA_VISIBLE_DEVICES": ""}, options.tensorflow
        )
    peers["socket"] = Peer("benchmarks.parameter_server", ["--serve", "sockets"])
    try:
        table = measure(peers, steps, rounds)
    finally:
        for peer in peers.values():
            with suppress(RuntimeError, BrokenPipeError):
                peer.steps("close", 0)
            peer.close()
    print(json.dumps(table, indent=1))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


def measure(peers: Mapping[str, Peer], steps: int, rounds: int) -> dict[str, Any]:
    """Compares losses, then times each problem, the contenders in turn."""
    found = {name: peer.steps("losses", 1)[1] for name, peer in peers.items() if name != "socket"}
    first = next(iter(found.values()))
    assert all(abs(loss - first) <= 1e-4 * abs(first) for loss in found.values()), found
    table: dict[str, Any] = {"losses": found, "load": os.getloadavg()[0]}
    for problem, bar in BARS.items():
        results = {name: Result(name) for name, peer in peers.items() if problem in peer.names}
        for turn in range(rounds + 1):
            for name, result in results.items():
                seconds = peers[name].steps(problem, steps)[0]
                if turn:  # the first one warms up
                    result.seconds.append(seconds)
        own = results["jaxtribute"]
        table[problem] = {
            name: {
                "ms": round(result.median * 1e3, 4),
                "ratio": round(ratio(own, result), 3),
                "bar": bar if name == "TensorFlow" else SOCKET_BAR if name == "socket" else None,
            }
            for name, result in results.items()
        }
    return table


if __name__ == "__main__":
    main()
