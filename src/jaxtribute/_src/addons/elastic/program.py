"""`IslandProgram`: compiled steps that can be done again. Nothing is donated, and nothing kept before the commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.factors import Factors
from jaxtribute._src.addons.elastic.membership import View
from jaxtribute._src.addons.elastic.pieces import Pieces, ReplicaPieces
from jaxtribute._src.addons.elastic.runtime import PLACE, IslandMesh
from jaxtribute._src.addons.elastic.steps import Step
from jaxtribute._src.addons.elastic.values import FOREIGN, island_values, stamped
from jaxtribute._src.addons.elastic.variables import check_known
from jaxtribute._src.addons.elastic.virtual import together
from jaxtribute.errors import TraceError, VariableError
from jaxtribute.extending import Capture, EagerStep, Kinds, Programs, slice_sizes, updating
from jaxtribute.typing import Device


class IslandProgram:
    """A function compiled for one structure of arguments; what `Program` is elsewhere.

    Args:
      first: the function as traced for the first shapes.
      retrace: traces it for others, and for other views.
      home: accepted; the device is the one that the function runs on.
      donated_leaves: accepted; nothing is donated.
      name: the function's, for messages.
      repeatable: accepted.

    Attributes:
      donated: the variables that a step gives other arrays, as observers ask of a program.
      donated_leaves: arguments that it gives up: none.
      view: the view that the last step was taken in; None before the first.
    """

    donated_leaves: Sequence[int] = ()

    def __init__(
        self,
        first: Capture,
        retrace: Callable[[Sequence[Any]], Capture],
        home: object,
        donated_leaves: Sequence[int],
        name: str,
        repeatable: tuple[type, ...],
    ) -> None:
        mesh = first.executor.home
        assert isinstance(mesh, IslandMesh)
        self.name, self._mesh, self._retrace = name, mesh, retrace
        self.donated: Sequence[Variable] = ()
        self.view: View | None = None
        self._first: Capture | None = first
        self._compiled: dict[Any, Any] = {}
        """Programs by shapes, number of replicas and rows; and, to find them sooner, by the replica's number."""
        self._signatures: dict[Any, str] = {}

    def __call__(self, leaves: Sequence[Any], within: EagerStep | None = None) -> Any:
        """Takes one step with the other islands; an event, unless this island is only given what they have had."""
        if Kinds.DISPATCH.due() and self._mesh.islands.newcomer is None:
            return Kinds.DISPATCH.around(self._step, self, self.name, leaves, within)
        return self._step(leaves, within)

    def _step(self, leaves: Sequence[Any], within: EagerStep | None) -> Any:
        mesh = self._mesh
        is_step = within is None and not mesh.in_step

        def body(view: View) -> tuple[_Compiled, list[Any]]:
            self.view = view
            compiled, outputs = self._taken(leaves, within, view, is_step=is_step)
            self.donated = compiled.written
            return compiled, outputs

        if within is not None:
            compiled, outputs = mesh.step(Step(self.name), body)
            return compiled.kept(outputs, within)
        return mesh.step(_ProgramStep(self, leaves), body)

    def rehearse(self, leaves: Sequence[Any], view: View) -> None:
        """Compiles the function for a view, by a call of which nothing is kept."""
        # A newcomer's variables have no values yet; of others there need not be a second copy.
        blank = self._mesh.islands.newcomer is not None
        if not blank and not self.compiled_for(leaves, view).is_pure:
            return
        jax.block_until_ready(self._taken(leaves, None, view, blank=blank)[1])

    def _taken(
        self, leaves: Sequence[Any], within: EagerStep | None, view: View, *, blank: bool = False, is_step: bool = False
    ) -> tuple[Any, list[Any]]:
        """Runs a try of the step; see `_Compiled.__call__`."""
        mesh, compiled = self._mesh, self.compiled_for(leaves, view)
        if not mesh.replicas.several:
            return compiled, compiled(leaves, within, mesh.place_in(view), blank=blank, is_step=is_step)
        count, own = mesh.count_in(view), range(*mesh.own_replicas(view))
        each = [mesh.as_replica(replica, lambda: self.compiled_for(leaves, view)) for replica in own]
        runs: list[Any] = []
        for replica, device, one in zip(own, itertools.cycle(mesh.replicas.devices), each, strict=False):
            elsewhere = None if device is mesh.devices[0] else device
            runs.append(one.replica(leaves, within, replica, elsewhere, blank=blank))
        with jax.default_device(mesh.devices[0]):
            sums = together(runs, lambda arrays, what: mesh.islands.sum_in_order(arrays, count, what))
            if is_step:
                mesh.islands.hold()
            return compiled, compiled.results(leaves, within, sums, blank=blank)

    def compiled_for(self, leaves: Sequence[Any], view: View) -> Any:
        """The program for arguments of such shapes in a view of such a size, or for the replica at hand."""
        shapes, count, place = shapes_of(leaves), self._mesh.count_in(view), self._mesh.place_in(view)
        compiled = self._compiled.get((shapes, count, place))
        if compiled is not None:
            return compiled
        # Which of the arguments are batches is known to the trace alone: the shares of all are asked.
        sizes = [slice_sizes(leaf.shape[0], count) for leaf in leaves if leaf.ndim]
        key = shapes, count, tuple(each[place] for each in sizes)
        compiled = self._compiled.get(key)
        if compiled is None:
            capture, self._first = self._first, None
            if capture is None or (
                self._mesh.replicas.virtual is None and self._mesh.view_of(capture.executor) != view
            ):
                capture = self._retrace(leaves)
            some_empty = any(0 in each for each in sizes)
            # Of equal shares the factors of products have equal shapes.
            even = sizes and all(len(set(each)) == 1 for each in sizes)
            kind = _OfReplicas if self._mesh.replicas.several else _Compiled
            compiled = self._compiled[key] = kind(capture, self._mesh, count if even else 1, apart=some_empty)
        self._compiled[shapes, count, place] = compiled
        return compiled

    def signature(self, leaves: Sequence[Any]) -> str:
        """Says what step it is, with arguments of such shapes."""
        shapes = shapes_of(leaves)
        found = self._signatures.get(shapes)
        if found is None:
            kinds = " ".join(f"{dtype}{list(shape)}" for shape, dtype in shapes)
            found = self._signatures[shapes] = f"{self.name}({kinds})"
        return found


def shapes_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The shapes and dtypes of arguments, by which their programs are told apart."""
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


class _ProgramStep(Step[Any]):
    """A call of a function. Its result is made of its arrays by what it was traced to."""

    def __init__(self, program: IslandProgram, leaves: Sequence[Any]) -> None:
        super().__init__(program.signature(leaves), lambda view: program.rehearse(leaves, view))
        self._program, self._leaves = program, leaves
        self._written: Sequence[Variable] = ()

    def kept(self, result: tuple[_Compiled, list[Any]]) -> Any:
        compiled, outputs = result
        return list(outputs[: compiled.count])

    def finished(self, result: tuple[_Compiled, list[Any]], view: View) -> Any:
        compiled, outputs = result
        return stamped(compiled.kept(outputs, None), view)

    def replayed(self, kept: Any, view: View) -> Any:
        compiled = self._program.compiled_for(self._leaves, view)
        self._written = compiled.written
        result = stamped(compiled.result(kept), view)
        for value in island_values(result):
            value.rows = FOREIGN
        return result

    def written(self) -> Sequence[Variable]:
        return self._written


class _Compiled:
    """A traced function, compiled for shapes and for the size of a view.

    Args:
      capture: the function.
      mesh: this island's device, and the others.
      alike: the number of islands that may have factors of one shape; 1 if they may not.
      apart: True if each exchange is to be made alone.
    """

    def __init__(self, capture: Capture, mesh: IslandMesh, alike: int, *, apart: bool) -> None:
        self._capture, self._mesh, self._alike = capture, mesh, alike
        self._inputs: list[Any] = list(capture.executor.inputs)
        self.written: list[Any] = list(capture.executor.written)
        for variable in self.written:
            check_known(variable)
        self.count = capture.tree.num_leaves
        self._fed = capture.executor.fed
        self.is_pure = False
        """True if a call with sums that are none does no harm: it calls nothing, and no loop waits for one."""
        self._is_step = False
        """True while a step of its own runs: once it has exchanged, the others may be told that it is held."""
        # What is computed of no rows may depend on less, and all islands must make the same exchanges together.
        self._compile(apart)

    def _compile(self, apart: bool) -> None:
        islands = self._mesh.islands
        move = islands.move if islands.far else None
        factors = None
        # Those on other hosts or devices may compute other bits of the same numbers.
        if self._alike > 1 and not islands.far and self._mesh.devices[0].platform == "cpu":
            factors = Factors(islands.begin_gather, self._alike)
        pieces = Pieces.of(self._capture.closed, islands.begin_sum, move, self._exchanged, apart=apart, factors=factors)
        run: Any = pieces or Programs.as_function(self._capture.closed)
        self.is_pure = pieces is not None and pieces.is_pure

        def program(leaves: list[Any], inputs: list[Any]) -> list[Any]:
            given = self._ordered(leaves, inputs)
            return _own(run(*given), given)

        # A program that calls out must have come to its end before the others are told that this island holds the step.
        whole = jax.jit(program)
        self._run: Any = program if pieces else lambda *given: jax.block_until_ready(whole(*given))

    def _ordered(self, leaves: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The program's inputs in its order."""
        own = len(leaves) - self._fed
        return [*leaves[:own], *inputs, *leaves[own:]]

    def _exchanged(self) -> None:
        if self._is_step:
            self._mesh.islands.hold()

    def __call__(
        self,
        leaves: Sequence[Any],
        within: EagerStep | None,
        place: int,
        *,
        blank: bool = False,
        is_step: bool = False,
    ) -> list[Any]:
        """Computes the results and the variables' new values.

        Args:
          leaves: the arguments.
          within: the eager step that this is a part of.
          place: this island's number in the view.
          blank: True for those of zeros.
          is_step: True if this is a step of its own, and not a part of one.
        """
        inputs = self._read(within, place, blank=blank)
        self._is_step = is_step
        with jax.default_device(self._mesh.devices[0]):
            return self._run(list(leaves), inputs)

    def _read(self, within: EagerStep | None, place: int, *, blank: bool) -> list[Any]:
        """The values of variables, and what else the program takes besides its arguments."""
        inputs: list[Any] = []
        for entry in self._inputs:
            if entry is PLACE:
                inputs.append(np.int32(place))  # JAX takes it in C; an array of its own would be made in Python
            elif blank:
                inputs.append(jnp.zeros_like(entry.stored))
            else:
                # Nothing is donated: no loan needs to be remembered.
                inputs.append(entry.stored if within is None else within.get(entry))
        return inputs

    def result(self, arrays: Sequence[Any]) -> Any:
        """The function's result of its arrays."""
        return self._capture.result(list(arrays))

    def kept(self, outputs: Sequence[Any], within: EagerStep | None) -> Any:
        """Gives the variables their new values, and returns the function's results."""
        new = list(zip(self.written, outputs[self.count :], strict=True))
        if within is None:
            with updating:
                for variable, array in new:
                    variable.bind(array)
        else:
            within.operate(lambda: [within.bind(variable, array) for variable, array in new])
        return self.result(outputs[: self.count])


def _own(outputs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """The outputs, each of its own.

    JAX would hand an input that is also an output back as it is: the caller's own memory, as a variable's.
    """
    passed = {id(value) for value in given}
    return [jnp.copy(value) if id(value) in passed else value for value in outputs]


class _OfReplicas(_Compiled):
    """A function that was traced for one of several replicas of an island, compiled for its share of the shapes."""

    def _compile(self, apart: bool) -> None:
        capture = self._capture
        pieces = ReplicaPieces.of(capture.closed, self._mesh.islands.begin_sum, apart=apart)
        if pieces is None:
            raise TraceError(
                "a step sums between replicas in a loop or a condition, and islands have several replicas. HINT: sum "
                "behind it, or let islands have one device, and no virtual_replicas=."
            )
        assert isinstance(pieces, ReplicaPieces)
        self._pieces, self.is_pure = pieces, pieces.is_pure
        places = [number for number, entry in enumerate(self._inputs) if entry is PLACE]
        before = len(Programs.opened(capture.closed).invars) - len(self._inputs) - self._fed
        differing = [number for place in places for number in pieces.differing(before + place)]
        if differing:
            names = [self.written[number - self.count].name for number in differing if number >= self.count]
            what = f"{', '.join(names)} is written by" if names else "a jd.function returns, or prints after a sum,"
            raise VariableError(
                f"{what} a value that differs between replicas. HINT: reduce it in the same jd.function, with "
                "strategy.reduce or ReplicaContext.all_reduce."
            )

    def replica(
        self, leaves: Sequence[Any], within: EagerStep | None, replica: int, elsewhere: Device | None, *, blank: bool
    ) -> Any:
        """A run of a replica up to its last exchange; see `ReplicaPieces.contributions`.

        Args:
          leaves: the arguments.
          within: as of `__call__`.
          replica: its number.
          elsewhere: the device that it runs on, if that is not the one where variables are.
          blank: as of `__call__`.
        """
        given = self._ordered(leaves, self._read(within, replica, blank=blank))
        return self._pieces.contributions(given if elsewhere is None else jax.device_put(given, elsewhere))

    def results(self, leaves: Sequence[Any], within: EagerStep | None, sums: Sequence[Any], *, blank: bool) -> Any:
        """The results, which all replicas have in common, of the sums of the exchanges."""
        given = self._ordered(leaves, self._read(within, 0, blank=blank))
        return _own(self._pieces.results(given, sums), given)
