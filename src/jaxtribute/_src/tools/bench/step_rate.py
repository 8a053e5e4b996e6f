"""Cost of a step that computes next to nothing: the library's own work, against a bare `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute._src.execution.function import function
from jaxtribute._src.strategies.base import Strategy
from jaxtribute._src.tools.bench.timing import alternate
from jaxtribute._src.values.enums import VariableAggregation
from jaxtribute._src.values.mesh import own
from jaxtribute._src.values.variable import Variable

_COUNT = 64


@dataclass(frozen=True, slots=True)
class StepRate:
    """A step that adds one to small variables.

    Attributes:
      variables: how many.
      seconds: a call of the `jd.function`.
      bare: a call of a `jax.jit` that takes and gives the same arrays, donated.
    """

    variables: int
    seconds: float
    bare: float

    @property
    def overhead(self) -> float:
        """Seconds that the library adds."""
        return self.seconds - self.bare


def measure(strategy: Strategy, counts: Sequence[int], rounds: int) -> list[StepRate]:
    """Measures a step for each number of variables."""
    return [_measure(strategy, count, rounds) for count in counts]


def _measure(strategy: Strategy, count: int, rounds: int) -> StepRate:
    placement = strategy.extended.mesh.replicated
    with strategy.scope():
        variables = [Variable(jnp.zeros(4), aggregation=VariableAggregation.ONLY_FIRST_REPLICA) for _ in range(count)]

    @function
    def step() -> None:
        for variable in variables:
            variable.assign_add(jnp.ones(4))

    def bare(state: list[Any]) -> list[Any]:
        return [value + jnp.ones(4) for value in state]

    jitted: Callable[..., Any] = jax.jit(bare, donate_argnums=0, out_shardings=placement)
    # A list of the only state, as each call donates the one before.
    states = [[own(jnp.zeros(4), placement) for _ in range(count)]]

    def by_hand() -> Any:
        states[0] = jitted(states[0])
        return states[0]

    def by_library() -> Any:
        step()
        return variables[0].stored

    found = alternate({"library": by_library, "bare": by_hand}, count=_COUNT, rounds=rounds)
    return StepRate(count, found["library"], found["bare"])
