"""Arrays that a replica function captures, wherever they lie, by every executor."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxtribute as jd
from replicas import EXECUTORS, execute, here, mirrored, one_device, variable

BASE = np.arange(4, dtype=np.float32)[None]
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one device": lambda: one_device(1),
    "mirrored": lambda: mirrored(2),
    "fully sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "central, one replica": lambda: jd.CentralStorageStrategy(["CPU:1"], "CPU:0"),
}
FEW = ("derived", "slices")
MORE = ("read", "placed", "device 0", "device 1", "device 3", "copies", "slices of more")


def captured(place: str, strategy: jd.Strategy, v: jd.Variable) -> Any:
    """An array equal to `BASE`."""
    devices = jax.devices()
    if place == "derived":
        return v * np.float32(1)
    if place == "read":
        return v.read_value()
    if place == "placed":
        return strategy.place(BASE)
    if place.startswith("device"):
        return jax.device_put(BASE, devices[int(place[-1])])
    mesh = Mesh(np.array(devices[: 4 if place == "slices of more" else 2]), ("z",))
    return jax.device_put(BASE, NamedSharding(mesh, PartitionSpec() if place == "copies" else PartitionSpec(None, "z")))


@pytest.mark.quick_cases(10, half=True)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("place", [*FEW, *(pytest.param(place, marks=pytest.mark.slow) for place in MORE)])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("uneven", [False, True])
def test_captured_arrays_lie_anywhere(uneven: bool, executor: str, place: str, name: str) -> None:
    strategy = STRATEGIES[name]()
    v, w = variable(strategy, BASE), variable(strategy, 2.0)
    c = captured(place, strategy, v)
    parts = [np.full((i + 1 if uneven else 2, 4), i + 1, np.float32) for i in range(strategy.num_replicas_in_sync)]
    x = strategy.experimental_distribute_values_from_function(lambda k: parts[int(k.replica_id_in_sync_group)])
    helper = jax.jit(lambda x: x * c)

    def body(total: Any, _: Any) -> Any:
        return total + (c * w).sum(), None

    def replica(x: Any) -> Any:
        total = here().all_reduce("SUM", (x * c + c * w).sum())
        looped = jax.lax.scan(body, jnp.float32(0), None, length=2)[0]
        _, gradient = jd.value_and_grad(lambda: (helper(x) * w).sum() + (c * w).sum(), w)()
        return (x * c * v).sum() + total, looped, gradient

    results = execute(executor, strategy, replica, x)
    total = sum(float((part * BASE + 2 * BASE).sum()) for part in parts)
    for i, part in enumerate(parts):
        each = [strategy.experimental_local_results(result) for result in results]
        own = [float(locals_[i] if len(locals_) == len(parts) else locals_[0]) for locals_ in each]
        wanted = [(part * BASE * BASE).sum() + total, 4 * BASE.sum(), (part * BASE).sum() + BASE.sum()]
        np.testing.assert_array_equal(own, wanted)
