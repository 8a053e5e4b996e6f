"""Replicas of several devices under the TPU's compiler, against the same step by hand; nothing runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxtribute as jd
from jaxtribute._src.addons.compiling.report import as_dict, text
from jaxtribute._src.addons.compiling.step import CompiledStep
from jaxtribute._src.addons.compiling.topologies import topology_named
from jaxtribute._src.addons.tools.hlo.exchanges import collectives

pytest.importorskip("libtpu")
TOPOLOGY = "v5e:2x4"
WIDTH, UNITS, ROWS = 512, 2048, 64
LAYOUTS = {"up": (None, "model"), "down": ("model",)}
TRANSFORM = optax.adam(1e-3)


def network(up: Any, down: Any, x: Any) -> Any:
    return (jax.nn.gelu(x @ up) @ down - x) ** 2


def train(strategy: jd.Strategy) -> None:
    with strategy.scope():
        up = jd.Variable(lambda: jnp.zeros((WIDTH, UNITS)), name="up")
        down = jd.Variable(lambda: jnp.zeros((UNITS, WIDTH)), name="down")
        optimizer = jd.Optimizer(TRANSFORM, [up, down])

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            each = network(up.read_value(), down.read_value(), x).mean(-1)
            return jd.nn.compute_average_loss(each, global_batch_size=ROWS)

        value, gradients = jd.value_and_grad(loss, [up, down])()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (x,)), axis=None)

    (x,) = strategy.experimental_distribute_dataset([np.zeros((ROWS, WIDTH), np.float32)])
    step(x)


def compiled(kind: Any, each: int, layout: Any = LAYOUTS) -> CompiledStep:
    with jax.numpy_dtype_promotion("standard"):
        return jd.experimental.compile_for(TOPOLOGY, lambda: train(kind(devices_per_replica=each, layout=layout)))


def by_hand(each: int) -> tuple[Any, int]:
    """The same step by `jit` and `NamedSharding`: the compiled program, and the bytes of its collectives."""
    devices = np.array(topology_named(TOPOLOGY).devices, dtype=object)
    mesh = Mesh(devices.reshape(-1, each), ("data", "model"))

    def aval(shape: tuple[int, ...], *spec: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    params: Any = [aval((WIDTH, UNITS), None, "model"), aval((UNITS, WIDTH), "model")]
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=next((p.sharding for p in params if p.shape == leaf.shape), NamedSharding(mesh, P())),
        ),
        jax.eval_shape(TRANSFORM.init, params),
    )

    def step(params: Any, state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: network(p[0], p[1], x).mean(-1).sum() / ROWS)(params)
        updates, state = TRANSFORM.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    places = jax.tree.map(lambda leaf: leaf.sharding, (params, state))
    with jax.numpy_dtype_promotion("standard"):
        program = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*places, NamedSharding(mesh, P())))
        made = program.lower(params, state, aval((ROWS, WIDTH), "data")).compile()
    return made, sum(one.nbytes for one in collectives(made.as_text() or "", devices.size // each))


@pytest.mark.slow
@pytest.mark.parametrize("each", [2, 4, 8])
def test_the_program_is_as_good_as_one_by_hand(each: int) -> None:
    found = compiled(jd.MirroredStrategy, each)
    hand, moved = by_hand(each)
    costs = hand.cost_analysis()
    assert (found.replicas, len(found.devices)) == (8 // each, 8)
    assert found.donated >= found.state
    assert not found.copied
    assert found.host == 0
    assert found.flops <= 1.02 * costs["flops"]
    assert found.traffic <= 1.02 * costs["bytes accessed"]
    assert sum(one.nbytes for one in found.collectives) <= 1.02 * moved
    assert found.held.scratch <= 1.02 * hand.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_is_divided_by_devices() -> None:
    whole = 3 * 2 * WIDTH * UNITS * 4
    mirrored, sharded = compiled(jd.MirroredStrategy, 4), compiled(jd.FullyShardedStrategy, 4)
    assert mirrored.state <= whole / 4 * 1.01
    assert sharded.state <= whole / 8 * 1.01
    assert sharded.donated >= sharded.state


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parts"), [(jd.MirroredStrategy, 4), (jd.FullyShardedStrategy, 8)])
def test_an_automatic_layout_of_devices_that_are_not_there(kind: Any, parts: int) -> None:
    found = compiled(kind, 4, jd.experimental.AutomaticLayout(tries=1))
    up, down = found.layout.splitlines()[1:]
    assert ("split by columns" in up) != ("split by columns" in down)  # then rows in the other one: one sum for both
    assert ("split by rows" in up) != ("split by rows" in down)
    assert found.state <= 3 * 2 * WIDTH * UNITS * 4 / parts * 1.01
    assert found.layout in text(as_dict(found))
