"""One of two processes: distributes a dataset and prints its replicas' rows. Arguments: case, address, worker."""

import json
import sys
from typing import Any

import jax

from jaxtribute import config
from jaxtribute.cluster import runtime

config.set_logical_cpu_devices(2)
CASE, ADDRESS, WORKER = sys.argv[1], sys.argv[2], int(sys.argv[3])


def dataset() -> Any:
    import numpy as np

    from jaxtribute.input import make_numpy_dataset

    numbers = np.arange(11 if CASE != "own" else 5 - 3 * WORKER)
    batched = make_numpy_dataset(numbers).batch(8 if CASE != "own" else 4)
    return batched if CASE != "list" else list(batched)


def main() -> None:
    host, _, port = ADDRESS.rpartition(":")
    cluster = runtime.connect({"worker": [ADDRESS, f"{host}:{int(port) + 1}"]}, "worker", WORKER, timeout_s=60)
    import numpy as np

    from jaxtribute.input import AutoShardPolicy, InputContext, InputOptions, KeyValueAgreements, distribute_dataset
    from jaxtribute.values.mesh import ReplicaMesh

    mesh = ReplicaMesh(jax.devices())
    assert mesh.size == 4
    agreements = KeyValueAgreements(cluster, "test", 2, WORKER, 30)
    policy = AutoShardPolicy.OFF if CASE == "own" else AutoShardPolicy.DATA
    distributed_dataset = distribute_dataset(
        dataset(), mesh, InputOptions(auto_shard_policy=policy), InputContext(2, WORKER, 4), agreements
    )
    for element in distributed_dataset:
        rows = [np.asarray(part).tolist() for part in element.values]
        print(json.dumps([rows, element.is_ragged]), flush=True)


if __name__ == "__main__":
    main()
