"""Finds the results of one replica's program that are the same on every replica.

A value is mirrored if it depends only on mirrored inputs, constants and results of collectives over all
replicas; everything that depends on the replica's own data or id *varies*, and so does what an operation gives that
the library does not know: a debug message names it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from jaxtribute._src.core.jaxprs.core import Jaxpr, JaxprEqn
from jaxtribute._src.core.jaxprs.flow import Flow
from jaxtribute._src.core.jaxprs.kinds import equalises, keeps_equality, mentions, names_axis, repeatable
from jaxtribute._src.core.jaxprs.making import equal_p
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.slices import alike_p
from jaxtribute.errors import VariableError

_LOG = logging.getLogger(__name__)


def varying_outputs(jaxpr: Jaxpr, inputs: Sequence[bool]) -> list[bool]:
    """Tells for each output of `jaxpr` whether it may differ between replicas.

    Args:
      jaxpr: one replica's program.
      inputs: for each input whether it may differ; constants do not.
    """
    return _Varying(False).outputs(jaxpr, inputs)


def varying_values(jaxpr: Jaxpr, inputs: Sequence[bool]) -> set[Any]:
    """The values of `jaxpr` that may differ between replicas; arguments as for `varying_outputs`."""
    return {var for var, varies in _Varying(False).values(jaxpr, inputs).items() if varies}


class _Varying(Flow[bool]):
    """True for what may differ between replicas."""

    def merged(self, one: bool, other: bool) -> bool:
        """Either may be the one that differs."""
        return one or other

    def equation(self, eqn: JaxprEqn, given: list[bool]) -> list[bool]:
        """Results differ if operands do, unless replicas exchange them; and where they come from elsewhere."""
        count = len(eqn.outvars)
        # Reductions and gathers over all replicas give each of them the same, whatever they were given.
        if eqn.primitive is equal_p or equalises(eqn, AXIS):
            return [False] * count
        if eqn.primitive is alike_p:
            _check_alike(eqn.params["name"], given[0])
            return given
        # What is computed of values that differ may differ, even where it happens not to: the careful case.
        if any(given) or not count:
            return [any(given)] * count
        # Operands are the same, but the operation itself may tell replicas apart (`axis_index`).
        if names_axis(eqn, AXIS):
            return [not keeps_equality(eqn)] * count
        if repeatable(eqn):
            return [mentions(eqn, AXIS)] * count
        _LOG.debug(
            "%s is no operation that the library knows: its results are taken to vary over the replicas",
            eqn.primitive.name,
        )
        return [True] * count


def _check_alike(name: str, varies: bool) -> None:
    if varies:
        raise VariableError(
            f"{name} would get a different value on each replica. HINT: reduce the value before it is assigned "
            "(strategy.reduce, ctx.all_reduce), or create the variable with an aggregation."
        )
