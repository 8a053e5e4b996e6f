"""`jd.REPLICA_AXIS`: layers of other libraries that compute over the batches of all replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd

ROWS = np.random.default_rng(0).normal(3, 2, size=(8, 4)).astype(np.float32)


def over_replicas(normalise: Any) -> np.ndarray[Any, Any]:
    """The rows that a function of each replica's rows gives, in their order."""
    strategy = jd.MirroredStrategy([f"CPU:{number}" for number in range(4)])
    (rows,) = strategy.experimental_distribute_dataset([ROWS])
    results = jd.function(lambda rows: strategy.run(normalise, (rows,)))(rows)
    return np.concatenate([np.asarray(part) for part in strategy.experimental_local_results(results)])


def test_the_axis_is_that_of_the_replicas() -> None:
    strategy = jd.MirroredStrategy([f"CPU:{number}" for number in range(3)])
    found = jd.function(lambda: strategy.run(lambda: jax.lax.axis_index(jd.REPLICA_AXIS)))()
    assert [int(part) for part in strategy.experimental_local_results(found)] == [0, 1, 2]


def expected() -> np.ndarray[Any, Any]:
    return (ROWS - ROWS.mean(0)) / np.sqrt(ROWS.var(0) + 1e-5)


def test_batch_normalisation_of_nnx_sees_the_whole_batch() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def normalise(rows: Any) -> Any:
        return nnx.BatchNorm(4, axis_name=jd.REPLICA_AXIS, rngs=nnx.Rngs(0))(rows)

    np.testing.assert_allclose(over_replicas(normalise), expected(), rtol=1e-5, atol=1e-5)


def test_batch_normalisation_of_equinox_does() -> None:
    eqx = pytest.importorskip("equinox")

    def normalise(rows: Any) -> Any:
        layer = eqx.nn.BatchNorm(4, ("batch", jd.REPLICA_AXIS), mode="batch")
        state = eqx.nn.State(layer)
        return jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(jnp.asarray(rows), state)[0]

    np.testing.assert_allclose(over_replicas(normalise), expected(), rtol=1e-5, atol=1e-5)
