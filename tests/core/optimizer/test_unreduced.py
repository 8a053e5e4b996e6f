"""What replicas have of their own is refused in an update, wherever the variable and its slots lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, VariableError


def here() -> jd.ReplicaContext:
    context = jd.get_replica_context()
    assert context is not None
    return context


STRATEGIES: dict[str, tuple[Callable[[], jd.Strategy], dict[str, Any]]] = {
    "mirrored": (lambda: jd.MirroredStrategy(4), {"shard_update": False}),
    "mirrored, slots in slices": (lambda: jd.MirroredStrategy(4), {"shard_update": True}),
    "sharded": (lambda: jd.FullyShardedStrategy(min_bytes=0), {}),
    "central": (jd.experimental.CentralStorageStrategy, {}),
}
OWN: dict[str, Callable[[Any], Any]] = {
    "its rows": lambda x: x.sum(),
    "its number of rows": lambda x: float(x.shape[0]),
    "its number": lambda _: jnp.float32(here().replica_id_in_sync_group),
}


def scaled() -> optax.GradientTransformationExtraArgs:
    """Gradients times a number that `apply_gradients` is given."""
    slots = optax.trace(0.5)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        updates, state = slots.update(updates, state, params)
        return jax.tree.map(lambda one: -extra["factor"] * one, updates), state

    return optax.GradientTransformationExtraArgs(slots.init, update)


def stepped(name: str, rows: int, transform: Any, call: Callable[[Any, Any], None], *, compiled: bool) -> Any:
    strategy, options = STRATEGIES[name][0](), STRATEGIES[name][1]
    with strategy.scope():
        variable = jd.Variable(jnp.zeros(8))
        optimizer = jd.Optimizer(transform, [variable], **options)

    def step(batch: Any) -> None:
        strategy.run(lambda x: call(optimizer, x), args=batch)

    x = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2) + 1
    for batch in strategy.experimental_distribute_dataset([(x,)]):
        (jd.function(step) if compiled else step)(batch)
    return np.asarray(variable)


@pytest.mark.quick_cases(8, whole=True)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_of_a_replica_are_not_taken_as_reduced(name: str, own: str, rows: int, *, compiled: bool) -> None:
    if (own, rows) == ("its number of rows", 8):
        pytest.skip("all have as many")

    def call(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([jnp.full(8, 1.0) * OWN[own](x)], reduce_op=None)

    with pytest.raises((VariableError, ArgumentError), match=r"differ[\s\S]*HINT"):
        stepped(name, rows, optax.sgd(1.0, momentum=0.5), call, compiled=compiled)


@pytest.mark.parametrize("make", [jd.Model, None])
@pytest.mark.parametrize("transform", [optax.sgd(1.0), optax.adam(1.0)])
@pytest.mark.parametrize("rows", [8, 5])
def test_a_compiled_update_by_gradients_of_a_replica_names_its_line(rows: int, transform: Any, make: Any) -> None:
    strategy = jd.MirroredStrategy(4)
    with strategy.scope():
        variable = jd.Variable(jnp.zeros(8))
        owner = jd.Optimizer(transform, [variable]) if make is None else make({"w": jnp.zeros(8)}, transform)

    def update(x: Any) -> None:
        gradient = jnp.full(8, 1.0) * x.sum()
        owner.apply_gradients([gradient] if make is None else {"w": gradient}, None)

    x = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2) + 1
    line = update.__code__.co_firstlineno + 2
    (batch,) = strategy.experimental_distribute_dataset([(x,)])
    with pytest.raises(VariableError, match=rf"at .*{Path(__file__).name}:{line}\. HINT: .*leave reduce_op=None out"):
        jd.function(lambda batch: strategy.run(update, batch))(batch)


@pytest.mark.quick_cases(10, whole=True)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("name", STRATEGIES)
def test_reduced_gradients_are_taken_as_they_are(name: str, rows: int, *, compiled: bool) -> None:
    def call(optimizer: Any, x: Any) -> None:
        total = here().all_reduce("SUM", x.sum())
        optimizer.apply_gradients([jnp.arange(8.0) * total], reduce_op=None)

    found = stepped(name, rows, optax.sgd(1.0, momentum=0.5), call, compiled=compiled)
    np.testing.assert_allclose(found, -np.arange(8.0) * (np.arange(2.0 * rows) + 1).sum(), rtol=1e-6)


@pytest.mark.quick_cases(32, whole=True)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("shape", [(), (8,)])
@pytest.mark.parametrize("name", STRATEGIES)
def test_further_arguments_of_a_replica_are_refused(
    name: str, shape: tuple[int, ...], own: str, rows: int, *, compiled: bool
) -> None:
    if (own, rows) == ("its number of rows", 8):
        pytest.skip("all have as many")

    def call(optimizer: Any, x: Any) -> None:
        optimizer.apply_gradients([jnp.full(8, 1.0)], factor=jnp.full(shape, OWN[own](x)))

    with pytest.raises((VariableError, ArgumentError), match=r"differ[\s\S]*HINT"):
        stepped(name, rows, scaled(), call, compiled=compiled)
