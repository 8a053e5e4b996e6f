"""What the workers of a cluster do in the tests of the input; `worker_programs` has their strategy."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

import worker_programs
from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.input import (
    AutoShardPolicy,
    InputContext,
    InputOptions,
    KeyValueAgreements,
    distribute_dataset,
    make_numpy_dataset,
)


def _dataset(case: str) -> Any:
    numbers = np.arange(11 if case != "own" else 5 - 3 * worker_programs.rank())
    batched = make_numpy_dataset(numbers).batch(8 if case != "own" else 4)
    return batched if case != "list" else list(batched)


def warned(seeded: bool) -> list[str]:
    """The warnings of a pass over a list that each worker has shuffled."""
    strategy = worker_programs.strategy()
    order = np.random.default_rng(0 if seeded else worker_programs.rank()).permutation(16)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in strategy.experimental_distribute_dataset(list(order.reshape(4, 4))):
            pass
    return [str(one.message) for one in found]


def rows(case: str) -> list[tuple[list[list[int]], bool]]:
    """For each element, the rows of this worker's replicas, and whether it is ragged."""
    worker_programs.strategy()  # joins the cluster
    cluster = runtime.Cluster.current()
    assert cluster is not None
    mesh = ReplicaMesh(jax.devices())
    assert mesh.size == 4
    options = InputOptions(auto_shard_policy=AutoShardPolicy.OFF if case == "own" else AutoShardPolicy.DATA)
    agreements = KeyValueAgreements(cluster, f"test of {case}", 2, cluster.rank, 30)
    dataset = distribute_dataset(_dataset(case), mesh, options, InputContext(2, cluster.rank, 4), agreements)
    return [([np.asarray(part).tolist() for part in element.values], element.is_ragged) for element in dataset]
