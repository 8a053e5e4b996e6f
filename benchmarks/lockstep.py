"""Eager `strategy.run` of a small function on 4 replicas: calls a second, against TensorFlow's.

    python -m benchmarks.lockstep --tensorflow-python /path/to/python/with/tensorflow

Without that path TensorFlow is left out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PEER = pathlib.Path(__file__).with_name("lockstep_tensorflow.py")


def milliseconds_a_call(call: Callable[[], Any], seconds: float) -> float:
    """Median over short rounds, after a warm-up."""
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


def measure(replicas: int, seconds: float) -> dict[str, float]:
    """Milliseconds a call, with and without a collective."""
    import jax.numpy as jnp

    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(replicas)
    strategy = jd.MirroredStrategy()
    value = strategy.experimental_distribute_values_from_function(
        lambda c: jnp.full(8, c.replica_id_in_sync_group, "f")
    )

    def small(x: Any) -> Any:
        return x * 2.0 + 1.0

    def reduced(x: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", x * 2.0)

    return {
        "run": milliseconds_a_call(lambda: strategy.run(small, (value,)), seconds),
        "run with all_reduce": milliseconds_a_call(lambda: strategy.run(reduced, (value,)), seconds),
    }


def threads_started(replicas: int, calls: int) -> int:
    """How many threads `calls` calls with a collective start, once warm."""
    import jaxtribute as jd

    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])

    def reduced() -> Any:
        context = jd.get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", context.replica_id_in_sync_group)

    strategy.run(reduced)
    started = 0
    start = threading.Thread.start

    def counted(self: threading.Thread) -> None:
        nonlocal started
        started += 1
        start(self)

    threading.Thread.start = counted
    try:
        for _ in range(calls):
            strategy.run(reduced)
    finally:
        threading.Thread.start = start
    return started


def main() -> None:
    """Prints a table, and the ratios where there is a peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow-python", help="a Python interpreter that has TensorFlow")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true", help="print this library's figures only, as JSON")
    arguments = parser.parse_args()
    if arguments.json:
        figures = measure(arguments.replicas, arguments.seconds)
        print(json.dumps({**figures, "threads": threads_started(arguments.replicas, 200)}))
        return
    options = ["--replicas", str(arguments.replicas), "--seconds", str(arguments.seconds)]
    contenders = {"jaxtribute": [sys.executable, "-m", "benchmarks.lockstep", "--json", *options]}
    if arguments.tensorflow_python:
        contenders["tensorflow"] = [arguments.tensorflow_python, str(PEER), *options]
    quiet = subprocess.DEVNULL  # TensorFlow is talkative
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(3):
        for name, command in contenders.items():
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=quiet, text=True)
            rounds[name].append(json.loads(answer.stdout.splitlines()[-1]))
    for what in ("run", "run with all_reduce"):
        taken = {name: statistics.median(answer[what] for answer in answers) for name, answers in rounds.items()}
        shown = ", ".join(f"{name} {ms:.3f} ms ({1e3 / ms:.0f} calls/s)" for name, ms in taken.items())
        ratio = f"; {taken['tensorflow'] / taken['jaxtribute']:.1f} times the calls" if len(taken) > 1 else ""
        print(f"{what}: {shown}{ratio}")
    print(f"threads started in 200 calls: {rounds['jaxtribute'][-1]['threads']:.0f}")


if __name__ == "__main__":
    main()
