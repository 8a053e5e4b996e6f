"""What a traced program has fixed is listed: literals, constants and parameters, at any depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.core.jaxprs.fixed import fixed_values


def fixed(fn: Callable[..., Any]) -> list[str]:
    return sorted(text for text, _ in fixed_values(jax.make_jaxpr(fn)(jnp.ones(3))))


def around(value: Any) -> Callable[[Any], Any]:
    return lambda x: x * jnp.asarray(value)


def scaled(rate: float) -> Callable[[Any], Any]:
    return lambda x: x * np.float32(rate)


def added(array: Any) -> Callable[[Any], Any]:
    return lambda x: x + array


def drawn(key: Any) -> Callable[[Any], Any]:
    return lambda x: x + jax.random.uniform(key)


def under_precision(precision: str) -> Callable[[Any], Any]:
    return jax.default_matmul_precision(precision)(lambda x: jnp.dot(x, x))


CASES: dict[str, Callable[[int], Callable[[Any], Any]]] = {
    "a literal": scaled,
    "a small array": lambda n: around(np.full(3, n, np.float32)),
    "a large array": lambda n: lambda x: x.sum() + jnp.asarray(np.full(300, n, np.float32)).sum(),
    "an array on a device": lambda n: added(jnp.full(3, float(n))),
    "an exponent": lambda n: lambda x: x**n,
    "the length of a loop": lambda n: lambda x: jax.lax.scan(lambda c, _: (c + c, None), x, None, n)[0],
    "inside jit": lambda n: jax.jit(scaled(n)),
    "inside a loop": lambda n: lambda x: jax.lax.fori_loop(0, 2, lambda _, c: scaled(n)(c), x),
    "inside a branch": lambda n: lambda x: jax.lax.cond(x[0] > 0, scaled(n), scaled(7), x),
    "a result": lambda n: lambda x: (x, jnp.float32(n)),
    "an operation": lambda n: jnp.sin if n == 2 else jnp.cos,
    "an operation inside a loop": lambda n: lambda x: jax.lax.map([jnp.sin, jnp.cos][n - 2], x),
    "the type between two": lambda n: lambda x: x.astype([jnp.float16, jnp.bfloat16][n - 2]).astype(jnp.float32),
    "a precision": lambda n: lambda x: jnp.dot(x, x, precision=["high", "highest"][n - 2]),
    "the precision that is set": lambda n: under_precision(["high", "highest"][n - 2]),
    "what becomes of indices outside": lambda n: lambda x: x.at[5].add(1.0, mode=["drop", "clip"][n - 2]),
    "a key": lambda n: drawn(jax.random.key(n)),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_what_differs_is_seen(make: Callable[[int], Callable[[Any], Any]]) -> None:
    assert fixed(make(2)) == fixed(make(2))
    assert fixed(make(2)) != fixed(make(3))


def test_the_line_is_told() -> None:
    program = jax.make_jaxpr(lambda x: x * np.float32(0.25))(jnp.ones(3))
    assert [(text, line.rsplit("/", 1)[-1].split(":")[0]) for text, line in fixed_values(program)] == [
        ("mul", "test_fixed.py"),
        ("0.25 (float32[]) in mul", "test_fixed.py"),
    ]


def test_what_one_worker_prints_is_not_listed() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        jax.debug.callback(lambda _: None, x)
        return jnp.sin(x)

    assert fixed(printing) == fixed(jnp.sin) == ["sin"]
