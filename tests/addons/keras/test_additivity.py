"""Which updates add to what they find."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxtribute._src.addons.keras.additivity import check_additive
from jaxtribute.errors import VariableError

BATCH = jnp.arange(4.0)

ADDS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda v: v,
    "sum": lambda v: v + BATCH.sum(),
    "the other way round": lambda v: BATCH.sum() + v,
    "twice": lambda v: (v + 1.0) - BATCH.max(),
    "inside jit": lambda v: jax.jit(lambda x, y: x + y)(v, BATCH.sum()),
    "in another shape": lambda v: (v.reshape(1) + BATCH[1:2]).reshape(()),
    "same type": lambda v: (v + 1.0).astype(v.dtype),
    "row by row": lambda v: lax.scan(lambda total, row: (total + row, None), v, BATCH)[0],
    "if the batch says so": lambda v: lax.cond(BATCH[0] > 0, lambda: v + 1.0, lambda: v),
    "so many times": lambda v: lax.fori_loop(0, BATCH.astype(int)[2], lambda _, total: total + 1.0, v),
}
DOES_NOT_ADD: dict[str, Callable[[Any], Any]] = {
    "largest": lambda v: jnp.maximum(v, BATCH.max()),
    "last": lambda v: jnp.copy(BATCH[0]),
    "decay": lambda v: 0.9 * v + BATCH.sum(),
    "doubled": lambda v: v + v,
    "the rest": lambda v: BATCH.sum() - v,
    "inside jit": jax.jit(lambda v: v * 2),
    "doubled row by row": lambda v: lax.scan(lambda total, row: (total * 2 + row, None), v, BATCH)[0],
    "if it says so": lambda v: lax.cond(v > 0, lambda: v + 1.0, lambda: v),
    "or not at all": lambda v: lax.cond(BATCH[0] > 0, lambda: v + 1.0, lambda: 0.0),
    "until it is enough": lambda v: lax.while_loop(lambda total: total < 9, lambda total: total + 1.0, v),
    "rounded": lambda v: (v + 1.0).astype(jnp.float16).astype(jnp.float32),
}


def model(variable: Any) -> Any:
    class Own:
        name, variables = "own", (variable,)

    return SimpleNamespace(metrics=[SimpleNamespace(metrics=[Own()])])


@pytest.mark.parametrize("name", ADDS)
def test_sums(name: str) -> None:
    variable = SimpleNamespace(aggregation="sum", name="total")
    check_additive(model(variable), [variable], [jnp.float32(1)], lambda values: [ADDS[name](values[0])])


@pytest.mark.parametrize("name", DOES_NOT_ADD)
def test_other_updates(name: str) -> None:
    variable = SimpleNamespace(aggregation="sum", name="total")
    with pytest.raises(VariableError, match=r"'own' \(Own\) does not add what it finds in a batch to its variable"):
        check_additive(model(variable), [variable], [jnp.float32(1)], lambda v: [DOES_NOT_ADD[name](v[0])])


def test_variables_must_not_be_swapped() -> None:
    pair = [SimpleNamespace(aggregation="sum", name=name) for name in "ab"]
    with pytest.raises(VariableError, match="'a'"):
        check_additive(model(pair[0]), pair, [jnp.float32(1)] * 2, lambda values: [values[1] + 1.0, values[0] + 1.0])


def test_other_aggregations_and_keras_own_metrics_are_not_looked_at() -> None:
    variable = SimpleNamespace(aggregation="mean", name="average")

    def fail(_: Any) -> Any:
        raise AssertionError

    check_additive(model(variable), [variable], [jnp.float32(1)], fail)
