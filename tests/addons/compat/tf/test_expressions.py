"""What `compat.tf` computes is what TensorFlow 2.21 computed, types included."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute.compat.tf as tf
from compat.tf.expressions import EXPRESSIONS

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "expressions.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def as_tensorflow() -> Generator[None]:
    """64-bit types, and arrays of different rank broadcast."""
    settings = {"jax_enable_x64": True, "jax_numpy_rank_promotion": "allow"}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def check(seen: Any, recorded: Any) -> None:
    if isinstance(recorded, dict):
        array = np.asarray(seen)
        assert array.dtype.name == recorded["dtype"]
        np.testing.assert_allclose(array, recorded["values"], rtol=1e-5, atol=1e-6)
    elif isinstance(recorded, list):
        assert len(seen) == len(recorded)
        for part, expected in zip(seen, recorded, strict=True):
            check(part, expected)
    else:
        assert seen == recorded


def test_everything_is_recorded() -> None:
    assert list(RECORDED) == EXPRESSIONS


@pytest.mark.quick_cases(49, whole=True)
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_gives_what_tensorflow_gives(text: str) -> None:
    check(eval(text, {"tf": tf, "np": np}), RECORDED[text])
