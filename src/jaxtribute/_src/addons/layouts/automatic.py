"""`AutomaticLayout`: layouts that a strategy chooses, by a variable's shape first and by a program's traffic then."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtribute import Variable
from jaxtribute._src.addons.layouts.found import FoundLayouts
from jaxtribute.extending import Capture, ProgramLayout, ReplicaMesh, points, settings

Layout = tuple[str | tuple[str, ...] | None, ...]
"""For each axis of an array the axes within a replica that split it."""
_MODEL = "model"
SMALL_BYTES = 1 << 14
"""Variables below this size are whole until a program is known: in parts they would save little."""
TRIES = 16
"""Programs that are compiled at most. On ten small models the best one was at the latest the twelfth."""


class Candidate(NamedTuple):
    """A layout of all variables that was compiled to be compared.

    Attributes:
      name: where it comes from, such as `pairs` or `whole`.
      sent: bytes that each device sends in a step.
      memory: bytes that each device needs; infinite where the compiler says that the program does not fit.
    """

    name: str
    sent: float
    memory: float


class AutomaticLayout(FoundLayouts, ProgramLayout):
    """A layout map that a strategy fills itself: `layout="auto"`, with settings.

    A variable is laid out by its shape as it is made, so that no device ever holds a large model whole: its longest
    axis that the devices of a replica can divide is split. The first `jd.function` that computes with it (or writes it)
    then gives the program from which the layout is chosen: some candidates are compiled, and of those that fit the one
    that moves the fewest bytes is taken. The variables and their slots are laid out again before the function runs.
    Eager runs keep the layout by shape. Variables with a `layout` of their own stay as they are.

    Args:
      memory_limit: bytes on each device that the program may need. By default a quarter more than the most frugal
        candidate, and what the device has. The step that is laid out raises an ArgumentError if variables and slots
        alone exceed it, and warns if no candidate is within it: the most frugal one is then taken.
      tries: the most programs that are compiled.

    Attributes:
      tried: the candidates of the last choice, in the order in which they were compiled.

    Raises:
      ArgumentError: settings below 1.
    """

    def __init__(self, *, memory_limit: int | None = None, tries: int = TRIES) -> None:
        super().__init__()
        self.memory_limit: int | None = settings.whole("memory_limit", memory_limit, 1, optional=True)
        self.tries: int = settings.whole("tries", tries, 1)
        self.tried: tuple[Candidate, ...] = ()
        self._pending: weakref.WeakSet[Variable] = weakref.WeakSet()

    def layout_of(self, variable: Variable, mesh: ReplicaMesh, most_bytes: int | None = None) -> Layout:
        """The layout of a new variable, by its shape; a program may choose another one.

        Args:
          variable: the variable.
          mesh: the replicas' devices.
          most_bytes: the size from which the strategy does not want a variable whole.
        """
        small = SMALL_BYTES if most_bytes is None else min(most_bytes, SMALL_BYTES)
        # Whatever its size: a program may want a small variable in parts as well, because of what it meets there.
        self._pending.add(variable)
        if variable.size * variable.dtype.itemsize < small:
            return ()
        return layout_by_shape(variable.shape, mesh)

    def lay_out(self, mesh: ReplicaMesh, capture: Capture, leaves: Sequence[Any]) -> None:
        """Chooses a layout from a program, and lays the variables out by it; see `settling.settle`."""
        from jaxtribute._src.addons.layouts.settling import settle  # most programs never need it

        settle(self, mesh, capture, leaves)

    def is_pending(self, variable: Variable) -> bool:
        """True if no program has decided on a variable yet."""
        return variable in self._pending

    def settle(self, variable: Variable) -> None:
        """Notes that a variable stays as it is from now on."""
        self._pending.discard(variable)


def axis_to_split_over(mesh: ReplicaMesh) -> tuple[str | tuple[str, ...], int]:
    """The axis that an automatic layout uses, "model" if there is one, else all; and its number of devices."""
    # Of several axes the one whose name says that it is for parameters.
    if _MODEL in mesh.group:
        return _MODEL, mesh.group[_MODEL]
    names = tuple(mesh.group)
    return (names[0] if len(names) == 1 else names), mesh.group_size


def split_at(axis: int | None, mesh: ReplicaMesh) -> Layout:
    """The layout that splits one axis; None for a whole array."""
    return () if axis is None else (*[None] * axis, axis_to_split_over(mesh)[0])


def layout_by_shape(shape: tuple[int, ...], mesh: ReplicaMesh) -> Layout:
    """The layout that splits the longest axis that can be."""
    parts = axis_to_split_over(mesh)[1]
    # Of axes of equal length the last: a matrix is split by columns, so that the product needs no sum over devices.
    fitting = [axis for axis, size in enumerate(shape) if size and size % parts == 0]
    return split_at(max(fitting, key=lambda axis: (shape[axis], axis), default=None), mesh)


points.LAYOUTS.register(AutomaticLayout)
