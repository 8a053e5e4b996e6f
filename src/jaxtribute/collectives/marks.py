"""Identities that mark values of a program for those who divide it up."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
from jax.interpreters import ad, batching, mlir


def _identity(name: str) -> jex.Primitive:
    """A primitive of one argument, which it returns."""
    primitive = jex.Primitive(name)
    primitive.def_impl(lambda value: value)
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(primitive, lambda _, value: [value])
    ad.deflinear2(primitive, lambda cotangent, _: [cotangent])
    batching.defvectorized(primitive)
    return primitive


equal_p = _identity("jd_equal")
"""Marks a value of one replica's program as the same on every replica."""
state_p = _identity("jd_state")
"""Marks a value as a central variable's new one, which belongs on the parameter device."""


def equal(value: Any) -> jax.Array:
    """`value`, which the caller knows to be the same on every replica where that cannot be inferred."""
    return equal_p.bind(value)
