"""Batches that the replicas do not divide, and a replica function run on them by both executors."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jaxtribute as jd
from replicas import EXECUTORS, execute

UNEVEN = (2, 2, 1, 0)
"""Five examples over four replicas, as TensorFlow cuts them: the last one has nothing to do."""


def cut(batch: int, replicas: int) -> list[int]:
    """How many examples each replica gets of a batch."""
    size = -(-batch // replicas)
    return [max(0, min(size, batch - replica * size)) for replica in range(replicas)]


def rows(batch: int, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """A batch of random examples of `shape`, float32."""
    return np.random.default_rng(seed).normal(size=(batch, *shape)).astype(np.float32)


def deal(strategy: jd.Strategy, array: Any, counts: Sequence[int]) -> jd.PerReplica:
    """The rows of `array`, `counts[i]` of them to replica `i`."""
    ends = np.cumsum(counts)[:-1]
    return jd.PerReplica.from_host(np.split(np.asarray(array), ends), strategy.extended.mesh)


def plain(value: Any) -> Any:
    """A nest of results with a list of its components in place of each distributed value."""

    def one(leaf: Any) -> Any:
        values = leaf.values if isinstance(leaf, jd.DistributedValues) else [leaf]
        return [np.asarray(part) for part in values]

    return jax.tree.map(one, value, is_leaf=lambda leaf: isinstance(leaf, jd.DistributedValues))


def agree(strategy: jd.Strategy, fn: Callable[..., Any], *args: Any, atol: float = 1e-6) -> Any:
    """Runs `fn` by both executors and checks that they give the same; returns the compiled result."""
    results = {executor: execute(executor, strategy, fn, *args) for executor in EXECUTORS}
    shown = {executor: plain(result) for executor, result in results.items()}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), shown["lockstep"], shown["compiled"]
    )
    kinds = {executor: [x.dtype for x in jax.tree.leaves(nest)] for executor, nest in shown.items()}
    assert kinds["lockstep"] == kinds["compiled"]
    return results["compiled"]
