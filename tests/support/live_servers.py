"""A training with parameter servers whose processes are recorded; one worker is killed in the middle.

JAXTRIBUTE_RUN=DIR python tests/support/live_servers.py
"""

import json
import os
import signal
import time

import numpy as np

import jaxtribute as jd

with jd.ParameterServerStrategy({"ps": 2, "worker": 2}) as strategy:
    coordinator = jd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = jd.Variable(0, name="count")
        table = jd.Variable(np.ones((1000, 8), np.float32), name="table")

    @jd.function
    def step(x: np.ndarray) -> float:
        """Changes both variables."""
        count.assign_add(1)
        table.assign_add(x)
        return table.read_value().sum()  # pyright: ignore[reportReturnType]

    def train(steps: int) -> None:
        """Schedules steps, and waits for them."""
        for _ in range(steps):
            coordinator.schedule(step, (np.ones((1000, 8), np.float32),))
        coordinator.join()

    train(50)
    killed = strategy.process_of("worker", 1)
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + 200
    back = None  # the moment since which the worker is there again
    while back is None or time.monotonic() < back + 3:
        train(10)
        time.sleep(0.1)  # the worker needs the cores to start
        if back is None and strategy.process_of("worker", 1) != killed:
            back = time.monotonic()
        assert time.monotonic() < deadline, "the worker did not come again"
    print(json.dumps({"count": int(count)}))
