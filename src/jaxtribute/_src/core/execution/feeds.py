"""Iterators inside a `jd.function`: the batches that it draws become inputs of the compiled program.

A function that takes a distributed iterator and calls `next` on it several times is compiled into one program
of several steps. Before each call as many batches are drawn as the last call used; if they have the shapes of a
known program it runs, otherwise the function is traced for what came, be it the last, smaller batch or an end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax.tree_util import tree_flatten

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.eager import EagerStep, NotSplittable
from jaxtribute._src.core.execution.traced import TracedFunction, feed_p
from jaxtribute._src.core.jaxprs.core import recorded_in
from jaxtribute._src.core.types import Leaf
from jaxtribute.errors import ArgumentError, OutOfRangeError, TraceError

T = TypeVar("T")


class NoValueError(OutOfRangeError, ArgumentError):
    """An `Optional` has no value, as the data has ended: TensorFlow's error for it is `InvalidArgumentError`."""


class Optional(Generic[T]):
    """An element, or nothing at the end of the data.

    Source: `tf.experimental.Optional`.
    """

    def __init__(self, *value: T) -> None:
        self._value = value

    def has_value(self) -> bool:
        """True if there is an element."""
        return bool(self._value)

    def get_value(self) -> T:
        """Returns the element.

        Raises:
          NoValueError: if there is none.
        """
        if not self._value:
            raise NoValueError("this Optional has no value: the data has ended. HINT: ask has_value() first.")
        return self._value[0]

    def __repr__(self) -> str:
        return f"Optional({', '.join(map(repr, self._value))})"


class EndOfData(StopIteration):
    """End of a distributed dataset, as its iterators tell it; a `StopIteration` of other code is none."""


class EndedError(OutOfRangeError, EndOfData):
    """End of the data in a `jd.function`: TensorFlow's error there, and that of Python's `next`.

    Args:
      batches: how many of the call came before it.
    """

    def __init__(self, batches: int) -> None:
        super().__init__(
            f"the data has ended in a jd.function after {batches} batches of this call. HINT: loop with `for`, or ask "
            "get_next_as_optional().has_value()."
        )


class Drawn(NamedTuple):
    """A batch taken from an iterator, and the iterator's positions around it."""

    batch: Any
    before: Any
    after: Any


class Feed(ABC):
    """An iterator from which a compiled function may draw."""

    @abstractmethod
    def draw(self) -> Drawn:
        """Takes the next batch.

        Raises:
          EndOfData: at the end of the data.
        """

    @abstractmethod
    def hand_back(self, batches: Sequence[Drawn]) -> None:
        """Puts batches that were drawn and not used in front of those to come."""


class Draws:
    """Batches that one call draws: some taken in advance, then more as the trace asks for them.

    Args:
      feeds: the iterators among the function's arguments.
    """

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.feeds = feeds
        self.order: list[int] = []
        """For each batch the place of its iterator in `feeds`."""
        self.batches: list[Drawn] = []
        self.ended: int | None = None
        """The iterator whose data ended, if one's did."""
        self.used = 0

    def prefetch(self, order: Sequence[int]) -> None:
        """Draws as the last call did, up to the end of the data."""
        feeds, batches, taken = self.feeds, self.batches, self.order
        for place in order:
            try:
                batches.append(feeds[place].draw())
            except StopIteration:
                self.ended = place
                return
            taken.append(place)

    def proxies(self) -> list[Proxy]:
        """The iterators as the function sees them, from the first batch on."""
        self.used = 0
        return [Proxy(self, place) for place in range(len(self.feeds))]

    def _draw(self, place: int) -> bool:
        try:
            batch = self.feeds[place].draw()
        except StopIteration:
            self.ended = place
            return False
        self.order.append(place)
        self.batches.append(batch)
        return True

    def take(self, place: int) -> Any:
        """The next batch of iterator `place`.

        Raises:
          EndedError: at the end of its data.
        """
        if self.used < len(self.order) and self.order[self.used] != place:
            self.hand_back(self.used)  # this trace draws in another order than the last
        # Nothing is left of what was drawn in advance.
        if self.used == len(self.order):
            with jax.ensure_compile_time_eval():  # a trace may be under way
                if self.ended == place or not self._draw(place):
                    raise EndedError(self.used)
        self.used += 1
        return self.batches[self.used - 1].batch

    def hand_back(self, start: int) -> None:
        """Returns the batches from `start` on to their iterators."""
        for place, feed in enumerate(self.feeds):
            feed.hand_back([b for b, p in zip(self.batches[start:], self.order[start:], strict=True) if p == place])
        if self.ended in self.order[start:]:
            self.ended = None
        del self.batches[start:], self.order[start:]

    def arrays(self) -> tuple[list[Any], Any]:
        """The arrays of all batches; and what a program depends on: whose batches, their shapes, whose data ended."""
        leaves, tree = tree_flatten([drawn.batch for drawn in self.batches])
        return leaves, (tuple(self.order), tree, tuple([(leaf.shape, leaf.dtype) for leaf in leaves]), self.ended)


class Proxy(Iterator[Any]):
    """Stand-in for an iterator, in the function."""

    def __init__(self, draws: Draws, place: int) -> None:
        self._draws, self._place = draws, place

    def __next__(self) -> Any:
        executor = contexts.current().executor
        if not executor.traced:
            return self._draws.take(self._place)
        if not isinstance(executor, TracedFunction):
            raise TraceError(
                "next(iterator) was called inside a replica function or a transformed one, which all share one batch. "
                "HINT: call it in the jd.function itself: strategy.run(step, (next(iterator),))."
            )
        return jax.tree.map(partial(_placeholder, executor), self._draws.take(self._place))

    def get_next(self) -> Any:
        """Returns the next batch.

        Raises:
          OutOfRangeError: at the end of the data.
        """
        return next(self)

    def get_next_as_optional(self) -> Optional[Any]:
        """Returns the next batch as an `Optional`, without a value at the end of the data."""
        try:
            return Optional(next(self))
        except StopIteration:
            return Optional()


def _placeholder(executor: TracedFunction, leaf: Leaf) -> Any:
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    with recorded_in(executor.trace):
        value = feed_p.bind(shape=tuple(array.shape), dtype=array.dtype, key=executor.fed)
    executor.fed += 1
    return value


class FedPrograms:
    """The compiled programs of a function and one structure of arguments with iterators among them.

    Args:
      compile_: makes a program of a traced function.
      call: calls the Python function with array arguments and iterators.
      settle: makes a function run in lockstep that cannot be compiled, for the reason that is given.
    """

    def __init__(
        self,
        compile_: Callable[[Callable[[Sequence[Any]], Any], Sequence[Any]], Any],
        call: Callable[[Sequence[Any], Sequence[Any]], Any],
        settle: Callable[[Callable[[Sequence[Any]], Any], NotSplittable], Callable[[Sequence[Any]], Any]],
    ) -> None:
        self._compile, self._call, self._settle = compile_, call, settle
        self._order: list[int] = []
        self._programs: dict[Any, tuple[Any, type[StopIteration] | None]] = {}
        self._reason = NotSplittable()

    def __call__(self, feeds: Sequence[Feed], leaves: Sequence[Any]) -> Any:
        """Draws, traces if need be, and runs.

        Raises:
          EndedError: the function met the end of the data; what it did until then has taken effect.
        """
        draws = Draws(feeds)
        # The batches must be there before the program is known, as their shapes choose it. So as many are drawn as the
        # last call used; those that this call does not want go back.
        draws.prefetch(self._order)
        shapes = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        fed, signature = draws.arrays()
        known = self._programs.get((shapes, signature))
        if known is None:
            known = self._trace(draws, leaves)
            fed, signature = draws.arrays()
            self._programs[shapes, signature] = known
            # At the end of the data a call draws fewer: the next epoch's first call is as those before it.
            if draws.ended is None:
                self._order = list(draws.order)
        program, end = known
        if program is None:
            return self._run_uncompiled(draws, leaves)
        executor = contexts.current().executor
        result = program([*leaves, *fed], executor if isinstance(executor, EagerStep) else None)
        # Only now: the steps before the end of the data have taken effect, as they would have in Python.
        if end is not None:
            raise EndedError(len(draws.order)) if end is EndedError else end
        return result

    def _trace(self, draws: Draws, leaves: Sequence[Any]) -> tuple[Any, type[StopIteration] | None]:
        """A program, and the error with which it ends, if it meets the end of the data."""
        end: type[StopIteration] | None = None

        def call(dynamic: Sequence[Any]) -> Any:
            nonlocal end
            try:
                return self._call(dynamic, draws.proxies())
            except StopIteration as error:
                end = EndedError if isinstance(error, EndedError) else StopIteration
                return None

        try:
            program = self._compile(call, leaves)
        except NotSplittable as reason:
            self._reason, program = reason, None
        except BaseException:
            draws.hand_back(0)
            raise
        if program is not None:
            draws.hand_back(draws.used)
        return program, end

    def _run_uncompiled(self, draws: Draws, leaves: Sequence[Any]) -> Any:
        """Runs the Python function on the batches themselves."""
        try:
            return self._settle(lambda dynamic: self._call(dynamic, draws.proxies()), self._reason)(leaves)
        finally:
            draws.hand_back(draws.used)
