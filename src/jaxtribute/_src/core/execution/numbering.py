"""Numbers for the values of several programs: equal numbers mean equal values, whichever program computes them.

Two equations give equal values if they apply one primitive with equal parameters to operands of equal numbers.
What cannot be compared by value (functions, arrays on devices, unhashable objects) is compared by identity: that
may miss that two values are equal, never that they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from jaxtribute._src.core.execution.cutting import makes_collectives
from jaxtribute._src.core.jaxprs.core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    constants,
    derivative_rule,
    is_program,
    opened,
)
from jaxtribute._src.core.types import Numeric

Number = int

_HIGHEST_ORDER = 3
"""Up to which derivative `custom_jvp` functions are compared; no program takes higher ones of such functions."""


_BACKWARD = "fwd_jaxpr_thunk", "bwd", "out_trees"
"""Parameters of `custom_vjp_call` that say how to differentiate it."""


class Numbering:
    """The numbers given so far."""

    def __init__(self) -> None:
        self._known: dict[Any, Number] = {}
        self._keep: list[Any] = []
        self._order = 0

    def of(self, key: Numeric) -> Number:
        """The number of whatever `key` identifies."""
        return self._known.setdefault(key, len(self._known))

    def atom(self, atom: Any, numbers: dict[Any, Number]) -> Number:
        """The number of an operand."""
        return self.of(self._literal(atom)) if isinstance(atom, Literal) else numbers[atom]

    def constant(self, value: Numeric) -> Number:
        """The number of a constant."""
        return self.of(("constant", self._value(value)))

    def equation(self, eqn: JaxprEqn, inputs: Sequence[Any]) -> Any:
        """A key for what an equation computes of operands with the numbers `inputs`."""
        # Settings count too: with another one for threefry, the same operation draws other random numbers.
        ctx = eqn.ctx
        how = ctx.compute_type, ctx.threefry_partitionable, str(ctx.xla_metadata)
        return eqn.primitive, self._params(eqn), tuple(inputs), how

    def _params(self, eqn: JaxprEqn) -> Any:
        params = dict(eqn.params)
        if "bwd" in params and makes_collectives(eqn):
            # A sum within a condition: elsewhere `inlined` has written it out, and is done with its rules too.
            for name in _BACKWARD:
                params.pop(name, None)
        rule = params.pop("jvp_jaxpr_fun", None)
        key = tuple((name, self._value(params[name])) for name in sorted(params))
        if rule is None or self._order == _HIGHEST_ORDER:
            return key
        # Rules are compared as programs, as functions of two traces are never the same object.
        self._order += 1  # a rule usually calls its own function again
        try:
            return *key, self._value(_rule(eqn, rule))
        finally:
            self._order -= 1

    def _value(self, value: Numeric) -> Any:
        """A key that is equal for equal values only."""
        kind = type(value)
        if is_program(value):
            return self._jaxpr(opened(value)), tuple(map(self._value, constants(value)))
        if isinstance(value, (tuple, list)):
            return kind, tuple(map(self._value, cast("Sequence[Any]", value)))
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            return kind, tuple((self._value(key), self._value(item)) for key, item in items)
        # By content: two traces of one function make constants that are equal but not the same objects.
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            return kind, str(value.dtype), value.shape, value.tobytes()
        if isinstance(value, (float, complex)):
            return kind, repr(value)  # tells 0.0 from -0.0, and finds NaN equal to itself
        try:
            hash(value)
        except TypeError:
            self._keep.append(value)  # so that no other object takes its id
            return "object", id(value)
        return kind, value

    def _literal(self, literal: Literal) -> Any:
        value = literal.val
        return "literal", str(literal.aval), self._value(np.asarray(value) if np.isscalar(value) else value)

    def _jaxpr(self, jaxpr: Jaxpr) -> Any:
        # Variables by their places, as two traces of one function have other variables.
        inputs = (*jaxpr.constvars, *jaxpr.invars)
        places: dict[Any, int] = dict(zip(inputs, range(len(inputs)), strict=True))

        def read(atom: Any) -> Any:
            return self._literal(atom) if isinstance(atom, Literal) else places[atom]

        avals = tuple(str(var.aval) for var in places)
        equations: list[Any] = []
        for eqn in jaxpr.eqns:
            equations.append(self.equation(eqn, list(map(read, eqn.invars))))
            for var in eqn.outvars:
                places[var] = len(places)
        return "jaxpr", avals, tuple(equations), tuple(map(read, jaxpr.outvars))


def _rule(eqn: JaxprEqn, rule: Any) -> Any:
    """The rule of a `custom_jvp` function as a program, which can be compared; the rule itself if it has none."""
    try:
        return derivative_rule(eqn)
    except Exception:  # noqa: BLE001 (a user's rule, which nobody may ever need)
        return rule
