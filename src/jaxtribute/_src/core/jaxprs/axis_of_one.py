"""Programs of one replica that name the axis of the replicas: there it has the length 1."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import getitem
from typing import Any

import jax

from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, JaxprEqn, as_function, aval, opened
from jaxtribute._src.core.jaxprs.kinds import names_axis
from jaxtribute._src.core.jaxprs.walking import operations_in


def with_axis_of_one(program: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Gives a program an axis of one replica, if it has collectives over it; else returns it as it is.

    Args:
      program: the program.
      name: the name of the axis.
    """
    collectives = {inner.primitive.name for eqn in opened(program).eqns for inner in _naming(eqn, name)}
    if not collectives:
        return program
    function = as_function(program)
    types = map(aval, opened(program).invars)
    avals = [jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type) for one in types]
    # What does not depend on the replica stays as it is under this `vmap`, such as the branches of a condition. But JAX
    # gets the shape of an `all_to_all` of such a value wrong.
    axis = 0 if "all_to_all" in collectives else None

    def replica(*inputs: Any) -> Any:
        taken = inputs if axis is None else [value[None] for value in inputs]
        mapped = jax.vmap(function, in_axes=axis, axis_size=1, axis_name=name)
        return list(map(getitem, mapped(*taken), repeat(0)))

    return jax.make_jaxpr(replica)(*avals)


def _naming(eqn: JaxprEqn, name: str) -> Iterator[JaxprEqn]:
    """The operations that name the axis, in an operation that does not give it."""
    if eqn.primitive.name == "shard_map":
        return
    if names_axis(eqn, name):
        yield eqn
    for inner in operations_in(eqn):
        yield from _naming(inner, name)
