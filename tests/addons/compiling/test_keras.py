"""Keras's `fit` compiled for devices that are not there: models of every kind, as they are."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import jax
import pytest

import jaxtribute as jd

if find_spec("libtpu") is None or find_spec("keras") is None:
    pytest.skip("the TPU compiler or Keras is missing", allow_module_level=True)

import keras_product

pytestmark = pytest.mark.slow
SAMPLE = "rate_callbacks", "bfloat16"
"""Of 20 kinds, the rest of which `keras_product --topology` compiles."""


@pytest.fixture(autouse=True)
def as_users_have_it() -> Any:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fit_is_compiled(name: str) -> None:
    found = keras_product.compiled(name, "v5e:2x2", jd.MirroredStrategy)
    assert (found.replicas, found.batch, found.copied, found.host) == (4, 8, (), 0)
    assert found.collectives
