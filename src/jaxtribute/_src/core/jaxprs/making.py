"""Operations of the library's own, as JAX primitives.

They are marks and placeholders in a traced program, for those who take it apart. All are `Own`, so that whoever asks
what an operation is need not know their names.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir

from jaxtribute._src.core.jaxprs.core import Primitive, ShapedArray
from jaxtribute._src.core.types import Function, Nest, Numeric


class Own(Primitive):
    """A primitive that this library defines."""


def identity(name: str, transpose: Function = lambda cotangent, **_: cotangent) -> Own:
    """Makes an operation that returns its one operand.

    Args:
      name: its name in a program.
      transpose: gives the operand's cotangent, of the result's and of the operation's parameters.
    """
    primitive = Own(name)
    primitive.def_impl(lambda value, **_: value)
    primitive.def_abstract_eval(lambda aval, **_: aval)
    mlir.register_lowering(primitive, lambda _, value, **_params: [value])
    # Linear: the tangent passes through the operation as the value does, and the cotangent through `transpose`.
    ad.deflinear2(primitive, lambda cotangent, _, **params: [transpose(cotangent, **params)])
    batching.defvectorized(primitive)
    return primitive


def underivable(name: str, refuse: Function) -> Own:
    """Makes an operation that returns its one operand, and that JAX does not differentiate.

    Args:
      name: its name in a program.
      refuse: raises; it is given what JAX gives to a rule.
    """
    primitive = identity(name)
    ad.primitive_jvps[primitive] = refuse
    return primitive


def placeholder(name: str) -> Own:
    """Makes an operation without operands that stands for an input of a program until it becomes one.

    Its parameters are `shape`, `dtype` and `key`, by which the inputs are put in order.
    """
    primitive = Own(name)

    def aval(*, shape: tuple[int, ...], dtype: np.dtype[Any], key: int) -> ShapedArray:  # noqa: ARG001
        return ShapedArray(shape, dtype)

    primitive.def_abstract_eval(aval)
    return primitive


def linear_with_probe(name: str, compute: Function, transpose: Function) -> Own:
    """Makes a linear operation of one operand, with a second that adds nothing and gets the result's cotangent.

    Args:
      name: its name in a program.
      compute: gives the result of the first operand and the parameters, among them the result's `shape`.
      transpose: gives the first operand's cotangent, of the result's and of the parameters.
    """
    primitive = Own(name)

    def aval(operand: Any, *_: Nest, shape: tuple[int, ...], **_params: Nest) -> ShapedArray:
        return ShapedArray(shape, operand.dtype)

    def jvp(primals: Any, tangents: Any, **params: Nest) -> tuple[Any, Any]:
        # JAX marks a tangent that is nothing by `Zero`, to which no operation can be applied.
        if type(tangents[0]) is ad.Zero:
            tangent: Any = ad.Zero(ShapedArray(params["shape"], primals[0].dtype))
        else:
            tangent = primitive.bind(tangents[0], **params)
        # The probe adds nothing to the value. Its tangent is added as it is, so that backwards it gets the result's
        # cotangent.
        if len(tangents) > 1:
            tangent = ad.add_tangents(tangent, tangents[1])
        return primitive.bind(*primals, **params), tangent

    def lowered(operand: Any, *_: Nest, **params: Nest) -> Any:
        return compute(operand, **params)

    primitive.def_abstract_eval(aval)
    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = lambda cotangent, *_, **params: [transpose(cotangent, **params)]
    return primitive


equal_p = identity("jd_equal")
"""Marks a value of one replica's program as the same on every replica."""
state_p = identity("jd_state")
"""Marks a value as a central variable's new one, which belongs on the parameter device."""


def equal(value: Numeric) -> jax.Array:
    """`value`, which the caller knows to be the same on every replica where that cannot be inferred."""
    return equal_p.bind(value)
