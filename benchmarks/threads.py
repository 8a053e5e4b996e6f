"""Steps of one thread and of several that share variables: what more threads add, and that one pays nothing.

    python -m benchmarks.threads

A tiny compiled step (4-4, one device) and an eager one are made by 1, 2 and 4 threads: the time is that of all steps,
divided by their number. The lock that steps take is measured beside them, taken and given back by one thread.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any


def microseconds_a_step(step: Callable[[], Any], threads: int, steps: int, rounds: int) -> list[float]:
    """For each round the time of a step, where `threads` threads make `steps` each at once."""
    taken: list[float] = []
    for _ in range(rounds):
        barrier = threading.Barrier(threads + 1)

        def work(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(steps):
                step()
            barrier.wait()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        start = time.perf_counter()
        barrier.wait()
        taken.append((time.perf_counter() - start) / (steps * threads) * 1e6)
        for worker in workers:
            worker.join()
    return taken


def problems() -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], float]]:
    """A compiled step, an eager one, and how often either has been made."""
    import jax.numpy as jnp
    import optax

    import jaxtribute as jd

    strategy = jd.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        weights, count = jd.Variable(jnp.full((4, 4), 0.1)), jd.Variable(0.0)
        optimizer = jd.Optimizer(optax.sgd(0.01), [weights])
    x = jnp.ones((32, 4))

    def train() -> Any:
        def mean_of_squares() -> Any:
            return ((x @ weights) ** 2).mean()

        loss, gradient = jd.value_and_grad(mean_of_squares, weights)()
        optimizer.apply_gradients([gradient])
        count.assign_add(1.0)
        return loss

    def add() -> None:
        count.assign_add(1.0)

    compiled = jd.function(lambda: strategy.run(train))
    return compiled, lambda: strategy.run(add), lambda: float(count.numpy())


def lock_us(times: int = 100_000) -> float:
    """The time to take and give back the lock that a step takes, with nobody else about."""
    from jaxtribute._src.core.values.stored import updating

    start = time.thread_time()
    for _ in range(times):
        with updating:
            pass
    return (time.thread_time() - start) / times * 1e6


def main() -> None:
    """Prints a table.

    Raises:
      RuntimeError: an update was lost.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="see only that it runs")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 15
    compiled, eager, made = problems()
    figures: dict[str, float] = {"lock": lock_us()}
    for name, step, steps in (("compiled", compiled, 800), ("eager", eager, 200)):
        step()
        made()  # the first step after a look at the variable compiles a copy of it
        step()
        for threads in (1, 2, 4):
            before, each = made(), (20 if arguments.quick else steps) // threads
            taken = microseconds_a_step(step, threads, each, rounds)
            if made() - before != each * threads * rounds:
                raise RuntimeError(
                    f"{threads} threads made {each * threads * rounds} steps, the variable has {made() - before}."
                )
            figures[f"{name}, {threads} threads"] = statistics.median(taken)
    for name, value in figures.items():
        base = figures.get(f"{name.split(',')[0]}, 1 threads", value)
        print(f"{name}: {value:.2f} us" + (f", {value / base:.2f} of one thread's" if "threads" in name else ""))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
