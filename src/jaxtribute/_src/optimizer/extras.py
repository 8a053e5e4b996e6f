"""Arguments of a transformation's update besides gradients, state and parameters, such as the loss.

See `optax.GradientTransformationExtraArgs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optax

from jaxtribute._src.execution.nests import flatten, is_array, is_number
from jaxtribute._src.values.operators import operand
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
    def of(cls, given: Mapping[str, Any]) -> Extras:
        """Takes arguments apart."""
        if not given:
            return NONE
        reduced, first = flatten({name: given[name] for name in REDUCED if name in given})
        others, second = flatten({name: value for name, value in given.items() if name not in REDUCED})
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


def check_taken(transform: Any, given: Mapping[str, Any]) -> None:
    """Checks that a transformation's update takes more arguments.

    Raises:
      ArgumentError: it is one of Optax that does not.
    """
    plain = isinstance(transform, optax.GradientTransformation)
    if given and plain and not isinstance(transform, optax.GradientTransformationExtraArgs):
        raise ArgumentError(
            f"the transformation takes nothing besides gradients, and was given {sorted(given)}. HINT: leave them out, "
            "or make it one that ignores them: optax.with_extra_args_support(transform)."
        )
