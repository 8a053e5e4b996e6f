"""`tf.train.ExponentialMovingAverage`: averages of variables over the steps of a training, kept beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from jaxtribute import Variable
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import ArrayLike


class ExponentialMovingAverage:
    """Keeps averages of variables, in which each value weighs less the older it is.

    Args:
      decay: the weight of the average so far; the variable's value weighs `1 - decay`.
      num_updates: the number of updates until now, if the decay shall begin smaller, with `(1 + n) / (10 + n)`.
      zero_debias: without effect on variables, whose averages begin with their values.
      name: stands behind the variables' names in those of the averages.

    Source: `tf.train.ExponentialMovingAverage`.
    """

    def __init__(
        self,
        decay: ArrayLike,
        num_updates: ArrayLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates, self._name = decay, num_updates, name
        self._averages: dict[int, tuple[Variable, Variable]] = {}
        """By identity, each variable with its average."""

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    def apply(self, var_list: Iterable[Variable] | None = None) -> None:
        """Makes the averages that are missing, and brings all of them on.

        In a replica's function the replicas' averages are brought together by their mean.

        Args:
          var_list: the variables.

        Raises:
          ArgumentTypeError: something else than a variable of floats.

        Source: `tf.train.ExponentialMovingAverage.apply`.
        """
        variables = [] if var_list is None else list(var_list)
        for variable in variables:
            _check(variable)
            if id(variable) not in self._averages:
                self._averages[id(variable)] = variable, self._made(variable)
        for variable in variables:
            average = self._averages[id(variable)][1]
            # What is added is the step, so that the sum loses no digits of the average.
            average.assign_sub((average.read_value() - variable.read_value()) * self._rate(average.dtype))

    def _made(self, variable: Variable) -> Variable:
        return Variable(variable.read_value, trainable=False, name=self.average_name(variable), aggregation="MEAN")

    def _rate(self, dtype: Any) -> Any:
        decay = jnp.asarray(self._decay, dtype)
        if self._num_updates is not None:
            updates = jnp.asarray(self._num_updates, dtype)
            decay = jnp.minimum(decay, (1 + updates) / (10 + updates))
        return 1 - decay

    def average(self, var: Variable) -> Variable | None:
        """Returns the average of a variable, or None if `apply` has not been given it.

        Source: `tf.train.ExponentialMovingAverage.average`.
        """
        known = self._averages.get(id(var))
        return None if known is None else known[1]

    def average_name(self, var: Variable) -> str:
        """Returns the name of a variable's average. Source: `tf.train.ExponentialMovingAverage.average_name`."""
        return f"{var.name.removesuffix(':0')}/{self._name}"

    def variables_to_restore(self, moving_avg_variables: Iterable[Variable] | None = None) -> dict[str, Variable]:
        """Returns variables by the names under which their averages, or they themselves, are saved.

        Args:
          moving_avg_variables: those that have averages; by default all that `apply` was given.

        Source: `tf.train.ExponentialMovingAverage.variables_to_restore`.
        """
        given = [known[0] for known in self._averages.values()]
        return {
            self.average_name(var): var for var in (given if moving_avg_variables is None else moving_avg_variables)
        }


def _check(variable: Any) -> None:
    if not isinstance(variable, Variable):
        raise ArgumentTypeError(
            f"ExponentialMovingAverage averages variables, not {type(variable).__name__}. HINT: keep the value in a "
            "tf.Variable."
        )
    if not jnp.issubdtype(variable.dtype, jnp.floating):
        raise ArgumentTypeError(
            f"ExponentialMovingAverage averages floats, and {variable.name} holds {variable.dtype}. HINT: make it one "
            "of floats."
        )
