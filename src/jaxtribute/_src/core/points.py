"""Points of the core at which add-ons register what they do: the core calls it, and imports no add-on.

The public modules tell a point which modules have something for it (`offer`); they are imported at the first question.
A module whose add-on is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from jaxtribute.errors import MissingLibraryError

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtribute._src.core.checkpoint.state import StateAdapter
    from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver
    from jaxtribute._src.core.collectives.summation import Summation
    from jaxtribute._src.core.drawing import Drawing
    from jaxtribute._src.core.execution.ragged import ReplicaClass
    from jaxtribute._src.core.input.agreement import Agreements
    from jaxtribute._src.core.input.sources import Adapter, Source, Stream
    from jaxtribute._src.core.libraries import Library
    from jaxtribute._src.core.strategies.groups import ProgramLayout
    from jaxtribute._src.core.types import Function, Nest

T = TypeVar("T")


class Budgeting(Protocol):
    """Keeps what backward passes need within a budget of memory."""

    def checked(self, memory: int | str) -> int | str:
        """The budget, if it is one; raises ArgumentError otherwise."""
        ...

    def within(self, loss: Function, memory: int | str, *, gathers: bool) -> Function:
        """A loss whose backward pass keeps no more; see `execution/budgets.py`."""
        ...


class Together(Protocol):
    """Processes that train together without a cluster, as islands do: one of them writes checkpoints for all."""

    def first(self, what: str, own: Callable[[], str]) -> str:
        """The text of one of them, on all; one that joins later is given what it was then."""
        ...

    def writes(self, path: Path) -> bool:
        """True on the one that writes a checkpoint; all call it for each."""
        ...


class Point(Generic[T]):
    """A point of the core at which add-ons register.

    Args:
      what: what they register, for the message if no add-on does.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._offered: list[str] = []
        self._missing: list[str] = []
        self._entries: list[T] = []

    def offer(self, *modules: str) -> None:
        """Names modules that register here when they are imported, which happens at the first question."""
        self._offered.extend(modules)

    def register(self, entry: T) -> T:
        """Adds an entry after those that are there, and returns it."""
        self._entries.append(entry)
        return entry

    def entries(self) -> tuple[T, ...]:
        """Entries in the order of registration; imports the modules that were offered."""
        for module in tuple(self._offered):
            try:
                import_module(module)
            except ModuleNotFoundError as error:
                # Of another library that is missing the error says more than this could.
                if not (error.name or "").startswith("jaxtribute."):
                    raise
                self._missing.append(module)
            # Not before: a thread that asks meanwhile waits for the import.
            self._offered = [one for one in self._offered if one != module]
        return tuple(self._entries)

    def last(self) -> T:
        """The last entry, of what only one add-on does.

        Raises:
          MissingLibraryError: no add-on has registered anything.
        """
        entries = self.entries()
        if not entries:
            raise MissingLibraryError(
                f"nothing here can do this: {self._what}. It is done by {' or '.join(self._missing) or 'an add-on'}, "
                "which is not installed. HINT: install jaxtribute whole."
            )
        return entries[-1]


LIBRARIES: Point[Library] = Point("to teach another library about strategies")
"""Libraries that are looked for, or waited for, from the first strategy or traced function on."""
SOURCES: Point[Adapter] = Point("to read datasets of another library")
"""Adapters from datasets to sources: `jaxtribute.extending.register_source` adds one."""
FIRST_BATCHES: Point[Callable[[Stream, Source, Agreements], Stream]] = Point("to compare the workers' first batches")
"""Functions of the stream of a pass in which all workers go through the same batches, and of how they agree."""
RESOLVERS: Point[tuple[int, type[ClusterResolver]]] = Point("to find the cluster that this process is in")
"""Classes of cluster resolvers with their ranks: `jaxtribute.cluster_resolver.register` adds one."""
STATEFUL: Point[StateAdapter] = Point("to save the state of another library's objects")
"""Adapters that tell checkpoints which of an object's values are its state."""
PICTURES: Point[Drawing] = Point("to draw strategies and values")
"""Pictures of strategies, values and datasets."""
OLDER_METHODS: Point[tuple[type, type]] = Point("to run methods of `Strategy` that newer ones have replaced")
"""Classes with the older methods of `Strategy` and of `StrategyExtended`."""
LAYOUTS: Point[Callable[[], ProgramLayout]] = Point("to choose a layout of variables")
"""Makers of the layout that `layout="auto"` asks for."""
BUDGETS: Point[Budgeting] = Point("to keep a backward pass within a budget of memory")
"""The choice of what a backward pass keeps, for `jd.value_and_grad(..., memory=...)`."""
TAPES: Point[Callable[..., tuple[list[Any], Function, Function]]] = Point("to differentiate as TensorFlow's tapes")
"""Functions that choose variables that may have a gradient, and differentiate; None is the gradient of others."""
WIRES: Point[Callable[[Summation, str], Summation]] = Point("to sum arrays that travel in a smaller type")
"""Makers of sums of which large float32 arrays travel in the type that the hints name, and the rest by another sum."""
TOGETHER: Point[Callable[[], Together | None]] = Point("to save once for several processes")
"""Functions that return the processes that train together with this one, if there are any."""
UNEVEN: Point[Callable[[Sequence[ReplicaClass], Sequence[int]], Sequence[str]]] = Point("to warn of uneven means")
"""Functions of the programs of replicas with different shapes, and of their rows: what `PerReplica.wrong_mean` says."""
RUNS: Point[Callable[[Function, Nest, int], Callable[[], None]]] = Point("to watch what replica functions replace")
"""Functions that look at a replica function, its arguments and the number of replicas before they run; what each
returns is called when all have run."""
