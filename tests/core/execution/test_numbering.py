"""Which values of two programs count as equal."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.numbering import Numbering

X = jnp.ones(3)


def outcomes(numbering: Numbering, fn: Callable[..., Any], *args: Any) -> list[int]:
    """The numbers of `fn`'s results, its arguments being the values 0, 1, ... of every program."""
    closed = jax.make_jaxpr(fn, axis_env=[(jd.REPLICA_AXIS, 2)])(*args)
    numbers: dict[Any, int] = {var: numbering.of(("argument", i)) for i, var in enumerate(closed.jaxpr.invars)}
    for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        numbers[var] = numbering.constant(const)
    for eqn in closed.jaxpr.eqns:
        key = numbering.equation(eqn, [numbering.atom(atom, numbers) for atom in eqn.invars])
        numbers.update((var, numbering.of((key, place))) for place, var in enumerate(eqn.outvars))
    return [numbering.atom(atom, numbers) for atom in closed.jaxpr.outvars]


def equal(first: Callable[..., Any], second: Callable[..., Any], *args: Any) -> bool:
    """Whether two functions of the same arguments are known to give the same."""
    numbering = Numbering()
    args = args or (X,)
    return outcomes(numbering, first, *args) == outcomes(numbering, second, *args)


def scaled(factor: float) -> Callable[[Any], Any]:
    """A function whose text does not tell the factor of its derivative."""

    @jax.custom_jvp
    def identity(x: Any) -> Any:
        return x * 1

    @identity.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return identity(primals[0]), tangents[0] * factor

    return identity


def bent(factor: float) -> Callable[[Any], Any]:
    """The same with a `custom_vjp`."""

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x * 1

    identity.defvjp(lambda x: (x * 1, None), lambda _, ct: (ct * factor,))
    return identity


def with_constant(value: Any) -> Callable[[Any], Any]:
    """A nested jit that closes over an array."""
    return jax.jit(lambda y: y + value)


def scanned(value: Any) -> Callable[[Any], Any]:
    return lambda x: jax.lax.scan(lambda c, _: (c + jnp.asarray(value).sum(), None), x, None, length=2)[0]


def chosen(value: float) -> Callable[[Any], Any]:
    return lambda x: jax.lax.cond(x[0] > 0, lambda: x * value, lambda: x)


class Callback:
    def __call__(self, x: Any) -> Any:
        return np.asarray(x)


def called(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(lambda y: jax.pure_callback(function, X, y))


SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "the same operations": (lambda x: jnp.sin(x) + 1, lambda x: jnp.sin(x) + 1),
    "in another order": (lambda x: (jnp.cos(x), jnp.sin(x))[1], jnp.sin),
    "nested jits": (jax.jit(jnp.sin), jax.jit(jnp.sin)),
    "a custom_jvp function": (jax.nn.relu, jax.nn.relu),
    "equal custom_jvp rules": (scaled(2.0), scaled(2.0)),
    "equal literals": (lambda x: jnp.float32(2), lambda x: jnp.float32(2)),
    "NaN": (lambda x: x * jnp.nan, lambda x: x * jnp.nan),
    "random bits of one key": (
        lambda x: jax.random.bits(jax.random.key(1)),
        lambda x: jax.random.bits(jax.random.key(1)),
    ),
    "the same array on a device": (with_constant(X), with_constant(X)),
    "equal host arrays": (scanned(np.arange(3.0, dtype=np.float32)), scanned(np.arange(3.0, dtype=np.float32))),
}
LONG = np.zeros(5000, np.float32)
LONG_WITH_ONE = np.where(np.arange(5000) == 2500, np.float32(1), np.float32(0))

DIFFERENT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "operations": (jnp.sin, jnp.cos),
    "operands": (lambda x: x + 1, lambda x: x + 2),
    "signs of zero": (lambda x: x * 0.0, lambda x: x * -0.0),
    "parameters": (lambda x: x.reshape(3, 1), lambda x: x.reshape(1, 3)),
    "dtypes": (lambda x: jnp.float32(1), lambda x: jnp.int32(1)),
    "arrays around a jit": (with_constant(jnp.zeros(3)), with_constant(jnp.ones(3))),
    "host arrays around a jit": (with_constant(np.zeros(3, np.float32)), with_constant(np.ones(3, np.float32))),
    "long arrays around a scan": (scanned(LONG), scanned(LONG_WITH_ONE)),
    "numbers in a branch": (chosen(2.0), chosen(3.0)),
    "custom_jvp rules": (scaled(2.0), scaled(3.0)),
    "custom_vjp rules": (bent(2.0), bent(3.0)),
    "callbacks of one class": (called(Callback()), called(Callback())),
    "random keys": (lambda x: jax.random.bits(jax.random.key(1)), lambda x: jax.random.bits(jax.random.key(2))),
    "kinds of random bits": (
        lambda x: jax.random.bits(jax.random.key(1, impl="threefry2x32")),
        lambda x: jax.random.bits(jax.random.key(1, impl="rbg")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_equal_values_have_equal_numbers(name: str) -> None:
    assert equal(*SAME[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_have_different_numbers(name: str) -> None:
    assert not equal(*DIFFERENT[name])


def test_how_random_bits_are_made_counts() -> None:
    def bits(x: Any) -> Any:
        return jax.random.bits(jax.random.key(1), (4,))

    def other(x: Any) -> Any:
        with jax.threefry_partitionable(False):
            return bits(x)

    assert not equal(bits, other)


def test_operands_decide() -> None:
    assert equal(lambda x, y: x + y, lambda x, y: x + y, X, X)
    assert not equal(lambda x, y: x + y, lambda x, y: y + x, X, X)
    assert not equal(lambda x, y: jnp.sin(x), lambda x, y: jnp.sin(y), X, X)


def test_higher_derivative_rules() -> None:
    def power(factor: float) -> Any:
        inner = scaled(factor)

        @jax.custom_jvp
        def outer(x: Any) -> Any:
            return x * 1

        @outer.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return outer(primals[0]), tangents[0] * inner(primals[0])

        return outer

    assert equal(power(2.0), power(2.0))
    assert not equal(power(2.0), power(3.0))


def test_a_rule_that_fails_is_compared_by_identity() -> None:
    def broken() -> Any:
        function = jax.custom_jvp(lambda x: x * 1)

        @function.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            raise NotImplementedError

        return function

    assert not equal(broken(), broken())


def test_unhashable_parameters_are_kept_alive() -> None:
    numbering = Numbering()
    first = numbering.constant(jnp.zeros(2))
    assert all(numbering.constant(jnp.zeros(2)) != first for _ in range(5))
    array = jnp.zeros(2)
    assert numbering.constant(array) == numbering.constant(array)
    assert numbering.constant(np.zeros(2)) == numbering.constant(np.zeros(2))
    assert numbering.constant(np.zeros(2)) != numbering.constant(np.zeros(2, np.float32))
    assert numbering.constant({"a": [1, 2.0]}) == numbering.constant({"a": [1, 2.0]})
    assert numbering.constant([1]) != numbering.constant([True])
    assert numbering.constant((0.0,)) != numbering.constant((-0.0,))


def summed(own: float) -> Callable[[Any], Any]:
    """A sum over the replicas in a condition, with a rule of its own, as workers make it."""

    @jax.custom_vjp
    def total(x: Any) -> Any:
        return jax.lax.psum(x * own, jd.REPLICA_AXIS)

    total.defvjp(lambda x: (total(x), None), lambda _, cotangent: (cotangent,))
    return lambda x: jax.lax.cond(x[0] > 0, total, lambda x: x, x)


def test_sums_in_conditions_are_equal_whichever_trace_made_their_rules() -> None:
    assert equal(summed(1.0), summed(1.0))
    assert not equal(summed(1.0), summed(2.0))
