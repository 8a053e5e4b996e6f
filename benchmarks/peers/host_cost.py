"""What a call of a `jd.function` costs on the host, over a bare `jax.jit` call and by itself: a peer for `harness`.

By itself: the compiled program is replaced by a function that returns the results of its first call at once, so that
all that is left is the library. Several contenders, named by what they call:

| contender | is |
|---|---|
| `call V` | a step that writes V variables |
| `jit V` | the same by `jax.jit` with donated state |
| `own variables V` | the library alone, V variables |
| `own replicas R` | the library alone, `strategy.run` on R replicas with ten variables |
| `own width W`, `own depth D` | the library alone, an argument that is a dictionary of W arrays, or nested D deep |
| `jax width W`, `jax depth D` | flattening that argument with JAX, which any `jax.jit` call does too |
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def alone(function: Any, call: Callable[[], Any]) -> Step:
    """The library's part of `call`, which calls `function`: programs answer at once with what they found first."""
    jax.block_until_ready(call())
    for program in function._programs.values():
        program._jitted = Answer(program._jitted)
    call()
    return repeat(call)


class Answer:
    """What is called in place of a compiled program, and returns the results of its first call."""

    def __init__(self, jitted: Any) -> None:
        self._jitted, self._found = jitted, None

    def __call__(self, *inputs: Any) -> Any:
        if self._found is None:
            self._found = jax.block_until_ready(self._jitted(*inputs))
        return self._found


class Uncompiled(Answer):
    """The same, without compiling the program, which takes XLA minutes for 10,000 variables; on one device."""

    def __call__(self, *inputs: Any) -> Any:
        if self._found is None:
            shapes = self._jitted.eval_shape(*inputs)
            self._found = jax.tree.map(lambda one: jnp.asarray(np.zeros(one.shape, one.dtype)), shapes)
        return self._found


def untried(call: Callable[[], Any]) -> Step:
    """As `alone`, with programs that are never compiled."""
    real = jax.jit
    jax.jit = lambda *arguments, **options: Uncompiled(real(*arguments, **options))  # pyright: ignore[reportAttributeAccessIssue]
    try:
        call()
    finally:
        jax.jit = real
    return repeat(call)


def writes(count: int) -> tuple[Any, Callable[[], Any]]:
    """A function that writes `count` variables, and a call of it."""
    variables = [jd.Variable(np.float32(0)) for _ in range(count)]
    x = jnp.float32(1)

    @jd.function
    def step(x: Any) -> Any:
        for variable in variables:
            variable.assign_add(x)
        return x

    return step, lambda: step(x)


def bare(count: int) -> Callable[[], Any]:
    """The same by hand."""
    state = [[jnp.float32(0) for _ in range(count)]]
    x = jnp.float32(1)
    step = jax.jit(lambda state, x: ([one + x for one in state], x + 0), donate_argnums=0)

    def call() -> Any:
        state[0], result = step(state[0], x)
        return result

    return call


def on_replicas(count: int) -> tuple[Any, Callable[[], Any]]:
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
    return step, lambda: step(x)


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
            return repeat(writes(count)[1])
        case ["jit"]:
            return repeat(bare(count))
        case ["own", "variables"]:
            return untried(writes(count)[1])
        case ["own", "replicas"]:
            return alone(*on_replicas(count))
        case ["own", shape]:
            argument = nested(shape, count)
            step = jd.function(lambda nest: jax.tree.leaves(nest)[0] + 1)
            return alone(step, lambda: step(argument))
        case [_, shape]:
            argument = nested(shape, count)
            return repeat(lambda: jax.tree.flatten(argument))
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
