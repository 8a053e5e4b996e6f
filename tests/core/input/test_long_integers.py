"""Integers of 64 bits that do not fit into the 32 that JAX has by default are never cut off without a word."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import mirrored, one_device

LONG = np.array([1, 2**31, 3, 2**40 + 7])
STRATEGIES = {"one device": lambda: one_device(0), "mirrored": lambda: mirrored(2), "three": lambda: mirrored(3)}
each_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


@each_strategy
@pytest.mark.parametrize("buffer", [0, 2])
@pytest.mark.parametrize("ids", [LONG, LONG.astype(np.uint64), -LONG])
def test_a_dataset_says_it_once(make: Callable[[], jd.Strategy], buffer: int, ids: Any) -> None:
    options = jd.InputOptions(experimental_per_replica_buffer_size=buffer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [{"x": np.ones(4, np.float32), "ids": one} for one in (np.arange(4), ids, ids)]
        assert len(list(make().experimental_distribute_dataset(batches, options))) == 3
    (warning,) = caught
    assert "ids" in str(warning.message)
    assert str(int(ids[3])) in str(warning.message)
    assert "HINT" in str(warning.message)


@each_strategy
def test_a_dataset_on_the_host_keeps_them(make: Callable[[], jd.Strategy]) -> None:
    options = jd.InputOptions(experimental_fetch_to_device=False)
    (batch,) = make().experimental_distribute_dataset([LONG], options)
    parts = batch.values if isinstance(batch, jd.PerReplica) else [batch]
    np.testing.assert_array_equal(np.concatenate(parts), LONG)


@each_strategy
def test_elsewhere_they_are_refused(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    for call in (
        lambda: jd.function(lambda x: x)(LONG),
        lambda: strategy.place(LONG),
        lambda: strategy.experimental_distribute_values_from_function(lambda _: LONG),
        lambda: jd.Variable(LONG),
    ):
        with pytest.raises(jd.errors.ArgumentError, match="HINT"):
            call()
    small = np.array([1, 2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(jd.function(lambda x: x + jnp.zeros_like(x))(small), small)
