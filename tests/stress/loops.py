"""Training-like loops that never wait for a result; run in a process of its own as `loops.py STEPS LOOP...`.

Each loop dispatches its steps as fast as Python can, so that launches of many later steps wait while the devices of the
current one meet in a collective. That is what starves a thread pool that is too small.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxtribute as jd  # sizes the thread pool

WIDTH = 16


def mesh_and_data() -> tuple[Mesh, jax.Array]:
    """A mesh of all devices, and one row of ones a device."""
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    return mesh, jax.device_put(jnp.ones((mesh.size, WIDTH)), NamedSharding(mesh, P("replica")))


def explicit_collectives(steps: int) -> float:
    """`shard_map` with two `psum`s a step, the state donated."""
    mesh, rows = mesh_and_data()

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("replica")), out_specs=P())
    def step(state: jax.Array, row: jax.Array) -> jax.Array:
        total: jax.Array = jax.lax.psum(row.sum(0), "replica")
        again: jax.Array = jax.lax.psum(total, "replica")
        return state + again / mesh.size**2

    state: jax.Array = jax.device_put(jnp.zeros(WIDTH), NamedSharding(mesh, P()))
    for _ in range(steps):
        state = step(state, rows)
    return float(state[0])


def automatic_collectives(steps: int) -> float:
    """A plain `jit` whose collectives the compiler inserts."""
    mesh, rows = mesh_and_data()

    @partial(jax.jit, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
    def step(state: jax.Array, rows: jax.Array) -> jax.Array:
        return state + rows.mean(0)

    state: jax.Array = jax.device_put(jnp.zeros(WIDTH), NamedSharding(mesh, P()))
    for _ in range(steps):
        state = step(state, rows)
    return float(state[0])


def strategy_steps(steps: int) -> float:
    """`jd.function` around `strategy.run`: a collective, then a variable updated by aggregation."""

    def ones_row(context: Any) -> jax.Array:
        return jnp.ones(WIDTH)

    strategy = jd.MirroredStrategy()
    with strategy.scope():
        state = jd.Variable(jnp.zeros(WIDTH), aggregation=jd.VariableAggregation.MEAN)
    rows = strategy.experimental_distribute_values_from_function(ones_row)

    def replica_step(row: jax.Array) -> None:
        context = jd.get_replica_context()
        assert context is not None
        state.assign_add(context.all_reduce("MEAN", row))

    @jd.function
    def step(rows: Any) -> None:
        strategy.run(replica_step, args=(rows,))

    for _ in range(steps):
        step(rows)
    return float(state.numpy()[0])


# A loop takes the number of steps and returns what adds up to that number if no step was lost.
LOOPS: dict[str, Callable[[int], float]] = {
    loop.__name__: loop for loop in (explicit_collectives, automatic_collectives, strategy_steps)
}


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(name, "begins", flush=True)  # to be seen where it hangs
        print(jax.device_count(), LOOPS[name](int(sys.argv[1])))
