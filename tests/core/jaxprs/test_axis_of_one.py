"""`jd.REPLICA_AXIS` in compiled programs of one replica: collectives over it give what they give on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import mirrored, one_device

AXIS = jd.REPLICA_AXIS
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "default": jd.get_strategy,
    "one device": lambda: one_device(1),
    "mirrored": lambda: mirrored(1),
    "fully sharded": lambda: jd.FullyShardedStrategy(["CPU:2"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0"]),
}
COLLECTIVES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sum": (lambda x: jax.lax.psum(x, AXIS), ROWS),
    "mean of a part": (lambda x: jax.lax.pmean(x.sum(), AXIS), ROWS.sum()),
    "maximum, compiled": (jax.jit(lambda x: jax.lax.pmax(x, AXIS)), ROWS),
    "index": (lambda _: jax.lax.axis_index(AXIS), 0),
    "size": (lambda _: jax.lax.axis_size(AXIS), 1),
    "gather": (lambda x: jax.lax.all_gather(x, AXIS), ROWS[None]),
    "gather, tiled": (lambda x: jax.lax.all_gather(x, AXIS, tiled=True), ROWS),
    "exchange": (lambda x: jax.lax.all_to_all(x[None], AXIS, 0, 0), ROWS[None]),
    "scattered sum": (lambda x: jax.lax.psum_scatter(x, AXIS, tiled=True), ROWS),
    "permutation": (lambda x: jax.lax.ppermute(x, AXIS, [(0, 0)]), ROWS),
    "in a loop": (lambda x: jax.lax.scan(lambda c, r: (c + jax.lax.psum(r.sum(), AXIS), c), 0.0, x)[0], 66.0),
    "in a branch": (lambda x: jax.lax.cond(jax.lax.axis_index(AXIS) == 0, lambda: x, lambda: -x), ROWS),
    "gradient": (jax.grad(lambda y: jax.lax.psum((y**2).sum(), AXIS)), 2 * ROWS),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives_over_one_replica(name: str, collective: str) -> None:
    strategy = STRATEGIES[name]()
    fn, expected = COLLECTIVES[collective]
    np.testing.assert_array_equal(jd.function(lambda x: strategy.run(fn, (x,)))(ROWS), expected)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_step_over_the_axis_trains_as_on_one_replica(replicas: int) -> None:
    strategy = one_device(0) if replicas == 1 else mirrored(replicas)
    with strategy.scope():
        w, count = jd.Variable(jnp.ones(3)), jd.Variable(0.0, aggregation="mean")
        optimizer = jd.Optimizer(optax.sgd(0.1), [w])

    def replica(rows: Any) -> Any:
        loss, grads = jd.value_and_grad(lambda: jnp.mean((rows @ w.read_value() - 1) ** 2), [w])()
        count.assign_add(jax.lax.psum(jnp.float32(len(rows)), AXIS))
        optimizer.apply_gradients([jax.lax.pmean(grads[0], AXIS) / strategy.num_replicas_in_sync])
        return jax.lax.pmean(loss, AXIS)

    step = jd.function(lambda rows: strategy.run(replica, (rows,)))
    expected = jnp.ones(3)
    for _ in range(3):
        (rows,) = strategy.experimental_distribute_dataset([ROWS / 12])
        value, slope = jax.value_and_grad(lambda w: jnp.mean((ROWS / 12 @ w - 1) ** 2))(expected)
        found = strategy.experimental_local_results(step(rows))[0]
        np.testing.assert_allclose(found, value, rtol=1e-5)
        expected -= 0.1 * slope
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)
    assert count.numpy() == 12


def test_outside_of_replica_functions_there_is_no_axis() -> None:
    with pytest.raises(NameError, match="replica"):
        jd.function(lambda: jax.lax.psum(1.0, AXIS))()
