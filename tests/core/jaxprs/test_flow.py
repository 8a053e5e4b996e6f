"""Analyses of programs follow values through calls, loops and conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxtribute._src.addons.parameter_servers.variables.optimizer import check_separable
from jaxtribute._src.core.jaxprs.core import JaxprEqn, opened
from jaxtribute._src.core.jaxprs.flow import Flow
from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.optimizer.slots import optax_rules
from jaxtribute.errors import ArgumentError


class Sources(Flow[frozenset[int]]):
    """Which inputs a value depends on."""

    def merged(self, one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
        return one | other

    def equation(self, eqn: JaxprEqn, given: list[frozenset[int]]) -> list[frozenset[int]]:
        return [frozenset[int]().union(*given)] * len(eqn.outvars)


COUNT = 4


def sources(fn: Callable[..., Any]) -> list[frozenset[int]]:
    jaxpr = opened(jax.make_jaxpr(fn)(*[jnp.float32(1)] * COUNT))
    return Sources(frozenset()).outputs(jaxpr, [frozenset({i}) for i in range(COUNT)])


def depends(fn: Callable[..., Any]) -> list[set[int]]:
    """Which inputs change each output, found by changing them."""
    base = np.array([0.3, 1.7, -0.9, 2.1], np.float32)
    plain = [float(one) for one in fn(*base)]
    found: list[set[int]] = [set() for _ in plain]
    for i in range(COUNT):
        for other in (-1.3, 0.1, 5.9):
            changed = base.copy()
            changed[i] = other
            for place, value in enumerate(fn(*changed)):
                if float(value) != plain[place]:
                    found[place].add(i)
    return found


Program = Callable[..., tuple[Any, ...]]
places = st.integers(0, COUNT - 1)


def step(kind: str, a: int, b: int, c: int) -> Program:
    """One operation on the values, which takes places `a` and `b` and writes place `c`."""

    def added(*values: Any) -> tuple[Any, ...]:
        new = list(values)
        if kind == "add":
            new[c] = values[a] + values[b]
        elif kind == "constant":
            new[c] = jnp.float32(2)
        elif kind == "swap":
            new[a], new[c] = values[c], values[a]
        elif kind == "where":
            new[c] = jnp.where(values[a] > 0, values[b], values[c])
        else:
            new[c] = jnp.sin(values[a])
        return tuple(new)

    return added


def chained(steps: list[Program]) -> Program:
    def run(*values: Any) -> tuple[Any, ...]:
        for one in steps:
            values = one(*values)
        return values

    return run


def nested(kind: str, at: int, inner: Program) -> Program:
    """A program inside a loop, a condition or a call."""

    def counted(state: Any) -> Any:
        return state[0] + 1, inner(*state[1])

    def run(*values: Any) -> tuple[Any, ...]:
        if kind == "jit":
            return jax.jit(inner)(*values)
        if kind == "remat":
            return jax.checkpoint(inner)(*values)
        if kind == "scan":
            return lax.scan(lambda carry, _: (inner(*carry), None), values, None, length=3)[0]
        if kind == "cond":
            return lax.cond(values[at] > 0, inner, lambda *same: same, *values)
        times = jnp.abs(values[at]).astype(jnp.int32) % 3 + 1
        return lax.while_loop(lambda state: state[0] < times, counted, (0, values))[1]

    return run


steps = st.builds(step, st.sampled_from(["add", "constant", "swap", "where", "sin"]), places, places, places)
flat = st.lists(steps, min_size=1, max_size=3).map(chained)
kinds = st.sampled_from(["jit", "remat", "scan", "cond", "while"])
deep = st.recursive(flat, lambda inner: st.builds(nested, kinds, places, inner), max_leaves=2)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(deep, min_size=1, max_size=2).map(chained))
def test_no_dependence_is_missed(program: Program) -> None:
    for told, found in zip(sources(program), depends(program), strict=True):
        assert found <= told


def test_what_a_loop_carries_reaches_all_that_it_touches() -> None:
    def shift(*values: Any) -> tuple[Any, ...]:
        return lax.scan(lambda carry, _: ((*carry[1:], carry[0] * 0), None), values, None, length=9)[0]

    assert all(one == {0, 1, 2, 3} for one in sources(shift))


class Split:
    """A variable whose rows lie on several servers."""

    shape, dtype, name = (4, 3), jnp.dtype("float32"), "table"

    class layout:  # noqa: N801
        split = True


def scanned(table: Any) -> Any:
    return lax.scan(lambda carry, row: (carry + row, carry + row), jnp.zeros(3), table)[1]


MIXING: dict[str, Callable[[Any], Any]] = {
    "a sum": lambda g: g - g.sum(0),
    "a scan": scanned,
    "a branch": lambda g: lax.cond(jnp.bool_(True), lambda x: x / x.sum(), lambda x: x, g),
    "a loop": lambda g: lax.fori_loop(0, 2, lambda _, x: x - x.mean(0), g),
    "a slice": lambda g: g - lax.slice(g, (0, 0), (1, 3)),
    "a roll": lambda g: jnp.roll(g, 1, 0),
    "a decomposition": lambda g: jnp.linalg.qr(g)[0],
}


def check(transform: Any) -> None:
    """Checks the update of one variable whose rows lie on several servers."""
    parameters = Parameters.of([Split()], jax.tree.structure([0]))
    with optax_rules():
        state = jax.eval_shape(transform.init, parameters.abstract)
    belongings = parameters.belongings(state, transform.init)
    check_separable(transform, state, [Split()], parameters, belongings)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", MIXING)
def test_an_update_that_mixes_rows_of_a_split_variable_is_refused(name: str) -> None:
    transform = optax.stateless(lambda updates, _: jax.tree.map(MIXING[name], updates))
    with pytest.raises(ArgumentError, match=r"needs its own other rows.*HINT"):
        check(transform)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adagrad", "rmsprop", "lion", "yogi", "nadam"])
def test_an_update_element_by_element_is_taken(name: str) -> None:
    transform = getattr(optax, name)(0.1)
    check(transform)
