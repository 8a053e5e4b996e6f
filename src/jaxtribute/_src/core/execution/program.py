"""One compiled program: the variables that it takes and gives back, and the call that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxtribute._src.core.execution.capture import Capture
from jaxtribute._src.core.execution.compiled_step import CompiledStep, Grow, Origin, Unusual
from jaxtribute._src.core.execution.eager import EagerStep
from jaxtribute._src.core.execution.interrupts import Guard
from jaxtribute._src.core.execution.program_variables import ProgramVariables
from jaxtribute._src.core.execution.worker_programs import compare_programs, own_arguments
from jaxtribute._src.core.jaxprs.core import ArrayImpl, opened
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.observers import DISPATCH
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.stored import updating
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ClusterError, DeadlineError

__all__ = ["Program", "Unusual", "program_of"]


class Program:
    """A function compiled for one structure of arguments, over all their shapes.

    A `CompiledStep` runs it. If a trace for new shapes touches variables that the step does not take, a new step that
    takes these too is put in its place.

    Args:
      first: the function as traced for the first shapes.
      retrace: traces it for others.
      home: the devices to run on; None for those of the arguments.
      donated_leaves: the places of the arguments whose memory the program may take over.
      name: the function's name, in messages.
      repeatable: classes of arrays that the arguments of calls by `again` may be.
    """

    def __init__(
        self,
        first: Capture,
        retrace: Callable[[Sequence[Any]], Capture],
        home: ReplicaMesh | None,
        donated_leaves: Sequence[int] = (),
        name: str = "",
        repeatable: tuple[type, ...] = (ArrayImpl,),
    ) -> None:
        def trace(leaves: Sequence[Any]) -> Capture:
            capture = retrace(leaves)
            self._compare(capture, capture.executor.mesh, leaves)
            return capture

        self.name = name
        self._made_for: list[str] = []
        """Shapes and dtypes of arguments that it was made for, in words."""
        self._home = home
        self._origin = Origin(trace, frozenset(donated_leaves), repeatable)
        self._step = CompiledStep(ProgramVariables(first, home), first, self._origin)

    def __call__(self, leaves: Sequence[Any], within: EagerStep | None = None, given: Any = None) -> Any:
        """Runs one step: puts the variables in, takes their new values back, returns the results.

        Args:
          leaves: the arrays of the arguments.
          within: the eager step that it is part of, which keeps what is written.
          given: the arguments as `bundled`, if all their leaves are arrays: in one form always, as JAX compiles for it.
        """
        if DISPATCH.observers and DISPATCH.due():
            return DISPATCH.around(self, self, self.name, leaves, within, given)
        step, mesh = self._step, self.mesh
        if mesh is not None and mesh.peers is not None:
            mesh.entering(self.name, partial(self._collectives, leaves))
            if step.pending is not None:
                self._compare(step.pending, mesh, leaves, leaves)
        once = partial(step.once, leaves, given, within)
        try:
            result, donated = once() if within is None else within.operate(once)
        except Grow as grow:
            with updating:
                variables = ProgramVariables(grow.capture, self._home, step.variables)
                self._step = CompiledStep(variables, grow.capture, self._origin)
            return self(leaves, within, given)
        except (RuntimeError, ValueError) as error:
            if mesh is not None:
                mesh.explain(error)
            raise
        return step.finished(result, donated)

    @property
    def again(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
        """The function of arguments, as they are, that runs further steps quickly; None if each needs more."""
        return self._step.again if self._step.repeats else None

    def _compare(
        self, capture: Capture, mesh: ReplicaMesh | None, leaves: Sequence[Any], own: Sequence[Any] = ()
    ) -> None:
        """Compares the program for the shapes of `leaves` with those of other workers, who must make it too."""
        try:
            compare_programs(self.name, capture.closed, mesh, own)
        except (ClusterError, DeadlineError) as error:
            before = "".join(f"; it has called it before with {shapes}" for shapes in self._made_for[-3:])
            error.add_note(f"This worker calls {self.name} with {_shapes(leaves)} for the first time{before}.")
            raise
        self._made_for.append(_shapes(leaves))

    def _collectives(self, leaves: Sequence[Any]) -> list[str]:
        """Describes the program, for workers to compare: its arguments and its collectives."""
        return [
            f"arguments {_shapes(leaves)}",
            *own_arguments(leaves),
            *list_collectives(opened(self._step.closed), AXIS),
        ]

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The devices of the replicas that the program runs, if it runs any."""
        return self._step.variables.mesh

    @property
    def donated(self) -> list[Variable]:
        """The variables that the program writes."""
        return self._step.variables.donated

    @property
    def kept(self) -> list[Variable]:
        """The variables that the program only reads."""
        return self._step.variables.kept

    @property
    def jitted(self) -> Any:
        """The function of donated variables, kept variables and arguments that `jax.jit` made, for looking at."""
        return self._step.jitted

    @property
    def donated_leaves(self) -> frozenset[int]:
        """The places among the leaves of arguments whose memory the program takes over."""
        return self._step.donated_leaves

    def lower(self, leaves: Sequence[Any]) -> Any:
        """The program lowered for `leaves`, for looking at; runs nothing."""
        donated, kept = [v.peek() for v in self.donated], [v.peek() for v in self.kept] + self._step.variables.shared
        return self.jitted.lower(*self._step.divided(donated, kept, leaves, Guard(None)))


def _shapes(leaves: Sequence[Any]) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves if hasattr(leaf, "dtype")) or "no arrays"


def program_of(
    first: Capture,
    retrace: Callable[[Sequence[Any]], Capture],
    home: ReplicaMesh | None,
    donated_leaves: Sequence[int] = (),
    name: str = "",
    repeatable: tuple[type, ...] = (ArrayImpl,),
) -> Callable[[Sequence[Any]], Any]:
    """Returns the program of a traced function: a `Program`, unless it touches variables that other processes hold."""
    touched = (*first.executor.inputs, *first.executor.written, *first.executor.operations)
    owners = (getattr(entry, "variable", entry) for entry in touched)
    kinds = [variable.policy.program for variable in owners if isinstance(variable, Variable)]
    kinds.append(getattr(first.executor.home, "program", None))
    kind = next((kind for kind in kinds if kind is not None), Program)
    return kind(first, retrace, home, donated_leaves, name, repeatable)
