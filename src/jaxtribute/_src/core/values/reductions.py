"""`Reduction`: all that an operation is, of those that values of the replicas are reduced by.

Every reduction adds up what the replicas contribute; what they contribute, and what becomes of the sum, is here and
nowhere else. Whoever reduces asks for `reduction_of(op)`, which refuses an operation that has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.numbers import widened


class Reduction(ABC):
    """An operation: how values are prepared, what an idle replica leaves out, and how the sum is finished."""

    @abstractmethod
    def prepared(self, value: Numeric) -> Any:
        """Returns a replica's value as an array that can be added up."""

    @abstractmethod
    def dropped(self, value: Numeric, is_idle: Any) -> Any:
        """Returns a mask of the elements that do not count, as the replica got no data.

        Args:
          value: a prepared array.
          is_idle: True if the replica is idle, as an array that is broadcast to the value.
        """

    @abstractmethod
    def finish(self, total: Numeric, count: Numeric, given: Any = None) -> Any:
        """Returns the result, from the sum of all contributions.

        Args:
          total: the sum.
          count: the number of contributions.
          given: the dtype of the values before they were prepared, by default that of the sum. The result has it if
            it is inexact.
        """

    @abstractmethod
    def of_equals(self, value: Numeric, replicas: int) -> Any:
        """Returns what replicas come to that all contribute the same value."""

    def kept(self, value: Numeric, is_idle: Any) -> Any:
        """Returns a replica's contribution: the prepared value, with zeros for what does not count.

        It is its own transpose: the cotangents of what a replica did not contribute are left out alike.
        """
        return jnp.where(self.dropped(value, is_idle), jnp.zeros_like(value), value)

    def kept_rows(self, rows: Numeric, idle: Sequence[int]) -> Any:
        """Returns the contributions of all replicas, of which `idle` are idle: a row for each."""
        if not idle:
            return rows
        mine = np.isin(np.arange(rows.shape[0]), idle).reshape(-1, *[1] * (rows.ndim - 1))
        return self.kept(rows, jnp.broadcast_to(jnp.asarray(mine), rows.shape))


class Sum(Reduction):
    """The sum. Booleans count as int32."""

    def prepared(self, value: Numeric) -> Any:
        """Returns the array; the sum of booleans would be a boolean, but it is to count them."""
        array = jnp.asarray(value)
        return array.astype(jnp.int32) if array.dtype == jnp.bool_ else array

    def dropped(self, value: Numeric, is_idle: Any) -> Any:
        """Drops NaNs, as of a mean of nothing. What else an idle replica says may be meant, such as a count."""
        return is_idle & jnp.isnan(value)

    def kept(self, value: Numeric, is_idle: Any) -> Any:
        """Returns the contribution; integers have no NaN."""
        return super().kept(value, is_idle) if jnp.issubdtype(value.dtype, jnp.inexact) else value

    def finish(self, total: Numeric, count: Numeric, given: Any = None) -> Any:
        """Returns the sum, rounded to the dtype of the values if it was made in a wider one."""
        rounds = given is not None and total.dtype != given and jnp.issubdtype(given, jnp.inexact)
        return total.astype(given) if rounds else total

    def of_equals(self, value: Numeric, replicas: int) -> Any:
        return value * jnp.asarray(replicas, value.dtype) if replicas > 1 else value


class Mean(Reduction):
    """The mean. That of integers is of JAX's default float."""

    def prepared(self, value: Numeric) -> Any:
        """Returns integers as floats, and half precision as float32: the sum may not fit if the mean does."""
        array = jnp.asarray(value)
        return widened(array) if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.result_type(float))

    def dropped(self, value: Numeric, is_idle: Any) -> Any:
        """Drops all: an idle replica does not count."""
        return is_idle

    def finish(self, total: Numeric, count: Numeric, given: Any = None) -> Any:
        """Returns the sum divided by the number of contributions: in JAX's default float, if the sum is of integers."""
        mean = total if jnp.issubdtype(total.dtype, jnp.inexact) else total.astype(jnp.result_type(float))
        # By 1 too, which costs nothing: `jaxtribute verify` compares programs of one replica and of several. A count of
        # another dtype would be refused under strict promotion of dtypes.
        mean = mean / jnp.asarray(count, mean.dtype)
        return mean.astype(given) if given is not None and jnp.issubdtype(given, jnp.inexact) else mean

    def of_equals(self, value: Numeric, replicas: int) -> Any:
        return value


REDUCTIONS: dict[str, Reduction] = {"SUM": Sum(), "MEAN": Mean()}
"""The reduction of each operation, by its name."""
