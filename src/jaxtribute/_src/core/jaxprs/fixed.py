"""Operations of a traced program with the constants, literals and other numbers in them, which tracing has fixed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

import jax
import numpy as np

from jaxtribute._src.core.jaxprs.core import (
    ClosedJaxpr,
    Literal,
    constants,
    in_words,
    line_of_program,
    numbers_of,
    opened,
)
from jaxtribute._src.core.jaxprs.walking import UNKNOWN, programs_in

_SHOWN = 8
"""Number of elements of an array that are shown."""

Fixed = tuple[str, str]
"""An operation, or a value with the operation that takes it, in words; and the line that it comes from."""


def fixed_values(program: ClosedJaxpr, caller: str = UNKNOWN) -> Iterator[Fixed]:
    """Lists what a program has fixed, with the programs inside it.

    Arrays over the devices of several processes are left out: they are the same for all. So is what only prints.

    Args:
      program: the program.
      caller: the line that calls it, for what says none of its own.
    """
    jaxpr = opened(program)
    consts = {var: value_in_words(value) for var, value in zip(jaxpr.constvars, constants(program), strict=False)}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name.startswith("debug"):
            continue
        line = line_of_program(eqn) or caller
        yield eqn.primitive.name, line
        for atom in eqn.invars:
            text = value_in_words(atom.val) if isinstance(atom, Literal) else consts.pop(atom, "")
            if text:
                yield f"{text} in {eqn.primitive.name}", line
        for name, value in sorted(eqn.params.items()):
            text = _parameter(value)
            if text and name != "name":
                yield f"{name}={text} of {eqn.primitive.name}", line
        for inner in programs_in(eqn):
            yield from fixed_values(inner, line)
    # What no operation takes goes out as it is.
    for atom in jaxpr.outvars:
        text = value_in_words(atom.val) if isinstance(atom, Literal) else consts.pop(atom, "")
        if text:
            yield f"{text} as a result", caller


def value_in_words(value: Any) -> str:
    """A number or array in words that tell it from others; none of an array that other processes have parts of."""
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return repr(value) if isinstance(value, (bool, int, float, complex)) else ""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return ""
    host = np.asarray(numbers_of(value))
    if host.size <= _SHOWN:
        return f"{host.tolist()!r} ({in_words(value)})"
    return f"{in_words(value)} with the digest {hashlib.sha256(np.ascontiguousarray(host).tobytes()).hexdigest()[:16]}"


def _parameter(value: Any) -> str:
    """A number, dtype or mode among the parameters of an operation, or a tuple of some; nothing for all else."""
    if isinstance(value, (tuple, list)):
        return ", ".join(filter(None, map(_parameter, value)))
    return str(value) if isinstance(value, (str, Enum, np.dtype)) else value_in_words(value)
