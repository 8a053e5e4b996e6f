"""Iterators that a step draws from: in their place it gets what it has drawn, as arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute.errors import OutOfRangeError
from jaxtribute.extending import Nests
from jaxtribute.typing import Function as Callee


class Replay(Iterator[Any]):
    """Gives the batches of one call again.

    Args:
      batches: the batches.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = list(batches)

    def __next__(self) -> Any:
        if not self._batches:
            raise StopIteration
        return self._batches.pop(0)

    def get_next(self) -> Any:
        """Returns the next batch.

        Raises:
          OutOfRangeError: there is none.
        """
        if not self._batches:
            raise OutOfRangeError("the step draws more batches than it did.")
        return next(self)

    def get_next_as_optional(self) -> Any:
        """Refuses: whether there is a next batch depends on the data."""
        raise CannotVerify("it asks for a next batch with get_next_as_optional")


def replayed(
    call: Callee, args: Sequence[Any], kwargs: dict[str, Any], drawn: Mapping[int, Sequence[Any]]
) -> tuple[Callee, Sequence[Any], dict[str, Any]]:
    """A function and its arguments, with batches as arguments in the place of iterators.

    Args:
      call: the function.
      args: its arguments.
      kwargs: those by name.
      drawn: by the ids of iterators what was drawn of them.
    """
    leaves, tree = Nests.flatten((tuple(args), kwargs))
    places = [place for place, leaf in enumerate(leaves) if hasattr(leaf, "__next__")]
    if not places or not all(drawn.get(id(leaves[place])) for place in places):
        return call, args, kwargs
    batches = [list(drawn[id(leaves[place])]) for place in places]

    def again(others: list[Any], batches: list[list[Any]]) -> Any:
        values = list(others)
        for place, own in zip(places, batches, strict=True):
            values[place] = Replay(own)
        args, kwargs = tree.unflatten(values)
        return call(*args, **kwargs)

    others = [0 if place in places else leaf for place, leaf in enumerate(leaves)]
    return again, (others, batches), {}
