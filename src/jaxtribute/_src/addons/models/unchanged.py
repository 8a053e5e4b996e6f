"""Arrays that code hands back: those that it got, as `nnx.remat` and `nnx.jit` do, or new ones, and made of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NoReturn

import jax

from jaxtribute.errors import VariableError
from jaxtribute.extending import Flow, Programs


class Source(IntEnum):
    """The making of an array, if it is none of those that the code got: a place among them, from 0."""

    ALIKE = -1
    """It is computed of arrays that all replicas have alike."""
    OWN = -2
    """It may be computed of what a replica alone has, such as its examples."""


class _Sources(Flow[int]):
    """The place of the program's input that a value is, or one of the two above."""

    def equation(self, eqn: Any, given: list[int]) -> list[int]:
        own = Source.OWN in given or not Programs.repeatable(eqn)
        return [Source.OWN if own else Source.ALIKE] * len(eqn.outvars)

    def merged(self, one: int, other: int) -> int:
        return one if one == other else min(one, other, Source.ALIKE)

    def chosen(self, by: int, value: int) -> int:
        return value if value >= 0 else min(by, value)


def sources(fn: Callable[[Sequence[Any]], Sequence[Any]], values: Sequence[Any], own: Sequence[bool]) -> list[int]:
    """For each array that `fn` returns, the place of the one among those that it takes; else a `Source`.

    The function is traced for it, without its effects; if it cannot be, all are taken to be a replica's own.

    Args:
      fn: the function. What else it uses, by closing over it, may be a replica's own.
      values: the arrays.
      own: True for those that are a replica's own.
    """
    try:
        jaxpr = Programs.opened(jax.make_jaxpr(fn)(list(values)))
    except Exception:  # noqa: BLE001 (of the user's code, which has run before)
        return [Source.OWN] * len(values)
    whole = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    given = [Source.OWN if one else place for place, one in enumerate(own)]
    return _Sources(Source.ALIKE).outputs(whole, [*[Source.OWN] * len(jaxpr.constvars), *given])


def refuse(name: str, kind: str, replicas: int) -> NoReturn:
    """Refuses a change of an array that several replicas would each make with what they alone have.

    Raises:
      VariableError: always.
    """
    raise VariableError(
        f"{name} is {kind}, and was changed by each of {replicas} replicas. HINT: keep running averages in "
        "nnx.BatchStat, of which jd.Model takes the mean, counts and sums, as those of nnx.metrics, in "
        "jd.Variable(0.0, aggregation='sum'), or change it outside strategy.run. Of parameters a call may change what "
        "it computes of the module's own arrays, as nnx.SpectralNorm does."
    )
