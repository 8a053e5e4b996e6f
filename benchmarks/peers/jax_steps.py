"""A training step by jaxtribute and by hand, in one process or in the processes of a cluster (`TF_CONFIG`).

python -m benchmarks.peers.jax_steps --problem 64-256-10 --batch 64 --devices 4 --contender jaxtribute
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.peers.arguments import Asked, Step, parse, timed
from benchmarks.problems import LEARNING_RATE, MOMENTUM, Problem

CALL = 16
"""Steps a call of `jaxtribute-16`."""
PACKED_BYTES = 1 << 20
ELASTIC = "jaxtribute-elastic"
LOCAL = "jaxtribute-local-"
"""Before the number of steps between two meetings; perhaps the type in which changes travel, and for how many steps:
`-int8-overlap48`."""
OVERLAP = "overlap"
WIRE = "jaxtribute-wire-"
"""Before the type in which gradients travel."""


class Operations:
    """Of JAX."""

    relu, softmax, log_softmax = map(staticmethod, (jax.nn.relu, jax.nn.softmax, jax.nn.log_softmax))
    tanh, sqrt, reshape, transpose, sum = map(staticmethod, (jnp.tanh, jnp.sqrt, jnp.reshape, jnp.transpose, jnp.sum))

    def mean_last(self, x: Any) -> Any:
        return x.mean(-1, keepdims=True)

    def as_float(self, x: Any) -> Any:
        return x.astype(jnp.float32)

    def pick(self, rows: Any, columns: Any) -> Any:
        return jnp.take_along_axis(rows, columns[:, None], 1)

    def conv(self, x: Any, kernel: Any, stride: int) -> Any:
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), [(1, 1), (1, 1)], dimension_numbers=dimensions)


OPS: Any = Operations()


def loss_value(loss: Any) -> float:
    """Waits for a loss, which is the same on all devices."""
    if isinstance(loss, jax.Array):
        loss = loss.addressable_shards[0].data
    return float(np.asarray(loss).reshape(-1)[-1])


def packed_psum(grads: Sequence[Any]) -> list[Any]:
    """Sums over the replicas: one collective for all arrays up to 1 MB, one for each larger one."""
    small = [i for i, grad in enumerate(grads) if grad.nbytes <= PACKED_BYTES]
    sums = [jax.lax.psum(grad, "replica") if i not in small else grad for i, grad in enumerate(grads)]
    buffer, offset = jnp.zeros(sum(grads[i].size for i in small), jnp.float32), 0
    for i in small:
        buffer = jax.lax.dynamic_update_slice(buffer, grads[i].reshape(-1), (offset,))
        offset += grads[i].size
    buffer, offset = jax.lax.psum(buffer, "replica"), 0
    for i in small:
        sums[i] = buffer[offset : offset + grads[i].size].reshape(grads[i].shape)
        offset += grads[i].size
    return sums


def by_hand(kind: str, problem: Problem, devices: Sequence[Any]) -> Step:
    """The step as a JAX user writes it.

    Args:
      kind: `named-sharding` (jit), `shard-map` (one psum a gradient), `shard-map-packed` (small ones share one) or
        `no-communication` (each replica for itself: wrong, and what there is besides communication).
      problem: what is trained.
      devices: the replicas' devices, over all processes.
    """

    def loss(params: Any, data: Any) -> Any:
        return problem.loss(OPS, params, *data) / problem.batch

    def update(params: Any, momenta: Any, grads: Any) -> tuple[Any, Any]:
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, grads, strict=True)]
        return [p - LEARNING_RATE * m for p, m in zip(params, momenta, strict=True)], momenta

    def whole(params: Any, momenta: Any, data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, data)
        return *update(params, momenta, grads), value

    def local(params: Any, momenta: Any, data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, data)
        if kind == "no-communication":
            return *update(params, momenta, grads), value * 0
        if kind == "shard-map-packed":
            *grads, value = packed_psum([*grads, value])
        else:
            grads, value = [jax.lax.psum(g, "replica") for g in grads], jax.lax.psum(value, "replica")
        return *update(params, momenta, grads), value

    mesh = Mesh(np.array(devices), ("replica",))
    copies, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("replica"))
    if kind != "named-sharding":
        whole = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), P("replica")), out_specs=P(), check_vma=False)
    if len(devices) == 1:
        copies = split = jax.sharding.SingleDeviceSharding(devices[0])
    step = jax.jit(whole, donate_argnums=(0, 1), out_shardings=copies)

    def put(array: Any, sharding: Any) -> Any:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    state = [[put(p, copies) for p in problem.params], [put(np.zeros_like(p), copies) for p in problem.params]]
    data = tuple(put(array, split) for array in problem.data)

    def run() -> Any:
        state[0], state[1], value = step(state[0], state[1], data)
        return value

    return timed(run, loss_value, 16 if len(devices) > 1 else 0)


def replica_step_of(problem: Problem, strategy: Any, transform: Any, shard_update: bool | str = "auto") -> Any:
    """One replica's part of a step as a user of the library writes it, a function of its part of the data.

    Args:
      problem: what is trained.
      strategy: in whose scope the variables are made.
      transform: the Optax transformation.
      shard_update: as `jd.Optimizer` has it.
    """
    import jaxtribute as jd

    with strategy.scope():
        variables = [jd.Variable(p) for p in problem.params]
    optimizer = jd.Optimizer(transform, variables, shard_update=shard_update)

    def replica_step(*data: Any) -> Any:
        def mean_loss() -> Any:
            return problem.loss(OPS, [v.read_value() for v in variables], *data) / problem.batch

        value, grads = jd.value_and_grad(mean_loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    return replica_step


def by_jaxtribute(kind: str, problem: Problem, strategy: Any) -> Step:
    """The step as a user of the library writes it; `jaxtribute-16` runs 16 steps a call.

    `jaxtribute-sharded` and `-whole` shard the update or not, `-no-loss` does not reduce the loss, and `-ring` has been
    told to use Gloo's ring. `jaxtribute-elastic` is a strategy whose processes are islands, `jaxtribute-local-50` one
    whose islands meet after 50 steps, and `jaxtribute-wire-bfloat16` has gradients travel so.
    """
    import optax

    import jaxtribute as jd

    shard_update = {"jaxtribute-sharded": True, "jaxtribute-whole": False}.get(kind, "auto")
    replica_step = replica_step_of(problem, strategy, optax.sgd(LEARNING_RATE, momentum=MOMENTUM), shard_update)

    def one(data: Any) -> Any:
        if kind == "jaxtribute-no-loss":
            strategy.run(replica_step, data)
            return jnp.float32(0)
        losses = strategy.run(replica_step, data)
        return losses if kind.startswith(LOCAL) else strategy.reduce("SUM", losses, axis=None)

    count = strategy.num_replicas_in_sync
    if kind.startswith(LOCAL):
        # Losses are each island's own, and nothing that could be compared.
        (data,) = strategy.experimental_distribute_dataset([problem.data])
        step = jd.function(one)
        return timed(lambda: step(data), lambda loss: 0 * loss_value(loss))
    if kind == ELASTIC:
        # Each island has the whole batch, and takes its rows of it within the step.
        (data,) = strategy.experimental_distribute_dataset([problem.data])
        step = jd.function(one)
        return timed(lambda: step(data), loss_value)
    data = tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, i=i: problem.part(context.replica_id_in_sync_group, count)[i]
        )
        for i in range(2)
    )
    if kind == f"jaxtribute-{CALL}":
        several = jd.function(lambda data: jnp.stack([one(data) for _ in range(CALL)]))

        def run(steps: int) -> tuple[float, float]:
            assert steps % CALL == 0, f"{steps} steps are no multiple of {CALL}"
            seconds, loss = timed(lambda: several(data), loss_value)(steps // CALL)
            return seconds / CALL, loss

        return run
    step = jd.function(one)
    return timed(lambda: step(data), loss_value)


def all_reduce(problem: Problem, strategy: Any) -> dict[str, Step]:
    """The sum of a row over the replicas, by the library and by a bare `psum`; each call is waited for."""
    import jaxtribute as jd

    rows = strategy.experimental_distribute_values_from_function(
        lambda context: problem.part(context.replica_id_in_sync_group, strategy.num_replicas_in_sync)[0][0]
    )
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    flat = problem.data[0].reshape(-1)
    array = jax.make_array_from_callback(flat.shape, NamedSharding(mesh, P("replica")), lambda index: flat[index])

    def replica(row: Any) -> Any:
        return jd.get_replica_context().all_reduce("SUM", row)  # pyright: ignore[reportOptionalMemberAccess]

    @jd.function
    def library(rows: Any) -> Any:
        return strategy.run(replica, (rows,))

    bare = jax.jit(
        jax.shard_map(
            lambda row: jax.lax.psum(row, "replica"), mesh=mesh, in_specs=P("replica"), out_specs=P(), check_vma=False
        )
    )

    def wait(result: Any) -> float:
        return float(np.asarray(jax.tree.leaves(result)[0].addressable_shards[0].data[:1])[0])

    return {
        "jaxtribute-all-reduce": timed(lambda: library(rows), wait, 1),
        "psum": timed(lambda: bare(array), wait, 1),
    }


def join_by_hand() -> None:
    """What a user of `jax.distributed` does."""
    task = json.loads(os.environ["TF_CONFIG"])
    workers = task["cluster"]["worker"]
    jax.distributed.initialize(workers[0], len(workers), task["task"]["index"])


def contenders(asked: Asked) -> dict[str, Step]:
    """The steps that were asked for."""
    clustered, strategy = "TF_CONFIG" in os.environ, None
    if asked.plain:
        jax.config.update("jax_num_cpu_devices", asked.devices)
        if clustered:
            join_by_hand()
    else:
        import jaxtribute as jd

        jd.config.set_logical_cpu_devices(asked.devices)
        names = [f"cpu:{i}" for i in range(asked.devices)]
        if asked.contenders == [ELASTIC]:
            strategy = jd.experimental.ElasticStrategy()
        elif asked.contenders[0].startswith(LOCAL):
            every, *more = asked.contenders[0].removeprefix(LOCAL).split("-")
            overlap = sum(int(each.removeprefix(OVERLAP)) for each in more if each.startswith(OVERLAP))
            wire = next((each for each in more if not each.startswith(OVERLAP)), None)
            strategy = jd.experimental.ElasticStrategy(
                sync_every=int(every),
                overlap_steps=overlap,
                communication_options=jd.experimental.CommunicationOptions(wire=wire),
            )
        elif clustered:
            wire = next((name.removeprefix(WIRE) for name in asked.contenders if name.startswith(WIRE)), None)
            options = jd.experimental.CommunicationOptions(wire=wire)
            strategy = jd.MultiWorkerMirroredStrategy(communication_options=options)
        else:
            strategy = jd.OneDeviceStrategy(names[0]) if asked.devices == 1 else jd.MirroredStrategy(names)
    if sums := {"psum", "jaxtribute-all-reduce"}.intersection(asked.contenders):
        return {name: step for name, step in all_reduce(asked.problem, strategy).items() if name in sums}
    ring = strategy
    if "jaxtribute-ring" in asked.contenders:
        import jaxtribute as jd

        options = jd.experimental.CommunicationOptions(implementation="RING")
        ring = jd.MultiWorkerMirroredStrategy(communication_options=options)
    return {
        name: by_jaxtribute(name, asked.problem, ring if name.endswith("-ring") else strategy)
        if name.startswith("jaxtribute")
        else by_hand(name, asked.problem, jax.devices())
        for name in asked.contenders
    }


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from benchmarks.harness import serve

    serve(contenders(parse()))
