"""States of a step: noise in place of zeros, and numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.comparing import Before
from jaxtribute._src.addons.verify.holding import snapshot
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.stage import Outcome

_NOISE = 0.02
"""Deviation of what is added to trained variables that are all zero: behind them gradients would be zero too."""


def shaken(variable: Variable, number: int) -> Any:
    """Copies a variable; a trained variable that is all zero gets some noise."""
    value = snapshot(variable)
    if not is_trained(variable, value) or value.any():
        return value
    return np.random.default_rng(number).normal(scale=_NOISE, size=value.shape)


def blank(one: Outcome, before: Before) -> list[str]:
    """Names what of the state has become NaN."""
    values = [(variable.name, value) for variable, value in one.written.items() if variable.trainable]
    values += [(f"the result{path}", one.outputs[path]) for path in before.results]
    return [name for name, value in values if not is_key(value) and np.isnan(value).any()]


def is_trained(variable: Variable, value: Any) -> bool:
    """True if a variable that was given a value is one that training changes: integers are not trained."""
    return variable.trainable and value.dtype == np.float64


def is_finite(one: Outcome) -> bool:
    """False if a branch made of a state that does not ask for it what is no number."""
    values = [value for value in (*one.written.values(), *one.outputs.values()) if not is_key(value)]
    return all(np.isfinite(value).all() for value in values if np.asarray(value).dtype.kind == "f")


def is_told(arrangement: Arrangement, one: Outcome, found: Outcome) -> bool:
    """True if what differs from one device says something: of numbers that the step does not ask for it may not."""
    altered = arrangement.altered
    if altered is not None:
        # Rows that are all zero leave a replica nothing to divide by.
        return altered.spoilt or (is_finite(one) and (not altered.empties or is_finite(found)))
    return (arrangement.branch is None and arrangement.stretch == 1) or is_finite(one)
