"""The programs that `verify` runs itself, operation by operation, give what JAX gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxtribute._src.addons.verify.machine import Machine, Meeting, Tape, together
from jaxtribute._src.addons.verify.operations import apply, as_wide

DRAWS: dict[str, Callable[[Any], Any]] = {
    "poisson": lambda key: jax.random.poisson(key, 1.0),
    "poisson, large": lambda key: jax.random.poisson(key, 30.0),
    "poisson, several": lambda key: jax.random.poisson(key, jnp.array([0.5, 2.0])),
    "binomial": lambda key: jax.random.binomial(key, 9, 0.3),
    "geometric": lambda key: jax.random.geometric(key, 0.4),
    "truncated": lambda key: jax.random.truncated_normal(key, -1, 1),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(3.0)),
    "permutation": lambda key: jax.random.permutation(key, 5),
}


def root(x: Any) -> Any:
    """A square root by Newton's iterations, as many as a number needs."""
    start = (x, jnp.int32(0))
    return lax.while_loop(lambda c: abs(c[0] ** 2 - x) > 1e-5 * x, lambda c: ((c[0] + x / c[0]) / 2, c[1] + 1), start)


def collatz(x: Any) -> Any:
    """The number of steps to 1, with a loop in a loop: halvings are done at once."""

    def turn(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        n, steps = carry
        n, steps = lax.while_loop(lambda c: c[0] % 2 == 0, lambda c: (c[0] // 2, c[1] + 1), (n, steps))
        return lax.cond(n == 1, lambda: (n, steps), lambda: (3 * n + 1, steps + 1))

    return lax.while_loop(lambda c: c[0] != 1, turn, (x, jnp.int32(0)))


LOOPS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "of numbers": (root, np.arange(1, 13, dtype=np.float32)),
    "in loops": (collatz, np.arange(1, 13, dtype=np.int32)),
    "of vectors": (lambda x: root(x)[0] * jnp.ones(3), np.arange(1, 13, dtype=np.float32)),
    "of batches": (jax.vmap(root), np.arange(1, 13, dtype=np.float32).reshape(6, 2)),
}


def run(function: Callable[[Any], Any], argument: Any) -> list[Any]:
    """The results of a program's operations, one after the other."""

    def meet(meetings: list[Meeting]) -> list[list[Any]]:
        return [apply(one.eqn, one.operands) for one in meetings]

    given = argument if jnp.issubdtype(argument.dtype, jax.dtypes.prng_key) else as_wide(argument)
    program = jax.make_jaxpr(function)(argument)
    return together([Machine(0, Tape(keeps=True)).begin(program, [given])], meet)[0]


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("rows", [12, 1, 0])
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_a_key_for_each_row(name: str, rows: int) -> None:
    keys = jax.random.split(jax.random.key(3), 12)[:rows]
    (drawn,) = run(jax.vmap(DRAWS[name]), keys)
    np.testing.assert_allclose(drawn, jax.vmap(DRAWS[name])(keys), rtol=1e-4)


@pytest.mark.quick_cases(11, whole=True)
@pytest.mark.parametrize("rows", [12, 1, 0])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_each_row_ends_by_itself(name: str, rows: int) -> None:
    function, argument = LOOPS[name]
    found = run(jax.vmap(function), argument[:rows])
    for mine, wanted in zip(found, jax.tree.leaves(jax.vmap(function)(argument[:rows])), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5)
