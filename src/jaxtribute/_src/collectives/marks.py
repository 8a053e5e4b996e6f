"""Identities that mark values of a program for those who divide it up."""

from __future__ import annotations

from typing import Any

import jax

from jaxtribute._src.jaxprs.making import identity

equal_p = identity("jd_equal")
"""Marks a value of one replica's program as the same on every replica."""
state_p = identity("jd_state")
"""Marks a value as a central variable's new one, which belongs on the parameter device."""


def equal(value: Any) -> jax.Array:
    """`value`, which the caller knows to be the same on every replica where that cannot be inferred."""
    return equal_p.bind(value)
