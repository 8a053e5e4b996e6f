"""Strategies on the suite's logical devices, and one way to run a replica function by either executor."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.reductions import REDUCTIONS

EXECUTORS = ("lockstep", "compiled")
each_executor = pytest.mark.parametrize("executor", EXECUTORS)


@cache
def mirrored(replicas: int) -> jd.MirroredStrategy:
    return jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


@cache
def one_device(index: int) -> jd.OneDeviceStrategy:
    return jd.OneDeviceStrategy(f"CPU:{index}")


def variable(strategy: jd.Strategy, value: Any, **options: Any) -> jd.Variable:
    with strategy.scope():
        return jd.Variable(value, **options)


def here() -> jd.ReplicaContext:
    """The context of the replica that calls."""
    context = jd.get_replica_context()
    assert context is not None
    return context


def total(value: Any) -> Any:
    """The sum over the replicas."""
    return here().all_reduce("SUM", value)


def everyone(value: Any) -> Any:
    """The rows of all replicas."""
    return here().all_gather(value, axis=0)


def ident() -> Any:
    """The number of the replica that calls, int32."""
    return here().replica_id_in_sync_group


def fraction() -> Any:
    """The number of the replica that calls, float32."""
    return jnp.asarray(ident(), jnp.int32).astype(jnp.float32)


def execute(executor: str, strategy: jd.Strategy, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`strategy.run(fn, args, kwargs)`, eagerly or inside a `jd.function`."""
    if executor == "lockstep":
        return strategy.run(fn, args, kwargs)

    def step(*args: Any, **kwargs: Any) -> Any:
        return strategy.run(fn, args, kwargs)

    return jd.function(step)(*args, **kwargs)


def per_replica(strategy: jd.Strategy, values: Sequence[Any]) -> Any:
    """A distributed value with the given components."""
    return strategy.experimental_distribute_values_from_function(lambda c: values[c.replica_id_in_sync_group])


def components(value: Any) -> list[Any]:
    """The components of a value as nested lists; one for a value that is not distributed."""
    values = value.values if isinstance(value, (jd.DistributedValues, jd.Variable)) else (value,)
    return [np.asarray(part).tolist() for part in values]


STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "default": jd.get_strategy,
    "one device": lambda: one_device(1),
    "mirrored": lambda: mirrored(2),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}
each_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


def another_operation(monkeypatch: pytest.MonkeyPatch) -> jd.ReduceOp:
    """An operation that the core knows, and that is neither a sum nor a mean."""
    op: Any = object.__new__(jd.ReduceOp)
    op._name_ = op._value_ = "LARGEST"
    monkeypatch.setitem(REDUCTIONS, "LARGEST", REDUCTIONS["SUM"])
    return op
