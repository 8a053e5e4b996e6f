"""Keras runs on JAX, and is not written for JAX at its strictest."""

import os
from collections.abc import Iterator

import jax
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")

import jaxtribute as jd


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it() -> Iterator[None]:
    """JAX's own promotion, also in the threads of replicas."""
    strict = jax.config.jax_numpy_dtype_promotion, jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_dtype_promotion", strict[0])
    jax.config.update("jax_numpy_rank_promotion", strict[1])


@pytest.fixture(scope="module")
def four() -> jd.Strategy:
    """Four replicas."""
    return jd.MirroredStrategy([f"CPU:{i}" for i in range(4)])
