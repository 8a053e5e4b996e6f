"""Times of operations, in units that only compare: bytes that they touch, and operations in terms of these."""

from __future__ import annotations

import math

from jaxtribute.extending import JaxprEqn, Programs

SLOW = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1 lgamma log log1p "
    "logistic pow sin sinh tan tanh".split()
)
"""Names of the operations of single elements that take many instructions."""


def seconds(eqn: JaxprEqn, *, cpu: bool) -> float:
    """The time of an operation, with all that is inside it, in bytes of memory traffic.

    Args:
      eqn: an operation of a traced program.
      cpu: whether it runs on a CPU.
    """
    name = eqn.primitive.name
    parts = [Programs.opened(program).eqns for program in Programs.programs_in(eqn)]
    inside = [sum(seconds(each, cpu=cpu) for each in part) for part in parts]
    if name == "cond" and inside:
        return max(inside)
    if inside:
        return Programs.scan_counts(eqn)[2] * sum(inside) if name == "scan" else sum(inside)
    touched = sum(_bytes(atom) for atom in (*eqn.invars, *eqn.outvars))
    # A processor does some ten operations while it reads a byte, an accelerator some two hundred.
    per_byte = 10 if cpu else 200
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = Programs.aval(eqn.invars[0]).shape
        depth = math.prod(shape[axis] for axis in contracted)
        return touched + 2 * _elements(eqn.outvars[0]) * depth / per_byte
    if name == "conv_general_dilated":
        kernel = Programs.aval(eqn.invars[1]).shape
        out = eqn.params["dimension_numbers"].rhs_spec[0]
        return touched + 2 * _elements(eqn.outvars[0]) * math.prod(kernel) / kernel[out] / per_byte
    if name in SLOW:
        return touched + 20 * _elements(eqn.outvars[0]) / per_byte
    return float(touched)


def _elements(atom: object) -> int:
    return math.prod(Programs.aval(atom).shape)


def _bytes(atom: object) -> int:
    aval = Programs.aval(atom)
    try:
        return math.prod(aval.shape) * aval.dtype.itemsize
    except (AttributeError, TypeError):
        return 0
