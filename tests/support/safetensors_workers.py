"""What the workers run in `tests/addons/models/test_safetensors.py`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxtribute as jd
from jaxtribute._src.addons.models import safetensors

ROWS = 1 << 18


def weights_of_a_worker(path: str) -> dict[str, Any]:
    """Saves weights of a strategy over all workers, and loads them into others.

    Returns:
      Whether the loaded ones are the same, and the most bytes that NumPy and Python held at a time meanwhile, by what
      was done.
    """
    strategy = jd.FullyShardedStrategy(cluster_resolver=jd.cluster_resolver.TFConfigClusterResolver(), min_bytes=64)
    rng = np.random.default_rng(0)
    shapes = {"a": (ROWS, 3), "b": (2, ROWS), "c": (5,), "d": (ROWS + 1,)}
    with strategy.scope():
        saved = {name: jd.Variable(rng.random(shape, np.float32), name=name) for name, shape in shapes.items()}
        loaded = {name: jd.Variable(np.zeros(shape, np.float32), name=name) for name, shape in shapes.items()}
    held = {
        "saving": _most(lambda: safetensors.save(saved, path)),
        "loading": _most(lambda: safetensors.load(loaded, path)),
    }
    pairs = [(_pieces(saved[name]), _pieces(loaded[name])) for name in shapes]
    return {**held, "same": all(np.array_equal(a, b) for one in pairs for a, b in zip(*one, strict=True))}


def _most(call: Callable[[], None]) -> int:
    """The most bytes held at a time beyond those held before."""
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def _pieces(variable: jd.Variable) -> list[Any]:
    return [np.asarray(shard.data) for shard in variable.stored.addressable_shards]
