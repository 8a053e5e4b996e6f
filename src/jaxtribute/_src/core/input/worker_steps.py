"""From batches to steps: which rows each replica of this worker gets, step by step, still on the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

import jax
import numpy as np

from jaxtribute._src.core.input.agreement import StepAgreement, StepRows
from jaxtribute._src.core.input.batches import Batch, check_splittable, empty_like, rows, split
from jaxtribute._src.core.input.sources.base import Pass, Stream
from jaxtribute._src.core.input.splitting import Shard, cycle_sizes, fill, slice_sizes
from jaxtribute._src.core.types import Nest
from jaxtribute._src.core.values.spec import ArraySpec
from jaxtribute.errors import InputError

_SAME = (
    "HINT: make the dataset the same on every worker (seed its shuffles), or shard it yourself in "
    "distribute_datasets_from_function."
)


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """The data of one step for this worker.

    Attributes:
      tree: consecutive rows for the local replicas; None if each has arrays of its own.
      parts: a tree for each local replica; None if they are cut from `tree`.
      sizes: rows of each local replica.
      even: whether the replicas of all workers have equally many.
      rows: rows of each replica of all workers, if that is known and rows are all in which they differ.
    """

    tree: Nest
    parts: list[Nest] | None
    sizes: tuple[int, ...]
    even: bool
    rows: tuple[int, ...] | None = None

    def cut(self) -> list[Nest]:
        """A tree for each local replica."""
        return split(self.tree, self.sizes) if self.parts is None else self.parts


class WorkerSteps(Pass, Protocol):
    """The steps of one pass."""

    kind: str
    """Kind of sharding, which a saved position names: `"global"`, `"local"` or `"function"`."""

    def __next__(self) -> WorkerStep:
        """Makes the next step; raises `StopIteration` when no worker has data."""
        ...


def worker_step(batch: Batch, shard: Shard) -> WorkerStep:
    """The slices of a batch that all workers go through for this worker's replicas.

    Raises:
      InputError: an unbatched scalar, which cannot be cut for more than one replica.
    """
    if shard.replicas == 1:
        return WorkerStep(batch.tree, None, (batch.total or 0,), even=True)
    total = check_splittable(batch, shard.replicas)
    sizes = slice_sizes(total, shard.replicas)
    # The source may have left out rows of other workers: the tree then begins in the middle of the batch.
    start = sum(sizes[: shard.first]) - batch.start
    own = sizes[shard.first : shard.first + shard.local]
    tree = batch.tree if shard.local == shard.replicas else rows(batch.tree, start, start + sum(own))
    return WorkerStep(tree, None, own, even=total % shard.replicas == 0, rows=tuple(sizes))


class GlobalSteps:
    """Every worker goes through the same batches, and its replicas take their slices of each."""

    kind = "global"

    def __init__(self, stream: Stream, shard: Shard, agree: StepAgreement | None) -> None:
        self._stream = stream
        self._shard = shard
        self._agree = agree
        self._step = 0

    def __next__(self) -> WorkerStep:
        try:
            batch = next(self._stream)
        except StopIteration:
            if self._agree is not None:
                self._check(None)
            raise
        step = worker_step(batch, self._shard)
        if self._agree is not None:
            # Its rows before they are shared out: shares may be alike.
            self._check((batch.total or 0, _form([batch.tree])))
        self._step += 1
        return step

    def _check(self, own: StepRows) -> None:
        """Asks the others, for a source whose end is not known: workers that differ would wait for each other."""
        assert self._agree is not None
        others = self._agree(self._step, own)
        if len(set(others)) == 1:
            return
        having = [worker for worker, other in enumerate(others) if other is not None]
        numbers = [other[0] for other in others if other is not None]
        differ = "the batches of the workers have rows of other shapes or dtypes"
        if len(having) < len(others):
            differ = f"workers {having} have data and the others have none"
        elif len(set(numbers)) > 1:
            differ = f"the batches of the workers have {numbers} rows"
        raise InputError(
            f"at step {self._step} {differ}, though under AutoShardPolicy.DATA all go through the same batches. {_SAME}"
        )

    def get_state(self) -> dict[str, Any]:
        """The position."""
        return {"source": self._stream.get_state(), "step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        self._stream.set_state(state["source"])
        self._step = int(state["step"])

    def close(self) -> None:
        """Closes what is read from."""
        self._stream.close()


class _Rowless:
    """Batches without rows, for replicas without data: as their own dataset says, or else as other workers' are.

    Args:
      template: gives the spec of a batch; None if this worker's datasets have none.
      agree: how workers tell each other.
    """

    def __init__(self, template: Callable[[], Nest | None], agree: StepAgreement) -> None:
        self.template, self._agree = template, agree
        self._form: Nest = None
        self._met = False

    def meet(self, step: int, others: Sequence[StepRows], trees: Sequence[Nest]) -> None:
        """Asks the other workers for the form of a batch, the first time that some have data and others have none.

        Args:
          step: the step.
          others: the rows of all workers in it.
          trees: this worker's batches in it.

        Raises:
          InputError: on all workers, if nobody can tell, or a batch is an unbatched scalar.
        """
        if self._met or None not in others:
            return
        self._met = True
        own = trees[0] if trees else self.template()
        # Below 0: no step's number.
        told = self._agree(~step, () if own is None else _as_numbers(own))
        forms = [_built(json.loads(bytes(each))) for each in told if each]
        if any(not leaf.shape for form in forms for leaf in jax.tree.leaves(form)):
            raise _unbatched("some workers")
        if not forms:
            raise InputError(
                f"at step {step} some workers have no data and have had none, and the others' batches have other parts "
                "than dictionaries, tuples and lists of arrays. HINT: give each worker at least one batch."
            )
        if own is None:
            self._form = forms[0]

    def form(self) -> Nest:
        """The spec of a batch, or a batch."""
        return self.template() if self._form is None else self._form


def _as_numbers(tree: Nest) -> tuple[int, ...]:
    """The form of a batch in JSON, as an agreement carries it; nothing for classes that JSON does not know."""
    try:
        return tuple(json.dumps(_told(tree)).encode())
    except TypeError:
        return ()


def _told(tree: Nest) -> Any:
    """The form of a tree of dictionaries, tuples, lists and arrays.

    Raises:
      TypeError: there is something else in it.
    """
    if type(tree) is dict and all(type(key) is str for key in tree):
        return {key: _told(tree[key]) for key in tree}
    if type(tree) in (tuple, list):
        return [type(tree) is tuple, *map(_told, tree)]
    if tree is None or isinstance(tree, dict | tuple | list):
        raise TypeError(type(tree))
    dtype = np.dtype(tree.dtype)
    return f"{dtype.str if dtype.kind in 'USO' else dtype.name} {json.dumps(list(tree.shape))}"


def _built(told: Any) -> Nest:
    """The inverse of `_told`: a tree of specs."""
    if isinstance(told, dict):
        return {key: _built(told[key]) for key in told}
    if isinstance(told, list):
        is_tuple, *parts = told
        return tuple(map(_built, parts)) if is_tuple else list(map(_built, parts))
    dtype, _, shape = told.partition(" ")
    return ArraySpec(tuple(json.loads(shape)), np.dtype(dtype))  # JAX has named its own types


def _unbatched(replicas: str) -> InputError:
    return InputError(
        f"the data ended for {replicas}, and an unbatched scalar cannot be left empty. HINT: batch the dataset, or "
        "make its size a multiple of the replicas."
    )


class LocalSteps:
    """Each worker has batches of its own. Each is used up over as many steps as there are workers.

    Args:
      stream: this worker's batches, of the global batch size.
      shard: this worker's place.
      agree: how workers learn who has data.
      template: gives the spec of a batch, for a worker without data; None if it has none at all.
      batch_size: rows of a full batch, or 0 if that is not known: then the largest batch so far counts as full.
    """

    kind = "local"

    def __init__(
        self, stream: Stream, shard: Shard, agree: StepAgreement, template: Callable[[], Nest | None], batch_size: int
    ) -> None:
        self._stream = stream
        self._shard = shard
        self._agree = agree
        self._rowless = _Rowless(template, agree)
        self._before: Any = stream.get_state()
        self._batch: Batch | None = None
        self._used = 0
        self._cut = 0
        self._largest = batch_size
        self._step = 0

    def __next__(self) -> WorkerStep:
        sizes, tree = self._take()
        # Asked without data too: as long as another worker has some, its collectives wait for this one's replicas.
        others = self._agree(self._step, sizes)
        if not any(others):
            raise StopIteration
        self._rowless.meet(self._step, others, [] if sizes is None else [tree])
        self._step += 1
        counts = _rows_of_all(others, self._shard.local)
        if sizes is None:
            return WorkerStep(empty_like(self._rowless.form()), None, (0,) * self._shard.local, even=False, rows=counts)
        return WorkerStep(tree, None, sizes, even=len(set(counts)) == 1, rows=counts)

    def _take(self) -> tuple[tuple[int, ...] | None, Nest]:
        """The next rows of this worker's own batches."""
        while self._batch is None:
            self._before = self._stream.get_state()
            try:
                batch = next(self._stream)
            except StopIteration:
                return None, None
            total = check_splittable(batch, self._shard.replicas)
            self._largest = max(self._largest, total)
            # A batch without rows makes no step: the next one is read.
            if total > self._used:
                self._batch = batch
        total = check_splittable(self._batch, self._shard.replicas)
        # Cut as a full batch would be, a short last one too: its replicas then have as many
        # rows as before, fewer at its end, or none.
        cycle = cycle_sizes(self._largest, self._shard)
        local = self._shard.local
        sizes = fill(total - self._used, cycle[self._cut : self._cut + local])
        start, self._used, self._cut = self._used, self._used + sum(sizes), self._cut + local
        tree = rows(self._batch.tree, start, self._used)
        if self._used >= total:
            # The position in the middle of a batch is the one before it, and the rows used: the batch is read again.
            # At its end the next one is.
            self._batch, self._used, self._cut = None, 0, 0
            self._before = self._stream.get_state()
        return sizes, tree

    def get_state(self) -> dict[str, Any]:
        """The position."""
        return {"source": self._before, "step": self._step, "used": self._used, "largest": self._largest}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        self._stream.set_state(state["source"])
        self._before, self._batch = state["source"], None
        self._used, self._largest = int(state["used"]), int(state["largest"])
        self._cut, self._step = self._cut_after(self._used), int(state["step"])

    def _cut_after(self, used: int) -> int:
        """Number of slices of a batch that make up its first `used` rows, for as many replicas as there are now."""
        cycle = cycle_sizes(self._largest, self._shard)
        # Another number of replicas cuts the batch at other rows; it can go on only where both cut.
        for cut in range(0, len(cycle), self._shard.local):
            if sum(cycle[:cut]) == used:
                return cut
        raise InputError(
            f"the position is {used} rows into a batch of {self._largest}, where {self._shard.replicas} replicas on "
            f"{self._shard.workers} workers do not cut it. HINT: restore with the number of replicas that it was "
            "saved with, or save at the end of a batch."
        )

    def close(self) -> None:
        """Closes what is read from."""
        self._stream.close()


class FunctionSteps:
    """Each replica gets a batch of its own, from pipelines that batch and shard by themselves.

    Args:
      streams: one, at which the worker's replicas take turns, or one a replica.
      shard: this worker's place.
      agree: how workers learn who has data.
      template: gives the spec of an element, for replicas without data; None if there is none at all.
      static: whether batches must all have one shape, so that a step that some replicas would sit out is left out.
    """

    kind = "function"

    def __init__(
        self,
        streams: Sequence[Stream],
        shard: Shard,
        agree: StepAgreement,
        template: Callable[[], Nest | None],
        *,
        static: bool,
    ) -> None:
        self._streams = streams
        self._shard = shard
        self._agree = agree
        self._rowless = _Rowless(template, agree)
        self._static = static
        self._step = 0

    def __next__(self) -> WorkerStep:
        local = self._shard.local
        # All of them, though one may have ended: the pipelines of a worker stay at one step.
        parts = list(map(self._next, range(local)))
        given = [part.tree for part in parts if part is not None]
        has_data = len(given) == local or self._goes_on(given)
        trees = [self._empty(given[0]) if part is None else part.tree for part in parts] if has_data else []
        sizes = tuple(0 if part is None else part.total or 0 for part in parts) if has_data else None
        # A number for shapes and dtypes goes along with the rows: workers must know whether all have the same, without
        # an exchange of its own.
        others = self._agree(self._step, None if sizes is None else (*sizes, _form(trees)))
        told = [other for other in others if other is not None]
        # Where all batches have one shape, a step that some have no data for would be another program; it is left out,
        # as a remainder is.
        if not told or (self._static and len(told) < len(others)):
            raise StopIteration
        self._rowless.meet(self._step, others, trees)
        self._step += 1
        # The last number of each is the form; those before it are rows.
        counts = _rows_of_all([other and other[:-1] for other in others], local)
        forms = {other[-1] for other in told}
        alike = len(forms) == 1 and forms != {0}
        even = len(set(counts)) == 1 and alike
        trees = trees or [self._empty(self._rowless.form())] * local
        return WorkerStep(None, trees, sizes or (0,) * local, even=even, rows=counts if alike else None)

    def _next(self, replica: int) -> Batch | None:
        try:
            # A stream for each replica, or one of which all take in turn.
            return next(self._streams[replica % len(self._streams)])
        except StopIteration:
            return None

    def _goes_on(self, given: list[Nest]) -> bool:
        """True if there is a step although some of this worker's replicas have no batch."""
        if given and self._shard.workers == 1:
            # Numbers without rows have one shape, too: nobody can be given none of them.
            return not (self._static or all(not leaf.shape for leaf in jax.tree.leaves(given[0])))
        return bool(given)

    def _empty(self, like: Nest) -> Nest:
        if any(not leaf.shape for leaf in jax.tree.leaves(like)):
            raise _unbatched(f"some of {self._shard.local} replicas")
        return empty_like(like)

    def get_state(self) -> dict[str, Any]:
        """The position."""
        return {"sources": [stream.get_state() for stream in self._streams], "step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        for stream, position in zip(self._streams, state["sources"], strict=True):
            stream.set_state(position)
        self._step = int(state["step"])

    def close(self) -> None:
        """Closes what is read from."""
        for stream in self._streams:
            stream.close()


def _rows_of_all(told: Sequence[StepRows], local: int) -> tuple[int, ...]:
    """Rows of each replica of all workers; none for the `local` replicas of a worker without data."""
    counts: list[int] = []
    for each in told:
        counts += (0,) * local if each is None else each
    return tuple(counts)


def _form(trees: Sequence[Nest]) -> int:
    """A number for the shapes, but for their rows, and dtypes that all trees have; 0 if they differ."""
    forms: set[str] = set()
    for tree in trees:
        kinds = [(leaf.shape[1:], str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]
        forms.add(str(kinds))
    # Never 0, which says that they differ.
    return crc32(forms.pop().encode()) or 1 if len(forms) == 1 else 0
