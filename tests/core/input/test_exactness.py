"""A mean over a dataset that no batch divides is the mean over all of it: no replica without data spoils it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd

LARGEST = 2**20
"""Whole numbers below this add up without rounding, so that sums must be equal to the last bit."""


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(2, 5), st.integers(0, 9))
def test_sums_and_means_are_exact(examples: int, batch: int, replicas: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, LARGEST // examples, examples).astype(np.float32)
    strategy = jd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    dataset = strategy.experimental_make_numpy_dataset(values).shuffle(seed).batch(batch)
    total, count, largest = 0.0, 0, 0.0
    for element in strategy.experimental_distribute_dataset(dataset):
        mean = strategy.reduce(jd.ReduceOp.MEAN, element, axis=0)
        rows = sum(len(part) for part in strategy.experimental_local_results(element))
        assert np.isfinite(mean)
        total += float(strategy.reduce(jd.ReduceOp.SUM, element, axis=0))
        count += rows
        largest += float(mean) * rows
    assert count == examples
    assert total == float(values.sum(dtype=np.float64))
    assert largest == pytest.approx(total, rel=1e-5)


def test_replicas_without_data_take_part_in_a_step() -> None:
    strategy = jd.MirroredStrategy([f"cpu:{number}" for number in range(4)])
    dataset = strategy.experimental_make_numpy_dataset({"x": np.ones((5, 3), np.float32)}).batch(5)

    def replica_fn(batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        total = jd.get_replica_context().all_reduce(jd.ReduceOp.SUM, batch["x"].sum())  # pyright: ignore[reportOptionalMemberAccess]
        return total, jnp.full((), batch["x"].shape[0])

    (element,) = strategy.experimental_distribute_dataset(dataset)
    total, rows = strategy.run(replica_fn, args=(element,))
    assert float(strategy.experimental_local_results(total)[0]) == 15
    assert [int(part) for part in strategy.experimental_local_results(rows)] == [2, 2, 1, 0]
