"""`Window`: what an island does between two meetings with the others; an island that joins is told another's."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxtribute import Mirrored, PerReplica, Variable
from jaxtribute._src.addons.elastic.journal import LARGEST
from jaxtribute.extending import ReplicaMesh
from jaxtribute.typing import Nest

_REPLICAS, _MIRRORED = "parts of replicas", "the same on all replicas"


class LargeResult:
    """Stands for what a call has returned that is not kept for islands that join."""


Call = tuple[bool, Any]
"""A call: whether it has updated parameters, and what it has returned, as `kept`."""


@dataclass
class Window:
    """The calls of programs and of `run` since the last meeting.

    Attributes:
      steps: how many have updated parameters.
      examples: how many examples these have seen.
      calls: all of them.
      ahead: what another island's calls have returned, which this one's are given; None if it computes them.
    """

    steps: int = 0
    examples: int = 0
    calls: list[Call] = field(default_factory=list[Call])
    ahead: deque[Call] | None = None

    def note(self, result: Nest, rows: int | None) -> None:
        """Takes note of a call.

        Args:
          result: what it has returned.
          rows: the number of examples that it has learned from; None if it has not updated parameters.
        """
        if rows is not None:
            self.steps += 1
            self.examples += rows
        self.calls.append((rows is not None, kept(result)))

    def told(self) -> list[Any]:
        """The calls, for the journal."""
        return [[counts, _whole(result)] for counts, result in self.calls]


def kept(result: Nest) -> Any:
    """A result as the journal can hold it, unless it is large."""
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, (jax.Array, np.ndarray))]
    if sum(array.nbytes for array in arrays) > LARGEST:
        return LargeResult()
    return jax.tree.map(_told, result, is_leaf=_is_value)


def given(result: Nest, mesh: ReplicaMesh) -> Any:
    """A result as a call returns it: the inverse of `kept`."""

    def leaf(told: Any) -> Any:
        if isinstance(told, dict) and _REPLICAS in told:
            return PerReplica.from_parts(told[_REPLICAS], mesh)
        known = isinstance(told, dict) and _MIRRORED in told
        return Mirrored(mesh.replicate(told[_MIRRORED]), mesh) if known else told

    return jax.tree.map(leaf, result, is_leaf=_is_told)


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, (PerReplica, Mirrored, Variable))


def _is_told(leaf: Any) -> bool:
    return isinstance(leaf, dict) and (_REPLICAS in leaf or _MIRRORED in leaf)


def _told(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        values: Sequence[Any] = leaf.values
        return {_REPLICAS: list(values)}
    return {_MIRRORED: leaf.values[0]} if isinstance(leaf, Mirrored) else leaf


def _whole(result: Any) -> Any:
    """A result, unless a later call has taken over its memory."""
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    return LargeResult() if any(array.is_deleted() for array in arrays) else result
