"""`iter(tf.data.Dataset)`: an iterator that a compiled function may be passed, to read its elements there."""

from __future__ import annotations

import collections.abc
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute.errors import OutOfRangeError, TraceError
from jaxtribute.extending import Context, Drawn, Feed
from jaxtribute.input import Optional
from jaxtribute.typing import Leaf, Nest


@telling_absent("tf.data.Iterator")
class Iterator(Feed, collections.abc.Iterator[Any]):
    """An iterator over the elements of a dataset.

    Args:
      elements: the elements, on the host.
      convert: makes a tensor of a leaf of them.
      spec: finds the shapes and types of an element.

    Source: `tf.data.Iterator`.
    """

    def __init__(
        self, elements: collections.abc.Iterator[Any], convert: Callable[[Leaf], Any], spec: Callable[[], Nest]
    ) -> None:
        self._elements, self._convert, self._spec = elements, convert, spec
        self._returned: deque[Any] = deque()
        # A loop over a dataset within a function that is traced reads all of it there.
        self._traced = Context.current().executor.traced

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        """Returns the next element.

        Raises:
          StopIteration: at the end of the data.
          TraceError: in a compiled function that was not passed the iterator.
        """
        if Context.current().executor.traced and not self._traced:
            raise TraceError(
                "next(iterator) in a tf.function to which the iterator was not passed: its element would become a "
                "constant of the program. HINT: pass the iterator as an argument of the function."
            )
        return self.draw().batch

    def draw(self) -> Drawn:
        """Takes the next element, so that it can be handed back; for compiled functions."""
        if self._returned:
            return Drawn(self._returned.popleft(), None, None)
        return Drawn(jax.tree.map(self._convert, next(self._elements)), None, None)

    def hand_back(self, batches: Sequence[Drawn]) -> None:
        """Puts elements that were drawn last in front of those to come; for compiled functions."""
        self._returned.extendleft(drawn.batch for drawn in reversed(batches))

    def get_next(self, name: str | None = None) -> Any:
        """Returns the next element. Source: `tf.data.Iterator.get_next`.

        Raises:
          OutOfRangeError: at the end of the data.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(
                "the data has ended. HINT: loop with `for`, or ask get_next_as_optional().has_value()."
            ) from None

    def get_next_as_optional(self) -> Optional[Any]:
        """Returns the next element as an `Optional`, without a value at the end of the data.

        Source: `tf.data.Iterator.get_next_as_optional`.
        """
        try:
            return Optional(next(self))
        except StopIteration:
            return Optional()

    @property
    def element_spec(self) -> Any:
        """Shapes and types of an element. Source: `tf.data.Iterator.element_spec`."""
        return self._spec()


def get_next_as_optional(iterator: Any) -> Optional[Any]:
    """Returns the next element of an iterator as an `Optional`, without a value at the end of the data.

    Source: `tf.data.experimental.get_next_as_optional`.
    """
    return iterator.get_next_as_optional()
