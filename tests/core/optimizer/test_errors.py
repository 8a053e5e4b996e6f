"""What `jd.Optimizer` refuses, and how it says so."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, StrategyMixError
from replicas import mirrored, variable

FOUR = mirrored(4)
STRANGER = variable(FOUR, np.zeros(2, np.float32), name="c")
A, B = jnp.ones((3, 5)), jnp.ones(2)


@pytest.fixture(scope="module")
def pair() -> tuple[jd.Variable, jd.Variable, jd.Optimizer]:
    a, b = variable(FOUR, np.zeros((3, 5), np.float32), name="a"), variable(FOUR, np.zeros(2, np.float32), name="b")
    return a, b, jd.Optimizer(optax.adam(1.0), [a, b])


Make = Callable[[Any, Any], Any]
GRADIENTS: dict[str, tuple[Make, type[Exception], str]] = {
    "one missing": (lambda a, b: [A], ArgumentError, r"1 gradients for 2 variables\. HINT: pass one for each"),
    "none at all": (lambda a, b: [], ArgumentError, "0 gradients for 2 variables"),
    "one too many": (lambda a, b: [A, B, B], ArgumentError, "3 gradients for 2 variables"),
    "a pair missing": (lambda a, b: [(B, b)], ArgumentError, r"2 variables: missing \['a:0'\], not its own \[\]"),
    "a pair twice": (lambda a, b: [(A, a), (B, b), (B, b)], ArgumentError, r"not its own \[\], 1 given twice\. HINT"),
    "a stranger": (
        lambda a, b: [(A, a), (B, b), (B, STRANGER)],
        ArgumentError,
        r"missing \[\], not its own \['c:0'\].*HINT: pass exactly one pair",
    ),
    "None": (lambda a, b: [None, B], ArgumentError, r"the gradient of a:0 is None\. HINT: pass zeros"),
    "None in a pair": (lambda a, b: [(A, a), (None, b)], ArgumentError, "the gradient of b:0 is None"),
    "another order": (lambda a, b: [B, A], ShapeError, r"of a:0 has shape \(2,\), the variable \(3, 5\)\. HINT"),
    "a wrong shape in a pair": (lambda a, b: [(A.T, a), (B, b)], ShapeError, r"has shape \(5, 3\)"),
    "numbers": (lambda a, b: [1.0, B], ShapeError, r"has shape \(\), the variable \(3, 5\)"),
    "numbers of each replica": (
        lambda a, b: [jd.PerReplica.from_parts([1.0, 2.0, 3.0, 4.0], FOUR.extended.mesh), B],
        ShapeError,
        r"has shape \(\)",
    ),
    "pairs the wrong way round": (lambda a, b: [(a, A), (b, B)], ArgumentError, "4 gradients for 2 variables"),
}


@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients(what: str, pair: tuple[jd.Variable, jd.Variable, jd.Optimizer]) -> None:
    a, b, optimizer = pair
    make, kind, message = GRADIENTS[what]
    with pytest.raises(kind, match=message):
        optimizer.apply_gradients(make(a, b))
    with pytest.raises(kind, match=message):
        jd.function(lambda: FOUR.run(lambda: optimizer.apply_gradients(make(a, b))))()
    assert not a.numpy().any()
    assert not b.numpy().any()


def test_an_unknown_reduction(pair: tuple[jd.Variable, jd.Variable, jd.Optimizer]) -> None:
    with pytest.raises(ArgumentError, match=r"unknown reduce_op 'max'.*HINT"):
        pair[2].apply_gradients([A, B], reduce_op="max")  # pyright: ignore[reportArgumentType]


def test_variables() -> None:
    v = variable(FOUR, 0.0, name="v")
    with pytest.raises(ArgumentError, match=r"variables holds nothing\. HINT"):
        jd.Optimizer(optax.sgd(1.0), [])
    with pytest.raises(ArgumentError, match=r"holds \['ArrayImpl', 'Variable'\]\. HINT: jd.Optimizer updates"):
        jd.Optimizer(optax.sgd(1.0), [jnp.ones(2), v])
    with pytest.raises(ArgumentError, match=r"listed twice among \['v:0', 'v:0'\]\. HINT"):
        jd.Optimizer(optax.sgd(1.0), [v, v])
    with pytest.raises(StrategyMixError, match=r"w:0 belongs to <DefaultStrategy.*v:0 to <Mirrored.*HINT"):
        jd.Optimizer(optax.sgd(1.0), [v, jd.Variable(0.0, name="w")])


def test_options() -> None:
    v = variable(FOUR, 0.0)
    with pytest.raises(ArgumentTypeError, match=r"transform is 0.1 of type float\. HINT: pass an Optax"):
        jd.Optimizer(0.1, [v])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"shard_update is 'always'\. HINT: pass True, False or 'auto'"):
        jd.Optimizer(optax.sgd(0.1), [v], shard_update="always")  # pyright: ignore[reportArgumentType]


def test_another_strategys_gradients() -> None:
    v = variable(FOUR, np.zeros(2, np.float32))
    optimizer = jd.Optimizer(optax.sgd(0.1), [v])
    other = mirrored(2)
    with pytest.raises(StrategyMixError, match="HINT: use the strategy that made the value"):
        optimizer.apply_gradients([other.run(lambda: jnp.ones(2) * 1)])
    with pytest.raises(StrategyMixError, match="HINT: create variables and run steps under one strategy"):
        jd.function(lambda: other.run(lambda: optimizer.apply_gradients([jnp.ones(2)])))()
    assert not v.numpy().any()
