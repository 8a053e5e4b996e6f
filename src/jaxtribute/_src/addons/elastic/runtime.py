"""`IslandMesh`: one device, and the other islands behind it; what programs and eager steps ask of them."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.addons.elastic.journal import Entry, rebuilt
from jaxtribute._src.addons.elastic.membership import View
from jaxtribute._src.addons.elastic.pieces import EXCHANGE
from jaxtribute._src.addons.elastic.steps import FirstValue, Step
from jaxtribute._src.addons.elastic.values import GlobalBatch
from jaxtribute._src.addons.elastic.variables import Register
from jaxtribute._src.addons.elastic.virtual import Replicas, Span, shares
from jaxtribute.errors import ContextError
from jaxtribute.extending import Context, Overlay, ReplicaMesh, TracedProgram, Tracer, slice_sizes
from jaxtribute.typing import Array, Device, HostArray

R = TypeVar("R")
_LOG = logging.getLogger(__name__)


class Place:
    """Stands for this island's number in the view, among the inputs of a program."""


PLACE = Place()


class IslandMesh(ReplicaMesh):
    """The device of this island's replica, and the other islands.

    Args:
      devices: the device; several only of islands that train alone for a while.
      islands: this island among the others.
      replicas: those that the program sees, for whom islands take steps together.
    """

    def __init__(self, devices: Sequence[Device], islands: Islands, replicas: Replicas = Replicas()) -> None:  # noqa: B008
        super().__init__(devices)
        self.islands, self.replicas = islands, replicas
        self.shared: Callable[[Any], GlobalBatch] | None = self.whole
        """Makes a batch of Keras's one that islands share; None for islands that train alone."""
        self._replica = 0
        """The replica that functions are traced for, if islands have several."""
        self._posed: int | None = None
        """The replica, of any island, whose shapes are being asked for."""
        self.register = Register()
        self.register.read, self.register.replaces = self._reads, self._replaces
        self._replaced: Variable | None = None
        """The variable whose old value is of no use to the program: it is being assigned."""
        islands.state, islands.bind = self.register.state, self.register.take
        self._pinned: View | None = None
        self._prepared: set[str] = set()
        """The steps that are compiled for one island fewer."""
        self._traced: weakref.WeakKeyDictionary[Any, View] = weakref.WeakKeyDictionary()
        """The view that each function is traced for."""
        from jaxtribute._src.addons.elastic.program import IslandProgram  # it needs this module

        self.program = IslandProgram

    def step(self, kind: Step[R], body: Callable[[View], R]) -> R:
        """Takes a step with the other islands; see `Islands.step`. Within a step, `body` is a part of it.

        While this island replays what it has missed, the result is what another island had.
        """
        if self._pinned is not None:
            return body(self._pinned)
        newcomer = self.islands.newcomer
        if newcomer is not None:
            prepare = None if kind.rehearse is None else lambda view: self._rehearse(kind, view)
            entry = newcomer.next(kind.signature, prepare)
            if entry is not None:
                return self._pinning(entry.view, lambda view: self._replayed(kind, entry, view))
        tried: list[View] = []

        def within(view: View) -> R:
            tried[:] = [view]
            return self._pinning(view, body)

        result = self.islands.step(within)
        self.islands.journal.append(kind.signature, tried[0], kind.kept(result))
        finished = kind.finished(result, tried[0])
        self._compile_ahead(kind, tried[0])
        return finished

    def _compile_ahead(self, kind: Step[Any], view: View) -> None:
        """Compiles a step for one island fewer, so that nobody waits for that when one dies."""
        if kind.rehearse is not None and kind.signature not in self._prepared and self._fewer(view):
            self.islands.rehearse(self.islands.committed, view, lambda _: self._rehearse_fewer(kind, view))

    def _fewer(self, view: View) -> list[View]:
        """The views to be ready for if all islands are there: this one's rows depend on who dies, before or behind."""
        islands = self.islands
        others = [member for member in view.members if member != islands.me]
        if len(others) < max(islands.others, islands.min_islands) or self.replicas.virtual is not None:
            return []
        lost = dict.fromkeys([*others[:1], *others[-1:]])
        return [View(view.number + 1, tuple(each for each in view.members if each != member)) for member in lost]

    def _rehearse(self, kind: Step[Any], view: View) -> None:
        assert kind.rehearse is not None
        self._pinning(view, kind.rehearse)
        self._rehearse_fewer(kind, view)

    def _rehearse_fewer(self, kind: Step[Any], view: View) -> None:
        assert kind.rehearse is not None
        self._prepared.add(kind.signature)
        for fewer in self._fewer(view):
            try:
                self._pinning(fewer, kind.rehearse)
            except Exception as error:  # noqa: BLE001  # it may never come to that
                _LOG.warning(
                    "the step %s fails once an island dies: %s: %s", kind.signature, type(error).__name__, error
                )

    @property
    def in_step(self) -> bool:
        """True within a step."""
        return self._pinned is not None

    @property
    def catches_up(self) -> bool:
        """True while this island is given what steps have told others, who have written already what it would."""
        return self.islands.newcomer is not None

    def _pinning(self, view: View, call: Callable[[View], R]) -> R:
        self._pinned = view
        try:
            return call(view)
        finally:
            self._pinned = None

    def _replayed(self, kind: Step[R], entry: Entry, view: View) -> R:
        result = kind.replayed(rebuilt(entry.plain, entry.arrays, self, view), view)
        self.register.forget(kind.written())
        return result

    def _reads(self, number: int, variable: Variable) -> None:
        """Called before the program reads a variable."""
        if self._pinned is not None:
            return
        if variable is self._replaced:
            self._replaced = None
            return
        newcomer = self.islands.newcomer
        if newcomer is not None and variable.stored.is_deleted():
            variable.bind(variable.policy.place(newcomer.read(number, variable.name)))
        # A newcomer, too, will be asked by those that come after it.
        self.islands.journal.note_read(number, variable.stored)

    def _replaces(self, variable: Variable) -> None:
        """Called before the program assigns a variable: outside of steps a newcomer need not know its old value."""
        if self.islands.newcomer is None or self._pinned is not None or self.executor().traced:
            return
        if variable.stored.is_deleted():
            variable.bind(jnp.zeros_like(variable.stored))
            self._replaced = variable

    @staticmethod
    def executor() -> Any:
        """The executor of the program or step that the calling code is part of."""
        executor: Any = Context.current().executor
        while isinstance(executor, Overlay):
            executor = executor.below
        return executor

    @property
    def view(self) -> View:
        """The view that the code which asks is run or traced for."""
        executor = self.executor()
        if isinstance(executor, TracedProgram):
            return self._traced.setdefault(executor, self._pinned or self.islands.seen_view)
        return self._pinned or self.islands.seen_view

    def view_of(self, executor: Any) -> View | None:
        """The view that a function was traced for; None if it has not asked."""
        return self._traced.get(executor)

    @property
    def place(self) -> Any:
        """This island's number in the view: an int32 scalar, which programs take as an input."""
        executor = self.executor()
        if isinstance(executor, TracedProgram):
            _ = self.view  # which it is traced for from now on
            return executor.take(PLACE, (), jnp.dtype("int32"))
        return jnp.int32(self.place_in(self.view))

    def count_in(self, view: View) -> int:
        """The number of replicas in a view."""
        return self.replicas.count(view)

    def place_in(self, view: View) -> int:
        """The replica's number in a view: if islands have several, that of the one which is traced."""
        if self._posed is not None:
            return self._posed
        return self._replica if self.replicas.several else self.island_in(view)

    @contextlib.contextmanager
    def posing(self, replica: int) -> Generator[None]:
        """Lets what is traced within see the rows of a replica that may be another island's."""
        before, self._posed = self._posed, replica
        try:
            yield
        finally:
            self._posed = before

    def as_replica(self, replica: int, call: Callable[[], R]) -> R:
        """Calls a function that traces for a replica, if islands have several."""
        self._replica = replica
        try:
            return call()
        finally:
            self._replica = 0

    def own_replicas(self, view: View) -> Span:
        """The replicas of this island; while it replays what it has missed, of the one that it replaces."""
        return list(shares(view, self.count_in(view)).values())[self.island_in(view)]

    def island_in(self, view: View) -> int:
        """This island's number in a view; while it replays what it has missed, that of the one that it replaces."""
        ranks = [member.rank for member in view.members]
        rank = self.islands.me.rank
        return ranks.index(rank) if rank in ranks else 0

    def own_rows(self, array: Array) -> Array:
        """This island's rows of an array that has those of all."""
        view, total = self.view, array.shape[0]
        sizes = slice_sizes(total, self.count_in(view))
        size = sizes[self.place_in(view)]
        start = jnp.minimum(self.place * np.int32(sizes[0]), np.int32(total - size))
        return lax.dynamic_slice_in_dim(array, start, size)

    def whole(self, leaf: Any) -> GlobalBatch:
        """An array of a batch that all islands have whole, and take their rows of."""
        return GlobalBatch(leaf, self)

    # Exchanges. Traced, they become calls out of the program; failed ones give zeros, and the step is done again.

    def total(self, arrays: Sequence[Array], what: str, kept: Callable[[list[Any]], list[Any]] = list) -> list[Any]:
        """The sums of all islands' arrays. Differentiable: backwards it is the same sum of the cotangents.

        Args:
          arrays: this island's.
          what: says what they are.
          kept: gives what of this island's cotangents counts.
        """

        def backwards(_: None, cotangents: list[Any]) -> tuple[list[Any]]:
            # Counts that travel with what is differentiated have cotangents of no bytes.
            floats = [each for each in cotangents if each.dtype != jax.dtypes.float0]
            sums = iter(self._summed(kept(floats), f"gradient of {what}") if floats else ())
            return ([each if each.dtype == jax.dtypes.float0 else next(sums) for each in cotangents],)

        call = jax.custom_vjp(lambda leaves: self._summed(leaves, what))
        call.defvjp(lambda leaves: (self._summed(leaves, what), None), backwards)
        return call(list(arrays))

    def _summed(self, arrays: Sequence[Array], what: str) -> list[Any]:
        def exchange(*given: Any) -> list[HostArray]:
            return self.islands.sum(list(map(np.asarray, given)), what)

        if not any(isinstance(array, Tracer) for array in arrays):
            self.check_compiled(what)
            kinds = [f"{array.dtype}{list(array.shape)}" for array in arrays]
            sums = self.step(Step(f"{what} {' '.join(kinds)}"), lambda _: exchange(*arrays))
            return list(map(jnp.asarray, sums))
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]

        def called_out(*given: Any) -> Any:
            return io_callback(exchange, shapes, *given, ordered=True)

        # A call by name, at which the program can be cut; see `pieces`.
        called_out.__name__ = f"{EXCHANGE}{what}"
        return jax.jit(called_out)(*arrays)

    def check_compiled(self, what: str) -> None:
        """Checks that islands have one replica each: only programs have several.

        Raises:
          ContextError: they have several.
        """
        if self.replicas.several:
            raise ContextError(
                f"{what} outside of a jd.function, of {self.count_in(self.view)} replicas, of which an island has "
                "several. HINT: call strategy.run and strategy.reduce in a jd.function."
            )

    def agreed(self, value: Any, what: str, settings: str) -> Any:
        """The first island's `value`; all must call it."""
        array = np.asarray(value)
        kind = FirstValue(f"{what} {array.dtype.name}{list(array.shape)} {settings}", array, self.register)

        def body(view: View) -> Any:
            own = array if self.island_in(view) == 0 else np.zeros_like(array)
            return self.islands.sum([own], f"{what}, {settings}")[0]

        return self.step(kind, body)
