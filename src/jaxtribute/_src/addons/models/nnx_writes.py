"""Modules of Flax NNX that several replicas would each change by themselves, as no strategy knows of them.

In a program Flax refuses that by itself: a traced function must not change what was made outside. Replicas that run as
Python are no trace to it, so its check asks here, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute.errors import VariableError
from jaxtribute.extending import Context, Library, points
from jaxtribute.typing import Leaf


class _Made:
    """The trace that a variable was made in, as Flax keeps it, and the replica that made it.

    Args:
      trace: Flax's state of the trace.
      replica: the executor of the replica.
    """

    def __init__(self, trace: Leaf, replica: object) -> None:
        self.trace, self.replica = trace, replica

    def __eq__(self, other: object) -> bool:
        return self.trace == (other.trace if isinstance(other, _Made) else other)

    def __hash__(self) -> int:
        return hash(self.trace)


def _replica() -> Any:
    """The run on several replicas, as Python, that the code belongs to; None elsewhere."""
    context = Context.current()
    if context.strategy.num_replicas_in_sync == 1:
        return None
    return context.executor.eager_run


def _patch() -> None:
    from flax.nnx import Variable, tracers  # pyright: ignore[reportMissingImports]

    state: Any = tracers.TraceState
    variable: Any = Variable
    state.__init__ = _remembering(state.__init__)
    variable._check_can_update = _checking(variable._check_can_update)


def _remembering(original: Callable[..., None]) -> Callable[..., None]:
    """`TraceState.__init__`, which notes the replicas that the variable is made by."""

    def made(state: Any) -> None:
        original(state)
        run = _replica()
        if run is not None:
            state._jax_trace = _Made(state._jax_trace, run)

    return made


def _checking(original: Callable[..., None]) -> Callable[..., None]:
    """`Variable._check_can_update`, which Flax calls before each change."""

    def check(variable: Any) -> None:
        original(variable)
        run = _replica()
        # What a replica has made, or was given as an argument, is its own.
        if run is not None and getattr(variable._trace_state.jax_trace, "replica", None) is not run:
            if run not in _written:
                _written[run] = _Written()
                run.endings.append(_written[run].check)
            _written[run].note(variable)

    return check


class _Written:
    """The variables from outside that replica functions have written, and what they held before."""

    def __init__(self) -> None:
        # By identity: a variable is compared by its value.
        self._before: dict[int, tuple[Any, Any]] = {}

    def note(self, variable: Any) -> None:
        """Called before a write."""
        self._before.setdefault(id(variable), (variable, variable.get_raw_value()))

    def check(self) -> None:
        """Checks, when a replica is done, that what it has written is what was there: `nnx.grad` writes all back.

        Raises:
          VariableError: a variable has another value; all have those of before again.
        """
        changed = [variable for variable, before in self._before.values() if _differ(variable.get_raw_value(), before)]
        if not changed:
            return
        for variable, before in self._before.values():
            object.__setattr__(variable, "_raw_value", before)
        raise VariableError(
            f"a replica function has changed a {type(changed[0]).__name__} of Flax NNX that was made outside: each of "
            f"{Context.current().strategy.num_replicas_in_sync} replicas would change it by itself, with nothing "
            "reduced between them. It has its value of before again. HINT: make it a jd.Model, "
            "jd.Model(module, transform), in the strategy's scope, and use that; or pass the module as an argument and "
            "return it."
        )


_written: weakref.WeakKeyDictionary[Any, _Written] = weakref.WeakKeyDictionary()
"""By the run of replicas."""


def _differ(value: Leaf, before: Leaf) -> bool:
    """True if two values of a variable, arrays or nests of them, are not the same."""
    if value is before:
        return False
    ours, theirs = jax.tree.flatten(value), jax.tree.flatten(before)
    return ours[1] != theirs[1] or not all(map(_equal, ours[0], theirs[0]))


def _equal(left: Leaf, right: Leaf) -> bool:
    if left is right:
        return True
    if any(isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.extended) for one in (left, right)):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    left, right = np.asarray(left), np.asarray(right)
    # To the bit, by which a NaN is one, too.
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


points.LIBRARIES.register(Library("flax.nnx", "Optimizer", _patch))
