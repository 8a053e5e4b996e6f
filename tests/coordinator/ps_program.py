"""A program as TensorFlow's users write it, one process a task; prints what its chief counted."""

import json
import sys

import numpy as np

import jaxtribute as jd

resolver = jd.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("ps", "worker"):
    server = jd.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id)
    server.join()
    sys.exit()

with jd.ParameterServerStrategy(resolver) as strategy:
    coordinator = jd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = jd.Variable(0, name="count")
        table = jd.Variable(np.ones((3000, 2), np.float32), name="table")

    @jd.function
    def step(x: np.ndarray) -> object:
        count.assign_add(1)
        table.assign_add(x)
        return jd.nn.embedding_lookup(table, np.array([0, 2999], np.int32)).sum()

    for _ in range(10):
        value = coordinator.schedule(step, (np.ones((3000, 2), np.float32),))
    coordinator.join()
    tcp = [endpoint.tcp for endpoint in strategy.cluster.endpoints]  # pyright: ignore[reportOptionalMemberAccess]
    result = {
        "count": int(count),
        "row": float(table.numpy()[7, 0]),
        "remote": all(tcp) and bool(tcp),
    }
    print(json.dumps(result))
