"""Random small programs over variables: their parts, what they give by NumPy, and how they run under a strategy.

The functions that a program calls are the same objects in every call, as a module's are, so that JAX keeps what it has
traced of them; the variables that they read change in between. Compiled steps are also made by several threads at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import jaxtribute as jd

SIZE = 4
MODULUS, FEW = np.float32(8), np.float32(4)  # keep the numbers small integers, of which floats are exact
WRAPPERS = ("plain", "jit", "checkpoint", "scan", "fori", "cond", "nested", "vmap")  # and "while", without a gradient
VARIABLES = 2

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Body:
    """`x * factor + variable` or `x * variable + factor`, of what an inner call made of x, if there is one."""

    variable: int
    factor: int
    multiplies: bool
    inner: Call | None


@dataclass(frozen=True)
class Call:
    wrapper: str
    body: int


@dataclass(frozen=True)
class Write:
    variable: int
    adds: bool


@dataclass(frozen=True)
class Gradient:
    call: Call
    variable: int


@dataclass(frozen=True)
class GradientAround:
    """The gradient of a sum over the replicas, by a variable."""

    call: Call
    variable: int


@dataclass(frozen=True)
class Program:
    bodies: tuple[Body, ...]
    before: tuple[Any, ...]
    inside: tuple[Any, ...]
    turns: tuple[str, ...]


@dataclass
class Dual:
    """A vector and, element by element, its derivative."""

    value: Array
    slope: Array


class Numbers:
    """A program by NumPy.

    Args:
      bodies: the functions.
      values: the variables' values.
      replicas: how many replicas there are.
    """

    def __init__(self, bodies: tuple[Body, ...], values: list[Array], replicas: int) -> None:
        self.bodies, self.values, self.replicas = bodies, values, replicas

    def body(self, number: int, x: Dual, by: int | None) -> Dual:
        body = self.bodies[number]
        if body.inner is not None:
            x = self.call(body.inner, x, by)
        read = self.values[body.variable]
        slope = np.full(SIZE, float(body.variable == by), np.float32)
        factor = np.float32(body.factor)
        if body.multiplies:
            read = np.mod(read, FEW)
            made = Dual(x.value * read + factor, x.slope * read + x.value * slope)
        else:
            made = Dual(x.value * factor + read, x.slope * factor + slope)
        return Dual(np.mod(made.value, MODULUS), made.slope)

    def call(self, call: Call, x: Dual, by: int | None = None) -> Dual:
        times = 2 if call.wrapper in ("scan", "fori", "while") else 1
        if call.wrapper == "cond" and not x.value[0] > 3:
            return x
        for _ in range(times):
            x = self.body(call.body, x, by)
        return x

    def write(self, write: Write, given: list[Array]) -> None:
        total = np.sum(given, axis=0)
        old = self.values[write.variable] if write.adds else np.zeros_like(total)
        self.values[write.variable] = old + total

    def statements(self, statements: tuple[Any, ...], xs: list[Array]) -> list[Array]:
        for one in statements:
            duals = [Dual(x, np.zeros_like(x)) for x in xs]
            if isinstance(one, Write):
                self.write(one, xs)
            elif isinstance(one, Call):
                xs = [self.call(one, dual).value for dual in duals]
            else:
                made = [self.call(one.call, dual, one.variable) for dual in duals]
                times = self.replicas if isinstance(one, GradientAround) else 1
                xs = [np.mod(x + dual.slope * np.float32(times), MODULUS) for x, dual in zip(xs, made, strict=True)]
        return xs

    def step(self, program: Program, x: Array) -> tuple[Array, Array]:
        (x,) = self.statements(program.before, [x])
        replicas = [np.mod(x + np.float32(r), MODULUS) for r in range(self.replicas)]
        return x, np.sum(self.statements(program.inside, replicas), axis=0)


class Arrays:
    """The same with variables, under a strategy."""

    def __init__(self, program: Program, strategy: jd.Strategy, initial: list[Array]) -> None:
        self.program, self.strategy = program, strategy
        with strategy.scope():
            self.variables = [jd.Variable(v, aggregation=jd.VariableAggregation.SUM) for v in initial]
        self.bodies = [self.made(body) for body in program.bodies]
        self.kept: dict[Any, Callable[[Any], Any]] = {}

    def made(self, body: Body) -> Callable[[Any], Any]:
        variable, factor = self.variables[body.variable], np.float32(body.factor)

        def function(x: Any) -> Any:
            if body.inner is not None:
                x = self.call(body.inner, x)
            read = variable.read_value()
            made = x * jnp.mod(read, FEW) + factor if body.multiplies else x * factor + read
            return jnp.mod(made, MODULUS)

        return function

    def call(self, call: Call, x: Any) -> Any:
        if call not in self.kept:
            self.kept[call] = self.wrapped(call.wrapper, self.bodies[call.body])
        return self.kept[call](x)

    def wrapped(self, wrapper: str, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def carried(c: Any, _: Any) -> tuple[Any, None]:
            return body(c), None

        def counted(_: Any, c: Any) -> Any:
            return body(c)

        def ahead(c: tuple[Any, Any]) -> tuple[Any, Any]:
            return c[0] + np.int32(1), body(c[1])

        def passed(x: Any) -> Any:
            return x

        made: dict[str, Callable[[Any], Any]] = {
            "plain": body,
            "jit": jax.jit(body),
            "checkpoint": jax.checkpoint(body),
            "scan": lambda x: jax.lax.scan(carried, x, None, length=2)[0],
            "fori": lambda x: jax.lax.fori_loop(0, 2, counted, x),
            "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 2, ahead, (np.int32(0), x))[1],
            "cond": lambda x: jax.lax.cond(x[0] > 3, body, passed, x),
            "nested": jax.jit(jax.checkpoint(jax.jit(body))),
            "vmap": lambda x: jax.vmap(body)(x[None])[0],
        }
        return made[wrapper]

    def statement(self, one: Any, x: Any) -> Any:
        if isinstance(one, Write):
            variable = self.variables[one.variable]
            variable.assign_add(x) if one.adds else variable.assign(x)
            return x
        if isinstance(one, Call):
            return self.call(one, x)

        def loss(x: Any = x) -> Any:
            return self.call(one.call, x).sum()

        def around() -> Any:
            # JAX does not index arrays of all devices from around the program of a replica of several devices.
            given = (x,) if self.strategy.extended.mesh.group else ()
            return self.strategy.reduce("SUM", self.strategy.run(loss, given), axis=None)

        variable = self.variables[one.variable]
        with warnings.catch_warnings():  # it may be of another variable than those that the loss reads
            warnings.filterwarnings("ignore", message=".*reads none of its variables")
            grads = jd.grad(around if isinstance(one, GradientAround) else loss, variable)()
        return jnp.mod(x + grads, MODULUS)

    def inside(self, x: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        x = jnp.mod(x + jnp.asarray(context.replica_id_in_sync_group, jnp.float32), MODULUS)
        for one in self.program.inside:
            x = self.statement(one, x)
        return x

    def step(self, x: Any) -> tuple[Any, Any]:
        for one in self.program.before:
            x = self.statement(one, x)
        return x, self.strategy.reduce("SUM", self.strategy.run(self.inside, (x,)), axis=None)


numbers = st.integers(0, VARIABLES - 1)


def calls(bodies: int, *more: str) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.sampled_from((*WRAPPERS, *more)), st.integers(0, bodies - 1))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    bodies: list[Body] = []
    for place in range(draw(st.integers(1, 2))):
        inner = draw(st.none() | calls(place)) if place else None
        bodies.append(Body(draw(numbers), draw(st.integers(1, 3)), draw(st.booleans()), inner))
    call, write = calls(len(bodies), "while"), st.builds(Write, numbers, st.booleans())
    smooth = calls(len(bodies))
    gradient, around = st.builds(Gradient, smooth, numbers), st.builds(GradientAround, smooth, numbers)
    before = tuple(draw(st.lists(st.one_of(call, write, around), max_size=3)))
    inside = tuple(draw(st.lists(st.one_of(call, write, gradient), min_size=1, max_size=4)))
    turns = tuple(draw(st.lists(st.sampled_from(["eager", "compiled", "threads"]), min_size=2, max_size=3)))
    return Program(tuple(bodies), before, inside, turns)


def in_threads(step: Callable[[Any], Any], strategy: jd.Strategy, xs: list[Array]) -> list[Any]:
    """What a compiled step gives for each of `xs`, all in threads of their own at once."""

    def one(x: Array) -> Any:
        with strategy.scope():
            return step(jnp.asarray(x))

    with ThreadPoolExecutor(len(xs)) as pool:
        return list(pool.map(one, xs, timeout=60))


def differences(results: list[Any], variables: list[Any], numbers: Numbers, program: Program, xs: list[Array]) -> str:
    """Makes the steps by NumPy, one after the other; returns what differs, in words."""
    wanted = [numbers.step(program, x) for x in xs]
    found = [(np.asarray(a), np.asarray(b)) for a, b in results]
    now = [variable.numpy() for variable in variables]
    same = np.array_equal(found, wanted) and np.array_equal(now, numbers.values)
    return "" if same else f"results {found}, not {wanted}; variables {now}, not {numbers.values}"


def check(program: Program, strategy: jd.Strategy) -> None:
    """Runs a program's steps by turns, and compares them with what NumPy gives.

    Steps of several threads at once give what they give in some order, one after the other.
    """
    values = [np.arange(SIZE, dtype=np.float32) + np.float32(i) for i in range(VARIABLES)]
    arrays = Arrays(program, strategy, values)
    compiled = jd.function(arrays.step)
    with strategy.scope():
        for turn, executor in enumerate(program.turns):
            xs = [np.full(SIZE, turn + i, np.float32) for i in range(1, 4 if executor == "threads" else 2)]
            if executor == "threads":
                results = in_threads(compiled, strategy, xs)
            else:
                results = [(compiled if executor == "compiled" else arrays.step)(jnp.asarray(xs[0]))]
            told: list[str] = []
            for order in permutations(range(len(xs))):
                numbers = Numbers(program.bodies, [value.copy() for value in values], strategy.num_replicas_in_sync)
                ordered = [results[i] for i in order]
                told.append(differences(ordered, arrays.variables, numbers, program, [xs[i] for i in order]))
                if not told[-1]:
                    values = numbers.values
                    break
            assert "" in told, f"turn {turn}, {executor}: {told}"


def check_in_turn(program: Program, strategy: jd.Strategy) -> None:
    """The same without threads, in which workers would come to their collectives in different orders."""
    turns = tuple("compiled" if turn == "threads" else turn for turn in program.turns)
    check(replace(program, turns=turns), strategy)
