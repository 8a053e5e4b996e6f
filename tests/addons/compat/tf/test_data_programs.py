"""Datasets of `compat.tf` give what TensorFlow 2.21 gave: elements in each pass, their specs and their number."""

import itertools
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute.compat.tf as tf
from compat.tf.data_programs import PROGRAMS, described, described_spec, generated

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data_programs.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def with_64_bits() -> Generator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def test_everything_is_recorded() -> None:
    assert list(RECORDED) == PROGRAMS


@pytest.mark.quick_cases(40, whole=True)
@pytest.mark.parametrize("text", PROGRAMS)
def test_gives_what_tensorflow_gives(text: str) -> None:
    dataset = eval(text, {"tf": tf, "np": np, **generated(tf)})
    cardinality, spec, elements = RECORDED[text]
    assert described_spec(dataset.element_spec) == spec
    assert dataset.cardinality() == cardinality
    for iterate in (iter, iter, lambda dataset: dataset.as_numpy_iterator()):
        assert json.loads(json.dumps([described(one) for one in itertools.islice(iterate(dataset), 9)])) == elements
