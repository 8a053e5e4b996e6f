"""One call of `apply_gradients`: the arguments that an update takes besides gradients, state and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jaxtribute._src.core.collectives.cross_replica import same_of
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.execution.nests import is_array
from jaxtribute._src.core.optimizer.extras import Extras
from jaxtribute._src.core.optimizer.losses import reduced_in_program, reduced_in_python
from jaxtribute._src.core.types import Leaf
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import ReduceOp
from jaxtribute._src.core.values.slices import alike
from jaxtribute.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtribute._src.core.optimizer.updates import Update

_NAME = "what apply_gradients was given besides gradients"


class Call:
    """The arguments, from the code that calls to the update.

    Args:
      context: the context of the code that calls.
      extras: what it gives besides gradients.
      count: how many gradients it gives.
      op: how they are reduced; None if they are.
    """

    def __init__(self, context: Context, extras: Extras, count: int, op: ReduceOp | None) -> None:
        self._context, self._extras, self._count, self._op = context, extras, count, op
        self._mesh = context.strategy.extended.mesh
        self._of_one = context.replica is not None and self._mesh.size > 1
        """True if the code is one replica's, and has its part of everything."""

    def gathered(self, grads: Sequence[Any]) -> tuple[list[Any], ReduceOp | None]:
        """Gradients for the examples of all replicas, and how all of what is given is still to be reduced."""
        of_examples, rest = list(grads[: self._count]), list(grads[self._count :])
        executor, op = self._context.executor, self._op
        if self._of_one and op is not None:
            rest = executor.all_reduce(rest, op) if rest else []
            return [*executor.all_gather(of_examples, 0), *rest], None
        strategy = self._context.strategy
        whole = [strategy.gather(grad, axis=0) if isinstance(grad, PerReplica) else grad for grad in of_examples]
        return [*whole, *rest], op

    def others(self, extras: Sequence[Any], grads: Sequence[Any], context: Context) -> list[Any]:
        """Arguments that are not reduced, as the update takes them: functions are those of all replicas.

        Args:
          extras: the leaves as the code has them that computes the update.
          grads: the gradients, likewise.
          context: the context of that code.
        """
        if not self._of_one:
            return list(extras)
        idle = next((grad.idle for grad in grads if isinstance(grad, PerReplica)), ())
        return [self._other(leaf, extras, idle, context) for leaf in extras]

    def _other(self, leaf: Leaf, extras: Sequence[Any], idle: Sequence[int], context: Context) -> Any:
        functions = leaf.values if isinstance(leaf, PerReplica) else (leaf,)
        if callable(functions[0]):
            return leaf if self._op is None else self._function(leaf, idle, context)
        if self._extras.has_functions:
            return leaf  # for a function, which takes the replica's own
        if context.executor.local:
            return alike(jnp.asarray(leaf), _NAME) if is_array(leaf) else leaf
        return same_of(leaf, _NAME, self._mesh) if isinstance(leaf, PerReplica) else leaf

    def _function(self, leaf: Any, idle: Sequence[int], context: Context) -> Any:
        assert self._op is not None
        if context.executor.local:
            return reduced_in_program(leaf, context.executor, self._op, self._mesh.size)
        if self._mesh.peers is not None:
            raise ArgumentError(
                f"apply_gradients was given a function outside of a jd.function, where no worker can call those of "
                f"others: {leaf!r}. HINT: compile the step, @jd.function; steps on uneven rows run uncompiled "
                "there: have batches that divide (drop_remainder=True)."
            )
        return reduced_in_python(leaf, self._op, self._context.strategy, idle)

    def named(self, extras: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, of what was given and reduced with the gradients, and the others."""
        return self._extras.named(extras[self._count :], others)

    def bound(self, update: Update, others: Sequence[Any]) -> Callable[..., list[Any]]:
        """An update as a function of the gradients and what is reduced with them, slots and parameters."""

        def bound(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any]) -> list[Any]:
            return update(grads[: self._count], values, params, self.named(grads, others))

        return bound

    @property
    def compiled_once(self) -> bool:
        """True if an update that is kept compiled can take the arguments, none of which is a function."""
        return self._extras.plain
