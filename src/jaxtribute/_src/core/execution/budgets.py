"""Budgets of memory for what a backward pass keeps: who asked for one, and the add-on that holds to it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from jaxtribute._src.core import points
from jaxtribute._src.core.environment import reader

if TYPE_CHECKING:
    from jaxtribute._src.core.types import Function

Budget: TypeAlias = int | str | None
"""Bytes, a text such as `"12GiB"`, `"auto"`, or None."""
MEMORY = "JAXTRIBUTE_MEMORY"


_default: Budget = None
"""The budget of losses that name none."""


def set_memory_budget(memory: Budget) -> None:
    """Bounds the memory that backward passes keep, for all losses that are traced from now on and name no budget.

    It holds for `jd.value_and_grad`, `jd.grad`, `jd.Model.minimize` and Keras's `fit` under a strategy, in compiled
    functions; what is bounded, and how, `jd.value_and_grad` tells. The environment variable `JAXTRIBUTE_MEMORY` does
    the same.

    Args:
      memory: bytes for each replica, a text such as `"12GiB"`, `"auto"`, or None for no bound.

    Raises:
      ArgumentError: it is no number of bytes.

    Examples:
      >>> jd.config.set_memory_budget("512MiB")
      >>> jd.config.set_memory_budget(None)

    Source: jaxtribute.
    """
    global _default
    _default = checked(memory)


def checked(memory: Budget) -> Budget:
    """A budget that the add-on understands.

    Args:
      memory: what a user asked for.

    Raises:
      ArgumentError: it is no number of bytes.
    """
    return memory if memory is None else points.BUDGETS.last().checked(memory)


def asked_for(memory: Budget) -> Budget:
    """The budget that holds for a loss: its own, or the default."""
    if memory is not None:
        return memory
    return _default if _default is not None else _told()


_told = reader(MEMORY, lambda: checked(os.environ.get(MEMORY) or None))


def within_budget(loss: Function, memory: Budget = None, *, gathers: bool = False) -> Function:
    """A loss whose backward pass keeps no more than a budget.

    Args:
      loss: a function of a nest of arrays, by which it is differentiated, that returns a nest of arrays.
      memory: the budget; None for the default, without which the loss stays as it is.
      gathers: True if variables that were gathered from their slices are gathered again by the backward pass.
    """
    asked = asked_for(memory)
    return loss if asked is None else points.BUDGETS.last().within(loss, asked, gathers=gathers)
