"""`Optimizer`: an Optax transformation applied to variables under any strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import jax
import numpy as np
import optax

from jaxtribute import context as contexts
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, StrategyMixError
from jaxtribute.optimizer.slicing import Slice
from jaxtribute.optimizer.slots import Slots, make_slots
from jaxtribute.optimizer.updates import sliced_update, whole_update
from jaxtribute.values.distributed import PerReplica
from jaxtribute.values.enums import ReduceOp
from jaxtribute.values.operators import operand
from jaxtribute.values.policies import MirroredPolicy, ShardedPolicy
from jaxtribute.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute.strategies.base import Strategy

_LARGE_BYTES = 1 << 20
_MANY_REPLICAS = 4
"""With two replicas the update that is saved costs less than scattering and gathering (12 % of a large MLP's step)."""


class Optimizer:
    """Updates variables by an Optax transformation; its slots are variables beside those that it updates.

    The same call works under every strategy: in a replica function `apply_gradients` first reduces the
    gradients over the replicas.

    Args:
      transform: any `optax.GradientTransformation`, such as `optax.adam(1e-3)`.
      variables: the variables to update, a nest; all of one strategy.
      shard_update: whether each replica updates one slice of the large variables and holds the slots of that
        slice only, so that the slots take `1 / replicas` of the memory on each device. The gradients are
        reduce-scattered and the new values gathered. `"auto"` shards variables of 1 MiB and more over 4 replicas and
        more, where it is not slower. The result is the same for every transformation; those that mix the elements
        of an array (other than by a reduction of all of them, as in a norm) gather their slots for the computation.

    Raises:
      ArgumentError: no variables, or one twice; an unknown `shard_update`.
      ArgumentTypeError: `transform` is no Optax transformation.
      StrategyMixError: variables of different strategies.

    Source: `tf.keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        transform: optax.GradientTransformation,
        variables: Any,
        *,
        shard_update: bool | Literal["auto"] = "auto",
    ) -> None:
        self._transform = transform
        self._variables: tuple[Variable, ...] = tuple(
            cast("list[Variable]", jax.tree.leaves(variables, is_leaf=lambda leaf: isinstance(leaf, Variable)))
        )
        _check_transform(transform)
        _check_variables(self._variables)
        self._strategy: Strategy = self._variables[0].distribute_strategy
        self._mesh = self._strategy.extended.mesh
        stored = {i for i, variable in enumerate(self._variables) if isinstance(variable.policy, ShardedPolicy)}
        chosen = self._choose(shard_update)
        self._slots: Slots = make_slots(transform, self._variables, chosen | stored)
        # A variable that is stored whole and has no slots of its shape has nothing to shard.
        self._sliced: frozenset[int] = chosen.intersection(self._slots.owners) | stored
        self._update = whole_update(transform, self._slots)
        self._eager_update = jax.jit(self._update)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The slots, which a checkpoint must keep besides the variables themselves."""
        return self._slots.variables

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that the optimizer updates."""
        return self._variables

    @property
    def state(self) -> Any:
        """The slots as the nest that the Optax transformation's `init` returns."""
        return self._slots.tree.unflatten(self._slots.variables)

    def __repr__(self) -> str:
        names = ", ".join(variable.name for variable in self._variables)
        return f"<jd.Optimizer of {names}; {len(self._slots.variables)} slots, {len(self._sliced)} variables sharded>"

    def apply_gradients(self, grads_and_vars: Any, reduce_op: ReduceOp | str | None = "SUM") -> None:
        """Reduces gradients over the replicas and updates the variables.

        All replicas must call it. In cross-replica context per-replica gradients are reduced and all others
        taken as they are.

        Args:
          grads_and_vars: gradients in the variables' order (any nest of arrays), or pairs of a gradient and its
            variable in any order; one for every variable.
          reduce_op: SUM (losses are divided by the global batch size), MEAN, or None for gradients that are
            reduced already and equal on all replicas.

        Raises:
          ArgumentError: a gradient is missing, None or one too many.
          ShapeError: a gradient is not shaped as its variable.

        Source: `tf.keras.optimizers.Optimizer.apply_gradients`.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        grads = self._ordered(grads_and_vars)
        context = self._context()
        replica = context.replica
        alone = self._mesh.size == 1 and (context.frame.traced or not context.frame.local)
        if replica is None or alone:
            self._apply_reduced([self._reduced(grad, op) for grad in grads], context)
        elif not context.frame.traced:
            replica.merge_call(self._merged, (grads, op))
        elif self._sliced:
            self._apply_sliced(grads, op, context)
        else:
            self._apply_whole(grads if op is None else replica.all_reduce(op, grads), context)

    def _context(self) -> contexts.Context:
        """The context in force; outside every scope, the cross-replica context of the variables' own strategy."""
        context = contexts.current()
        if context.strategy.is_default and self._strategy is not context.strategy:
            return contexts.Context(self._strategy, None, context.frame)
        return context

    def _choose(self, shard_update: bool | Literal["auto"]) -> frozenset[int]:
        """Which variables are updated in slices."""
        if shard_update not in (True, False, "auto"):
            raise ArgumentError(f"shard_update is {shard_update!r}. HINT: pass True, False or 'auto'.")
        if not shard_update or self._mesh.size == 1:
            return frozenset()
        if shard_update == "auto" and self._mesh.size < _MANY_REPLICAS:
            return frozenset()
        floor = _LARGE_BYTES if shard_update == "auto" else 0
        return frozenset(
            index
            for index, variable in enumerate(self._variables)
            if isinstance(variable.policy, MirroredPolicy)
            and variable.size >= self._mesh.size
            and variable.size * variable.dtype.itemsize >= floor
        )

    def _ordered(self, grads_and_vars: Any) -> list[Any]:
        pairs = list(grads_and_vars) if isinstance(grads_and_vars, (list, tuple, zip)) else grads_and_vars
        if isinstance(pairs, list) and pairs and all(_is_pair(pair) for pair in cast("list[Any]", pairs)):
            found: dict[Variable, Any] = {variable: grad for grad, variable in cast("list[Any]", pairs)}
            unknown = [variable.name for variable in found if variable not in self._variables]
            missing = [variable.name for variable in self._variables if variable not in found]
            twice = len(cast("list[Any]", pairs)) - len(found)
            if unknown or missing or twice:
                raise ArgumentError(
                    f"gradients do not match the optimizer's {len(self._variables)} variables: missing {missing}, not "
                    f"its own {unknown}, {twice} given twice. HINT: pass exactly one pair for each variable given to "
                    "jd.Optimizer."
                )
            grads = [found[variable] for variable in self._variables]
        else:
            grads = jax.tree.leaves(pairs, is_leaf=lambda leaf: leaf is None or isinstance(leaf, PerReplica))
        if len(grads) != len(self._variables):
            raise ArgumentError(
                f"{len(grads)} gradients for {len(self._variables)} variables. "
                "HINT: pass one for each variable, in the order given to jd.Optimizer, or pairs."
            )
        return [_checked(grad, variable) for grad, variable in zip(grads, self._variables, strict=True)]

    def _reduced(self, grad: Any, op: ReduceOp | None) -> Any:
        if not isinstance(grad, PerReplica):
            return grad
        if op is None:
            raise ArgumentError(
                f"reduce_op=None with a gradient that differs between {self._mesh.size} replicas. "
                "HINT: pass reduce_op='SUM' or 'MEAN', or reduce the gradients before."
            )
        return self._strategy.reduce(op, grad, axis=None)

    def _merged(self, strategy: Strategy, grads: list[Any], op: ReduceOp | None) -> None:
        """All replicas' gradients at once, outside any compiled program."""
        self._apply_reduced([self._joined(grad, op) for grad in grads], contexts.current())

    def _joined(self, grad: Any, op: ReduceOp | None) -> Any:
        """One gradient out of what a `merge_call` makes of all replicas' gradients."""
        if isinstance(grad, PerReplica):
            if op is not None:
                return self._reduced(grad, op)
            copies = list(grad.values)  # equal, as they are reduced already
            return jax.make_array_from_single_device_arrays(copies[0].shape, self._mesh.replicated, copies)
        grad = operand(grad)  # the same array on every replica
        return grad * np.asarray(self._mesh.size, grad.dtype) if op is ReduceOp.SUM else grad

    def _apply_reduced(self, grads: Sequence[Any], context: contexts.Context) -> None:
        if self._sliced and context.frame.local:
            self._apply_sliced(grads, None, context)
        else:
            self._apply_whole(grads, context)

    def _apply_whole(self, grads: Sequence[Any], context: contexts.Context) -> None:
        frame = context.frame
        slots = [slot.policy.whole(slot, context) for slot in self._slots.variables]
        params = [variable.policy.whole(variable, context) for variable in self._variables]
        grads = [variable.policy.admit(grad) for variable, grad in zip(self._variables, grads, strict=True)]
        update = self._update if frame.traced else self._eager_update
        results = update(grads, slots, params)
        for variable, value in zip((*self._variables, *self._slots.variables), results, strict=True):
            variable.policy.store(variable, value, context)

    def _apply_sliced(self, grads: Sequence[Any], op: ReduceOp | None, context: contexts.Context) -> None:
        idle = () if op is None or context.replica is None else context.replica.idle
        frame = context.frame
        pieces, params = (
            [Slice(frame.get(v), v.shape) if v.policy.split else frame.get(v) for v in variables]
            for variables in (self._slots.variables, self._variables)
        )
        results = sliced_update(self._update, self._sliced, self._mesh.size, grads, pieces, params, op, idle)
        for variable, value in zip((*self._variables, *self._slots.variables), results, strict=True):
            frame.set(variable, value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(cast("Any", value)) == 2 and isinstance(value[1], Variable)


def _checked(grad: Any, variable: Variable) -> Any:
    if grad is None:
        raise ArgumentError(f"the gradient of {variable.name} is None. HINT: pass zeros, or leave the variable out.")
    grad = operand(grad)
    shape = jax.numpy.shape(grad.values[0] if isinstance(grad, PerReplica) else grad)
    if shape != variable.shape:
        raise ShapeError(
            f"the gradient of {variable.name} has shape {shape}, the variable {variable.shape}. "
            "HINT: pass gradients in the variables' order, or pairs of gradient and variable."
        )
    return grad


def _check_transform(transform: Any) -> None:
    if not all(callable(getattr(transform, name, None)) for name in ("init", "update")):
        raise ArgumentTypeError(
            f"transform is {transform!r} of type {type(transform).__name__}. "
            "HINT: pass an Optax transformation, e.g. optax.adam(1e-3)."
        )


def _check_variables(variables: Sequence[Variable]) -> None:
    if not variables or not all(isinstance(variable, Variable) for variable in variables):
        kinds = sorted({type(variable).__name__ for variable in variables})
        raise ArgumentError(
            f"variables holds {kinds or 'nothing'}. HINT: jd.Optimizer updates jd.Variables; for plain arrays call the "
            "Optax transformation itself."
        )
    if len(set(variables)) < len(variables):
        names = [variable.name for variable in variables]
        raise ArgumentError(f"a variable is listed twice among {names}. HINT: list each variable once.")
    first = variables[0].distribute_strategy
    for variable in variables:
        if variable.distribute_strategy is not first:
            raise StrategyMixError(
                f"{variable.name} belongs to {variable.distribute_strategy!r}, {variables[0].name} to {first!r}. "
                "HINT: create all variables of an optimizer in one scope."
            )
