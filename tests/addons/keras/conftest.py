"""Keras runs on JAX, and is not written for JAX at its strictest."""

import os
from collections.abc import Iterator

import jax
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")

# Before any module of the integration: a scope may have been entered, and then importing Keras loads all of them.
import keras as keras

import jaxtribute as jd


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it() -> Iterator[None]:
    """JAX's own promotion, also in the threads of replicas."""
    names = "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"
    strict = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, ("standard", "allow"), strict=True):
        jax.config.update(name, value)
    with jd.OneDeviceStrategy("CPU:0").scope():
        pass  # the first scope finds Keras
    yield
    for name, value in zip(names, strict, strict=True):
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def four() -> jd.Strategy:
    """Four replicas."""
    return jd.MirroredStrategy([f"CPU:{i}" for i in range(4)])
