"""What a call of a `jd.function` costs on the host, over a bare `jax.jit` call and by itself: a peer for `harness`.

By itself: the compiled program is replaced by a function that answers at once, so that all that is left is the library.
Several contenders, named by what they call:

| contender | is |
|---|---|
| `call V` | a step that writes V variables |
| `jit V` | the same by `jax.jit` with donated state |
| `own variables V` | the library alone, V variables |
| `own replicas R` | the library alone, `strategy.run` on R replicas with ten variables |
| `own width W`, `own depth D` | the library alone, an argument that is a dictionary of W arrays, or nested D deep |
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves

import jaxtribute as jd
from benchmarks.harness import serve

Step = Callable[[int], tuple[float, float]]


def repeat(call: Callable[[], Any]) -> Step:
    """Times calls without waiting for the devices in between."""

    def run(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        result = None
        for _ in range(count):
            result = call()
        seconds = (time.perf_counter() - start) / count
        jax.block_until_ready(result)
        return seconds, 0.0

    return run


class Answer:
    """What the library calls in place of a compiled program; it answers at once with the results of the first call.

    The one place here that knows how a program is called: with lists of the arrays of variables, those that it writes
    and those that it only reads, with the arguments, and with a guard that is to be flattened. It gives a list of the
    new arrays and the results, which the library takes over: so each answer is a new list. The new arrays are those
    that came in, which costs the same however many there are.
    """

    def __init__(self, jitted: Any) -> None:
        self._jitted, self._results = jitted, None
        self.lower = jitted.lower

    def __call__(self, written: list[Any], read: list[Any], given: Any, guard: Any) -> list[Any]:
        if self._results is None:
            return self._first(written, read, given, guard)
        tree_leaves(guard)  # calls a function of the library, as `jax.jit` does
        return [written, self._results]

    def _first(self, *inputs: Any) -> list[Any]:
        written, self._results = jax.block_until_ready(self._jitted(*inputs))
        return [written, self._results]


class Uncompiled(Answer):
    """The same, without compiling the program, which takes XLA minutes for 10,000 variables; on one device."""

    def _first(self, *inputs: Any) -> list[Any]:
        shapes = self._jitted.eval_shape(*inputs)[1]
        self._results = jax.tree.map(lambda one: jnp.asarray(np.zeros(one.shape, one.dtype)), shapes)
        return [inputs[0], self._results]


def alone(call: Callable[[], Any], answer: type[Answer] = Answer) -> Step:
    """The library's part of `call`, which must make one program: it answers at once with what it found first."""
    real, made = jax.jit, list[Answer]()

    def jit(*arguments: Any, **options: Any) -> Answer:
        made.append(answer(real(*arguments, **options)))
        return made[-1]

    jax.jit = jit  # pyright: ignore[reportAttributeAccessIssue]
    try:
        call()
    finally:
        jax.jit = real
    assert len(made) == 1, f"{len(made)} programs were made, not one"
    return repeat(call)


def writes(count: int) -> Callable[[], Any]:
    """A step that writes `count` variables."""
    variables = [jd.Variable(np.float32(0)) for _ in range(count)]
    x = jnp.float32(1)

    @jd.function
    def step(x: Any) -> Any:
        for variable in variables:
            variable.assign_add(x)
        return x

    return lambda: step(x)


def bare(count: int) -> Callable[[], Any]:
    """The same by hand."""
    state = [[jnp.float32(0) for _ in range(count)]]
    x = jnp.float32(1)
    step = jax.jit(lambda state, x: ([one + x for one in state], x + 0), donate_argnums=0)

    def call() -> Any:
        state[0], result = step(state[0], x)
        return result

    return call


def on_replicas(count: int) -> Callable[[], Any]:
    """A step on `count` replicas with ten variables and a sum."""
    strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(count)]) if count > 1 else jd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        variables = [
            jd.Variable(np.float32(0), aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA) for _ in range(10)
        ]
    x = strategy.experimental_distribute_values_from_function(lambda _: np.ones(4, np.float32))

    def replica(x: Any) -> Any:
        for variable in variables:
            variable.assign_add(jnp.float32(1))
        return x.sum()

    step = jd.function(lambda x: strategy.run(replica, (x,)))
    return lambda: step(x)


def nested(kind: str, count: int) -> Any:
    """An argument of `count` arrays side by side, or of one array `count` dictionaries deep."""
    if kind == "width":
        return {f"k{i:05}": jnp.float32(i) for i in range(count)}
    value: Any = jnp.float32(0)
    for _ in range(count):
        value = {"k": value}
    return value


def contender(name: str) -> Step:
    """The contender of a name; see the top of this file."""
    *kind, number = name.split()
    count = int(number)
    match kind:
        case ["call"]:
            return repeat(writes(count))
        case ["jit"]:
            return repeat(bare(count))
        case ["own", "variables"]:
            return alone(writes(count), Uncompiled)
        case ["own", "replicas"]:
            return alone(on_replicas(count))
        case ["own", shape]:
            argument = nested(shape, count)
            step = jd.function(lambda nest: jax.tree.leaves(nest)[0] + 1)
            return alone(lambda: step(argument))
        case _:
            raise ValueError(name)


class Made(dict[str, Step]):
    """Contenders, made when they are first asked for."""

    def __missing__(self, name: str) -> Step:
        self[name] = contender(name)
        return self[name]


if __name__ == "__main__":
    jd.config.set_logical_cpu_devices(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    serve(Made())
