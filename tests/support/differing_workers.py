"""What workers of a cluster do each in a way of its own, and what they are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from replicas import here, variable
from worker_programs import rank, strategy


def told(call: Callable[[], Any]) -> str:
    """The library's error, or nothing."""
    try:
        call()
    except jd.errors.JaxtributeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def batch() -> Any:
    return strategy().experimental_distribute_values_from_function(
        lambda context: np.full((2, 3), context.replica_id_in_sync_group, np.float32)
    )


def fixed_differently() -> dict[str, str]:
    """Programs whose constants differ between workers, each run once; and one in which they do not."""
    s, own = strategy(), rank()
    v = variable(s, np.ones(3, np.float32), aggregation=jd.VariableAggregation.MEAN)
    rate, rows, key = 0.1 * (1 + own), np.arange(20, dtype=np.float32) * own, jax.random.key(own)
    optimizer = jd.Optimizer(optax.sgd(rate), [v])

    def trained(x: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: (v * x.sum(0)).sum(), [v])())  # noqa: PLW0108 (reads what it is of)

    replicas: dict[str, Callable[[Any], Any]] = {
        "rate": lambda x: v.assign_sub(rate * x.sum(0)).read_value(),
        "rows": lambda x: x.sum() + jnp.asarray(rows).sum(),
        "key": lambda x: x.sum() + jax.random.uniform(key),
        "exponent": lambda x: x ** (2 + own),
        "optimizer": trained,
        "operation": lambda x: jnp.sin(x) if own else jnp.cos(x),
        "operations": lambda x: jnp.abs(x).sum() if own else jnp.square(x).sum(),
        "precision": lambda x: jnp.dot(x, x.T, precision=["high", "highest"][own]),
        "alike": lambda x: x * 0.5,
        "printed": lambda x: (jax.debug.print("{}", x) if own else None, x * 0.5)[1],
    }
    found: dict[str, str] = {}
    for name, replica in replicas.items():

        def step(x: Any, replica: Callable[[Any], Any] = replica) -> Any:
            return s.run(replica, (x,))

        found[name] = told(lambda step=step: jd.function(step)(batch()))
    found["eager optimizer"] = told(lambda: s.run(trained, (batch(),)))
    total = jd.function(lambda x: s.reduce("SUM", s.run(lambda x: x.sum(), (x,)), axis=None))
    found["argument"] = told(lambda: total(np.ones(3, np.float32) * own))
    found["argument alike"] = told(lambda: total(np.ones(3, np.float32)))
    (mixed,) = s.experimental_distribute_dataset([np.ones((2, 3), "fi"[own])])
    found["dtype"] = told(lambda: jd.function(lambda x: s.run(lambda x: x * 2 + 1, (x,)))(mixed))
    found["value"] = str(v.numpy().tolist())
    return found


def eager_values() -> dict[str, Any]:
    """What eager steps give whose values are each worker's own."""
    s, own = strategy(), rank()
    b = s.experimental_distribute_values_from_function(
        lambda context: np.asarray([1, 2], np.float32) + 2 * context.replica_id_in_sync_group
    )
    local = np.full(2, own, np.float32)
    v = variable(s, np.zeros(2, np.float32))
    optimizer = jd.Optimizer(optax.sgd(1.0), [v])

    def trained(x: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: (v * x).sum(), [v])())  # noqa: PLW0108 (reads what it is of)

    first = variable(s, np.zeros(2, np.float32), aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)

    def of_first(x: Any) -> Any:
        # A write within a gradient; all replicas read the first one's array.
        return jd.grad(lambda: first.assign(v + x).read_value().sum(), [v])()[0]

    of_first_alone = s.reduce("SUM", s.run(of_first, (b,)), axis=None)
    s.run(trained, (b,))
    through = s.run(lambda x: x, (b,))
    mirrored = s.run(lambda x: here().all_reduce("SUM", x), (b,))
    number = s.run(lambda: here().merge_call(lambda s, n: n, (3,)))
    return {
        "through": float(s.reduce("SUM", through, axis=0)),
        "mean": float(s.reduce("MEAN", through, axis=0)),
        "over replicas": np.asarray(s.reduce("SUM", through, axis=None)).tolist(),
        "to": np.asarray(s.extended.reduce_to("MEAN", through, v).data).tolist(),
        "gathered": np.asarray(s.gather(through, axis=0)).tolist(),
        "kinds": [type(value).__name__ for value in (through, mirrored, number)],
        "own arrays": np.asarray(s.reduce("SUM", s.run(lambda: jnp.asarray(local)), axis=None)).tolist(),
        "own argument": np.asarray(s.reduce("SUM", s.run(lambda x: x * 2, (local,)), axis=None)).tolist(),
        "own array on a device": np.asarray(
            s.reduce("SUM", s.run(lambda x: x, (jax.device_put(local, jax.local_devices()[0]),)), axis=None)
        ).tolist(),
        "own numbers": float(s.reduce("SUM", s.run(lambda: 1 + own), axis=None)),
        "own numbers merged": float(
            s.run(lambda: here().merge_call(lambda s, n: s.reduce("SUM", n, axis=None), (1 + own,))).values[0]
        ),
        "own mean": float(s.reduce("MEAN", float(own), axis=None)),
        "own mean to": float(s.extended.reduce_to("MEAN", float(own), jax.local_devices()[0])),
        "same numbers merged": s.experimental_local_results(number)[0],
        "trained": v.numpy().tolist(),
        "of the first": [first.numpy().tolist(), np.asarray(of_first_alone).tolist()],
    }


def gathered_plainly() -> dict[str, Any]:
    """What `gather` gives of arrays that are no distributed values, by the way they are gathered."""
    s, own = strategy(), rank()
    gather = s.gather
    compiled = jd.function(gather)
    rows, columns = np.full((1 + own, 2), own, np.float32), np.full((2, 1 + own), own, np.int32)
    alike = np.arange(2, dtype=np.float32)
    total = s.reduce("MEAN", s.run(lambda: jnp.ones(2)), axis=None)
    found = {
        "equal": gather(np.array([own, 1], np.float32), axis=0),
        "jax": gather(jax.device_put(np.array([own, 1], np.float32), jax.local_devices()[-1]), axis=0),
        "rows": gather(rows, axis=0),
        "columns": gather(jnp.asarray(columns), axis=1),
        "none": gather(np.ones((own, 2)), axis=0),
        "nest": gather({"a": [rows], "b": (s.run(lambda: jnp.ones(1)),)}, axis=0),
        "merged": s.run(lambda: here().merge_call(lambda s: s.gather(rows, axis=0))),
        "total": gather(total, axis=0),
        "compiled": compiled(alike, 0),
        "compiled total": compiled(total, 0),
        "compiled constant": jd.function(lambda: gather(jnp.arange(2), axis=0))(),
        "compiled merged": jd.function(
            lambda x: s.run(lambda: here().merge_call(lambda s: s.gather(x, axis=0))),
        )(alike),
    }
    shown = jax.tree.map(
        lambda leaf: np.asarray(s.experimental_local_results(leaf)[0]).tolist(),
        found,
        is_leaf=lambda leaf: isinstance(leaf, jd.DistributedValues),
    )
    errors = {
        "compiled, of their own": told(
            lambda: jd.function(lambda x: gather(x, axis=0))(np.array([own, 1], np.float32))
        ),
        "compiled, of other lengths": told(lambda: jd.function(lambda x: gather(x, axis=0))(rows)),
        "compiled mean": told(
            lambda: jd.function(lambda x: s.reduce("MEAN", x, axis=None))(np.array([own, 1], np.float32))
        ),
        "another axis": told(lambda: gather(rows, axis=1)),
        "another dtype": told(lambda: gather(alike.astype(np.float32 if own else np.int32), axis=0)),
        "scalar": told(lambda: gather(float(own), axis=0)),
    }
    return {"found": shown, "errors": errors}


def placed_differently() -> dict[str, Any]:
    """What lies on this worker's replicas of nests that are placed with values of its own."""
    s, own = strategy(), rank()
    nest = {
        "float32": jnp.full(2, own + 1.0),
        "bfloat16": np.full(2, own + 1, jnp.bfloat16),
        "number": own + 1,
        "random": jax.random.key(7 + own),
    }
    placed: Any = s.place(s.place(nest))
    # A step of random keys alone is watched as others are.
    placed["random"] = jd.function(lambda key: s.run(lambda key: key, (key,)))(placed["random"])
    placed["random"] = s.run(lambda key: jax.random.normal(key, (2,)), (placed["random"],))
    found: dict[str, Any] = {
        name: np.asarray(s.experimental_local_results(one)).tolist() for name, one in placed.items()
    }
    found["variable"] = variable(s, nest["bfloat16"]).numpy().tolist()
    found["shapes"] = told(lambda: s.place(jnp.ones(2 + own)))
    return found
