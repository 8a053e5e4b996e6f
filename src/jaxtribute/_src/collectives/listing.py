"""The collectives of a program, in words, so that workers can compare theirs."""

from __future__ import annotations

from jaxtribute._src.jaxprs.core import Jaxpr, aval, opened, user_line
from jaxtribute._src.jaxprs.kinds import is_collective
from jaxtribute._src.jaxprs.walking import programs_in
from jaxtribute._src.values.mesh import AXIS

_UNKNOWN = "an unknown line"


def listed(jaxpr: Jaxpr, caller: str = _UNKNOWN) -> list[str]:
    """The collectives of a program in order: kind, dtypes and shapes, and the line that calls each.

    Args:
      jaxpr: the program; those inside it (of `scan`, `cond`, `shard_map`, ...) count too.
      caller: the line that calls the program, for what says none of its own, as inside a function with a custom
        gradient.
    """
    found: list[str] = []
    for eqn in jaxpr.eqns:
        line = user_line(eqn, but="/jaxtribute/") or caller
        if is_collective(eqn, AXIS):
            arrays = [aval(var) for var in eqn.invars if hasattr(var.aval, "shape")]
            shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            found.append(f"{eqn.primitive.name} of {shapes} at {line}")
        for inner in programs_in(eqn):
            found += listed(opened(inner), line)
    return found
