"""A program as TensorFlow's users write it; its chief goes on from what it saved last, and prints what it counted.

python tests/addons/parameter_servers/ps_program.py DIRECTORY

On its first start it is killed, after it has saved and done a little more; on the next one its server is killed.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jaxtribute as jd

resolver = jd.cluster_resolver.TFConfigClusterResolver()
with jd.ParameterServerStrategy(resolver) as strategy:
    coordinator = jd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = jd.Variable(0, name="count")
        table = jd.Variable(np.ones((3000, 2), np.float32), name="table")

    @jd.function
    def step(x: Any) -> Any:
        count.assign_add(1)
        table.assign_add(x)
        return jd.nn.embedding_lookup(table, np.array([0, 2999], np.int32)).sum()

    def train(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(step, (np.ones((3000, 2), np.float32),))
        coordinator.join()

    saved = coordinator.latest_save(sys.argv[1])
    if saved is None:
        train(10)
        coordinator.save(sys.argv[1])
        train(5)
        os.kill(os.getpid(), signal.SIGKILL)
    coordinator.restore(saved)
    begun = int(count)
    train(10)
    coordinator.save(sys.argv[1])
    saved_count = int(count)
    os.kill(strategy.process_of("ps", 0), signal.SIGKILL)
    with contextlib.suppress(jd.errors.ClusterError):
        while True:
            train(1)
    coordinator.restore()
    restored = int(count)
    train(5)
    tcp = [endpoint.tcp for endpoint in strategy.cluster.endpoints]  # pyright: ignore[reportOptionalMemberAccess]
    result = {
        "begun": begun,
        "saved": saved_count,
        "restored": restored,
        "count": int(count),
        "row": float(table.numpy()[7, 0]),
        "remote": any(tcp),
        "saves": sorted(path.name for path in Path(sys.argv[1]).iterdir()),
    }
    print(json.dumps(result))
