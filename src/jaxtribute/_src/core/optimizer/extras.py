"""Arguments of a transformation's update besides gradients, state and parameters, such as the loss.

See `optax.GradientTransformationExtraArgs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxtribute._src.core.execution.nests import flatten, is_array, is_number
from jaxtribute._src.core.jaxprs.core import opened
from jaxtribute._src.core.jaxprs.flow import Touched
from jaxtribute._src.core.optimizer.gradients import shape_of
from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.optimizer.slots import Slots, optax_rules
from jaxtribute._src.core.values.operators import operand
from jaxtribute.errors import ArgumentError

REDUCED = ("value", "grad")
"""Names of what each replica has a part of, as it has of the gradients: the loss, and the gradients once more."""


@dataclass(frozen=True)
class Extras:
    """The arguments of one call.

    Attributes:
      reduced: leaves that are reduced over the replicas as the gradients are.
      others: all other leaves: arrays that are the same on all replicas, functions, settings.
      trees: the structures of both, dictionaries by name.
    """

    reduced: tuple[Any, ...] = ()
    others: tuple[Any, ...] = ()
    trees: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> Extras:
        """Takes arguments apart."""
        if not extras:
            return NONE
        reduced, first = flatten({name: extras[name] for name in REDUCED if name in extras})
        others, second = flatten({name: value for name, value in extras.items() if name not in REDUCED})
        return cls(tuple(map(operand, reduced)), tuple(map(operand, others)), (first, second))

    @property
    def has_functions(self) -> bool:
        """True if there are functions among them, which code of one replica computes with that replica's data."""
        return any(map(callable, self.others))

    @property
    def plain(self) -> bool:
        """True if they are arrays and numbers alone."""
        return all(is_array(leaf) or is_number(leaf) for leaf in self.others)

    def named(self, reduced: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, of new leaves."""
        if self.trees is None:
            return {}
        first, second = self.trees
        return {**first.unflatten(reduced), **second.unflatten(others)}


NONE = Extras()


def check_cycle(steps: int, extras: Mapping[str, Any], *, examples: bool) -> None:
    """Checks what is given in a cycle of several calls.

    Raises:
      ArgumentError: it is not known what it would be for all calls together.
    """
    refused = [name for name, value in extras.items() if name == "grad" or any(map(callable, flatten(value)[0]))]
    if any(map(shape_of, flatten(extras.get("value"))[0])):
        refused.append("value of several numbers")
    if examples:
        refused.append("gradients for each example")
    if refused:
        raise ArgumentError(
            f"accumulate_steps={steps} adds up gradients of the variables' shapes and the loss value=, and nothing "
            f"else, not {', '.join(refused)}: a function of one call knows nothing of the examples of others. "
            "HINT: accumulate_steps=1."
        )


def check_taken(transform: Any, extras: Mapping[str, Any]) -> None:
    """Checks that a transformation's update takes more arguments.

    Raises:
      ArgumentError: it is one of Optax that does not.
    """
    plain = isinstance(transform, optax.GradientTransformation)
    if extras and plain and not isinstance(transform, optax.GradientTransformationExtraArgs):
        raise ArgumentError(
            f"the transformation takes nothing besides gradients, and was given {sorted(extras)}. HINT: leave them "
            "out, or make it one that ignores them: optax.with_extra_args_support(transform)."
        )


def uses_value(transform: Any, parameters: Parameters, gradients: Any) -> bool:
    """True if what a transformation's update makes depends on `value`, and on no other further argument.

    Args:
      transform: the transformation.
      parameters: the nest of its parameters.
      gradients: the nest of shapes of what gradients are given for.
    """

    def update(value: Any, grads: Any, state: Any, params: Any) -> Any:
        return Slots.arrays_of(transform.update(grads, state, params, value=value))

    value = jax.ShapeDtypeStruct((), jnp.result_type(float))
    try:
        with optax_rules():
            state = jax.eval_shape(transform.init, parameters.abstract)
            program = opened(jax.make_jaxpr(update)(value, gradients, state, parameters.abstract))
    except Exception:  # noqa: BLE001  # of the transformation, which may need other arguments
        return False
    return any(Touched(False).outputs(program, [True] + [False] * (len(program.invars) - 1)))
