"""`DistributedIterator`: one pass over a distributed dataset, with a position that can be saved."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Self, cast

import jax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.feeds import Drawn, EndOfData, Feed, Optional
from jaxtribute._src.core.input.placement import Apart, Placement
from jaxtribute._src.core.input.prefetch import Prefetcher
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.input.worker_steps import WorkerSteps
from jaxtribute._src.core.observers import INPUT, observed
from jaxtribute._src.core.types import E, Foreign, Nest
from jaxtribute._src.json_reading import read_json
from jaxtribute.errors import InputError, OutOfRangeError, TraceError

_FORMAT = 1


class DistributedIterator(Feed, Generic[E]):
    """Iterates over a distributed dataset, preparing elements ahead of their use.

    Made by `iter(distributed_dataset)`. Dropping it at any point, or `close()`, ends its reading.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> batches = strategy.experimental_distribute_dataset([np.arange(4), np.arange(4, 8)])
      >>> iterator = iter(batches)
      >>> first = next(iterator)
      >>> iterator.get_next_as_optional().has_value()
      True
      >>> iterator.close()

    Source: `tf.distribute.DistributedIterator`.
    """

    def __init__(
        self,
        open_pass: Callable[[int], WorkerSteps],
        epoch: int,
        place: Placement,
        spec: Callable[[], Nest],
        shard: Shard,
        *,
        buffer: int,
    ) -> None:
        self._open_pass = open_pass
        self._epoch = epoch
        self._steps = open_pass(epoch)
        self._place = place
        self._spec = spec
        self._shard = shard
        self._buffer = buffer
        self._prefetcher: Prefetcher[tuple[Nest, dict[str, Any]]] | None = None
        self._position: dict[str, Any] | None = None
        self._closed = False
        self._returned: deque[Drawn] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        if contexts.current().executor.traced:
            raise TraceError(
                f"step {self._step()} of a dataset, in a jd.function to which its iterator was not passed: the batch "
                "would be a constant of the program. HINT: loop outside, and pass batches, or iter(dataset), to it."
            )
        return cast("E", self._advance())

    @observed(INPUT)
    def _advance(self) -> Nest:
        try:
            return self._next_element()
        except StopIteration:
            raise EndOfData from None

    def _next_element(self) -> Nest:
        if self._closed:
            raise EndOfData
        if self._returned:
            drawn = self._returned.popleft()
            self._position = drawn.after
            return drawn.batch
        if self._buffer == 0:
            element, self._position = _make(self._steps, self._place)
            return element.join() if isinstance(element, Apart) else element
        if self._prefetcher is None:
            # Not `self`: the thread would keep alive an iterator that nobody uses any more, and so never end.
            steps, place = self._steps, self._place
            self._prefetcher = Prefetcher(lambda: _make(steps, place), steps.close, self._buffer)
        element, self._position = self._prefetcher.get()
        return element.join() if isinstance(element, Apart) else element

    def draw(self) -> Drawn:
        """Takes the next element, so that it can be handed back; for compiled functions."""
        before = self._position
        element = self._advance()
        return Drawn(element, before, self._position)

    def hand_back(self, batches: Sequence[Drawn]) -> None:
        """Puts elements that were drawn last in front of those to come; for compiled functions."""
        if batches:
            # With their positions: a checkpoint that is saved now must give these elements again.
            self._returned.extendleft(reversed(batches))
            self._position = batches[0].before

    def get_next(self) -> E:
        """Returns the next element: a tree of `PerReplica` values, or of plain arrays for one replica.

        Raises:
          OutOfRangeError: at the end of the data.

        Source: `tf.distribute.DistributedIterator.get_next`.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError(
                f"end of the data after step {self._step()}. HINT: use `for`, or get_next_as_optional()."
            ) from None

    def get_next_as_optional(self) -> Optional[E]:
        """Returns the next element as an `Optional`, without a value at the end of the data.

        In a `jd.function` that is given the iterator `has_value()` is True or False, as Python's `if` needs it: the
        function is traced again for a call in which the data end.

        Source: `tf.distribute.DistributedIterator.get_next_as_optional`.
        """
        try:
            return Optional(next(self))
        except StopIteration:
            return Optional[E]()

    @property
    def element_spec(self) -> Nest:
        """Shapes and dtypes of an element; see `DistributedDataset.element_spec`."""
        return self._spec()

    def _step(self) -> int:
        return int((self._position or self._steps.get_state())["step"])

    def get_state(self) -> dict[str, Any]:
        """Returns the position after the last element that was handed out; what is prefetched does not count.

        Returns:
          Values that JSON can hold. Where every worker goes through the same batches (one worker, or DATA), the
          position holds on any number of workers and replicas; otherwise it is this worker's own.
        """
        return {
            "format": _FORMAT,
            "kind": self._steps.kind,
            "workers": self._shard.workers,
            "worker": self._shard.worker,
            "replicas": self._shard.replicas,
            "epoch": self._epoch,
            "position": self._position if self._position is not None else self._steps.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position, so that the next element is the one that came next when it was saved.

        Raises:
          InputError: if the dataset cannot be entered there, or the position belongs to another kind of sharding,
            or to another worker or number of workers where that matters.
        """
        _check_state(state, self._steps.kind, self._shard)
        # What is prefetched already is of the old position, and the thread goes on from there.
        if self._prefetcher is not None:
            raise InputError(
                f"a position is set before the first element, and this iterator is at step {self._step()}. "
                "HINT: iterator = iter(distributed_dataset); iterator.set_state(state)."
            )
        # Positions of before passes had orders of their own are those of the first.
        epoch = int(state.get("epoch", 0))
        if epoch != self._epoch:
            self._steps.close()
            self._epoch, self._steps = epoch, self._open_pass(epoch)
        self._steps.set_state(state["position"])
        self._position = None
        self._returned.clear()

    def close(self) -> None:
        """Ends the iterator and its thread. Further calls do nothing."""
        self._closed = True
        if self._prefetcher is not None:
            # The thread closes what it reads from: nobody else can tell when it reads no more.
            self._prefetcher.close()
        else:
            self._steps.close()

    async def save(self, directory: Foreign) -> Awaitable[None]:
        """Saves the position into a checkpoint.

        Source: Orbax's protocol for objects with a state of their own (`StatefulCheckpointable`), as in Grain.
        """
        text = json.dumps(self.get_state())
        return _write(directory, text)

    async def load(self, directory: str | PathLike[str]) -> Awaitable[None]:
        """Restores the position from a checkpoint, also one of another number of workers if that is possible.

        Source: Orbax's protocol for objects with a state of their own (`StatefulCheckpointable`), as in Grain.
        """
        return _read(Path(directory), self.set_state)


def _make(steps: WorkerSteps, place: Placement) -> tuple[Nest, dict[str, Any]]:
    # With its position: whoever saves means the last element that was handed out, not what waits in the buffer.
    step = next(steps)
    return place(step), steps.get_state()


def _check_state(state: dict[str, Any], kind: str, shard: Shard) -> None:
    if state.get("format") != _FORMAT:
        raise InputError(
            f"{state!r} is no position of a distributed iterator. HINT: pass what iterator.get_state() returned."
        )
    if state["kind"] != kind:
        raise InputError(
            f"the position is of kind {state['kind']!r} and this iterator of kind {kind!r}. "
            "HINT: restore with the auto_shard_policy that it was saved with."
        )
    theirs = (state["workers"], state["worker"])
    if kind != "global" and theirs != (shard.workers, shard.worker):
        raise InputError(
            f"the position is that of worker {theirs[1]} of {theirs[0]}, and this is worker {shard.worker} of "
            f"{shard.workers}: where each worker reads data of its own, a position holds for that worker only. "
            "HINT: use AutoShardPolicy.DATA, whose positions hold on any number of workers."
        )


def position_file() -> str:
    """The name of this process's file in the folder of an iterator that is saved."""
    return f"process_{jax.process_index()}-of-{jax.process_count()}.json"


async def _write(directory: Foreign, text: str) -> None:
    path = Path(await directory.await_creation())
    (path / position_file()).write_text(text)


async def _read(directory: Path, set_state: Callable[[dict[str, Any]], None]) -> None:
    # Where the number of processes has changed no file has this one's name. All hold the same then, or the position
    # says that it is another worker's, and is refused.
    own = directory / position_file()
    file = own if own.exists() else next(iter(sorted(directory.glob("process_*.json"))), None)
    if file is None:
        raise InputError(
            f"{directory} holds no position of an iterator. HINT: it is saved with the iterator as a checkpointable."
        )
    set_state(read_json(file))
