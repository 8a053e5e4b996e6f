"""`CompiledStep`: one `jax.jit` of a traced function over its variables, and the call that cannot be cut in two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute._src.core.execution.capture import Capture, without_constants
from jaxtribute._src.core.execution.compiled_only import CompiledOnly
from jaxtribute._src.core.execution.eager import EagerStep
from jaxtribute._src.core.execution.interrupts import Guard, undisturbed
from jaxtribute._src.core.execution.nests import bundled, is_plain, leaves_of, unbundled
from jaxtribute._src.core.execution.program_variables import ProgramVariables, shared_of
from jaxtribute._src.core.execution.traced import check_untraced
from jaxtribute._src.core.jaxprs.core import ArrayImpl, as_function, aval, closed, constants, opened
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Nest
from jaxtribute._src.core.values.stored import Group, StoredArray, arrays_of, lent, prepare_donation, set_slot, updating

_inputs_of = attrgetter("inputs")


class Grow(Exception):  # noqa: N818
    """A retrace touched variables that the program does not take yet."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture


class Unusual(Exception):  # noqa: N818
    """A step is not like the step before; nothing has run."""


@dataclass(frozen=True)
class Origin:
    """The source of a program.

    Attributes:
      trace: traces the function for the leaves of its arguments.
      donated_leaves: the places of the arguments whose memory the program may take over.
      repeatable: classes of arrays that the arguments of repeated steps may be.
    """

    trace: Callable[[Sequence[Any]], Capture]
    donated_leaves: frozenset[int]
    repeatable: tuple[type, ...] = (ArrayImpl,)


class CompiledStep:
    """A compiled function of the variables that it touches; if it is to touch others, a new step takes its place.

    Variables that it writes are donated and rebound; those that it only reads are passed. `jax.jit` keeps one
    executable for each combination of shapes, and asks `_body` for the program of a new one.

    Args:
      variables: the variables of the program.
      first: the function as traced for the first shapes.
      origin: what the program is made from.
    """

    def __init__(self, variables: ProgramVariables, first: Capture, origin: Origin) -> None:
        self.variables, self._origin = variables, origin
        self.closed = first.closed
        self.pending: Capture | None = first
        """The trace that the first call takes, as it is for the same shapes."""
        self.donated_leaves = origin.donated_leaves
        self.outgrown: Capture | None = None
        """A trace that touched variables which the step does not take: another step is to take its place."""
        self._results = _Results(first, variables)
        self.guard = Guard(self._check)
        """The guard that tells when JAX runs Python."""
        self._group = Group()
        """The arrays of the variables that the program writes."""
        self._structure: Any = None
        """The structure of the arguments of steps that `again` runs."""
        self._repeating = False
        """True while `again` runs a step."""
        variables.move(variables.donated, variables.kept)
        self._needs_home = variables.needs_home
        shardings = variables.placements()
        self._shardings = None if shardings is None else [shardings, None]
        policies = (variable.policy for variable in variables.all)
        central = next((policy for policy in policies if policy.parameter_device is not None), None)
        if central is not None and central.mesh is not None and central.parameter_device is not None:
            from jaxtribute._src.core.execution.central.plan import CentralProgram  # for one strategy alone

            variables.mesh, self.donated_leaves = variables.mesh or central.mesh, frozenset()
            self.jitted: Any = CentralProgram(
                self._body, variables.donated, variables.kept, central.mesh, central.parameter_device
            )
            self._calls = self._calls_into(self._group)
        else:
            self.compile_anew()

    def compile_anew(self) -> None:
        """Makes a `jax.jit` that knows no program yet."""

        def step(*inputs: Nest) -> list[Any]:  # of its own: equal functions would share what JAX knows of them
            return self._body(*inputs)

        donated = (0, 4) if self.donated_leaves else 0
        self.jitted = jax.jit(step, donate_argnums=donated, out_shardings=self._shardings)
        home = self.variables.mesh or self.variables.home
        if home is not None and home.described:
            self.jitted = CompiledOnly(self.jitted, home.replicated)
        self._calls = self._calls_into(self._group)

    def _calls_into(self, group: Group) -> Any:
        """Returns an iterator: each `next` calls the program with the group's inputs, and puts what it gives there."""
        return map(set_slot, repeat(group), starmap(self.jitted, map(_inputs_of, repeat(group))))

    def _body(
        self,
        donated: Sequence[Any],
        kept: Sequence[Any],
        given: Any,
        guard: Any = None,
        donated_leaves: Sequence[Any] = (),
    ) -> list[Any]:
        """Computes the written variables' new arrays, in a list, and the results, as `_Results.of_program` has them.

        Of the arguments it takes the leaves in a list, or themselves as `bundled`.
        """
        if type(guard) is Guard and self._repeating:
            raise Unusual  # JAX itself runs as Python: `jax.disable_jit`
        leaves = given if type(given) is list else leaves_of(unbundled(given))[0]
        if donated_leaves:
            rest, gifts = iter(leaves), iter(donated_leaves)
            count = len(leaves) + len(donated_leaves)
            leaves = [next(gifts if place in self.donated_leaves else rest) for place in range(count)]
        capture, self.pending = self.pending, None
        # An interrupt may have come between the trace and the call that it was made for.
        if capture is None or not _is_of(capture, leaves):
            capture = self.guard.resumed(partial(self._origin.trace, leaves))
        # JAX asks for the program of new shapes in the middle of a call, when the variables that go in are fixed. A
        # trace that touches others cannot go on: `Grow` carries it out of the call, which is then made again with all.
        variables, executor = self.variables, capture.executor
        count = len(variables.kept)
        known = dict(zip(variables.all, (*donated, *kept[:count]), strict=True))
        shared = dict(zip(map(id, variables.shared), kept[count:], strict=True))
        spreads = variables.mesh is None and executor.mesh is not None
        spreads = spreads or any(id(array) not in shared for array in shared_of(capture))
        if (
            spreads
            or any(v not in known for v in executor.inputs)
            or any(v in variables.kept for v in executor.written)
        ):
            self.outgrown = capture
            raise Grow(capture)
        self._results.note(capture)
        inputs = [known[variable] for variable in executor.inputs]
        own_leaves, fed = leaves[: len(leaves) - executor.fed], leaves[len(leaves) - executor.fed :]
        program = capture.closed
        if shared:
            program = closed(opened(program), [shared.get(id(value), value) for value in constants(program)])
        outputs = as_function(program)(*own_leaves, *inputs, *fed)
        count = capture.tree.num_leaves
        # JAX would hand an input that is also an output back as it is: the caller's own memory, as a variable's.
        passed = {id(value) for value in (*leaves, *inputs)}
        state = [jnp.copy(value) if id(value) in passed else value for value in outputs[count:]]
        known.update(zip(executor.written, state, strict=True))
        return [[known[variable] for variable in variables.donated], self._results.of_program(outputs[:count], capture)]

    @property
    def repeats(self) -> bool:
        """True if `again` can run further steps."""
        variables = self.variables
        alone = variables.mesh is None or variables.mesh.peers is None
        plain = not (self._needs_home or self.donated_leaves or variables.shared or variables.must_move)
        return alone and plain and not self._takes_leaves

    @property
    def _takes_leaves(self) -> bool:
        """True if what stands for `jax.jit` takes arguments as leaves only."""
        return isinstance(self.jitted, CompiledOnly) or not hasattr(self.jitted, "lower")

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a step if it `repeats`, without any Python that is not needed.

        Most steps pass here: each operation counts. What the arguments are is left to JAX, which looks for a program
        by their structure, shapes, dtypes and places.

        Raises:
          Unusual: it is another step; nothing has happened.
        """
        variables = self.variables
        if self.outgrown is not None or (variables.unplaced and variables.must_move):
            raise Unusual
        with updating:
            try:
                self._repeating = True
                given = bundled(args, kwargs) if kwargs else args
                result = self._run(self._group, variables.donated, variables.kept, given)
            except Grow as grow:
                raise Unusual from grow  # the capture is kept
            except ValueError as error:
                if self.guard.broken:
                    raise
                raise Unusual from error  # JAX refuses arrays of other devices
            finally:
                self._repeating = False
        if type(result) is tuple and self._results.bare:
            return result[0]
        return self.finished(result, variables.donated)

    def once(self, leaves: Sequence[Any], given: Any, within: EagerStep | None) -> tuple[Any, Sequence[StoredArray]]:
        """Runs a step.

        Args:
          leaves: the arrays of the arguments.
          given: the arguments as `bundled`, if all their leaves are arrays.
          within: the eager step that it is part of, on whose arrays it runs.

        Returns:
          What the program gives, for `finished`; and the slots of the variables that it has written.
        """
        variables = self.variables
        if given is None or self._takes_leaves or self.donated_leaves:  # what is donated is picked among the leaves
            given = None
        elif self._structure is None:
            self._structure = leaves_of(given)[1]
        if self.outgrown is not None:
            raise Grow(self.outgrown)
        self._results.check_whole(leaves)
        with updating:
            self._repeating = False
            if within is None:
                return self._moving(self._group, variables.donated, variables.kept, leaves, given), variables.donated
            donated = [within.slot(variable, written=True) for variable in variables.donated]
            kept = [within.slot(variable, written=False) for variable in variables.kept]
            for variable in variables.donated:
                within.changed(variable)
            return self._moving(Group(), donated, kept, leaves, None), donated

    def _moving(
        self,
        group: Group,
        donated: Sequence[StoredArray],
        kept: Sequence[StoredArray],
        leaves: Sequence[Any],
        given: Any,
    ) -> Any:
        """Runs a step, for which variables of no strategy and arguments come to the program's devices."""
        if self.variables.must_move:
            self.variables.move(donated, kept)
        # JAX refuses arrays of other devices before anything is given up. Asking each argument first would cost every
        # step what only the first one, or a wrong one, needs.
        try:
            return self._run(group, donated, kept, [*leaves] if given is None else given)
        except ValueError:
            moved = self.variables.moved(leaves, donated, kept)
            if moved is None:
                raise
        return self._moving(group, donated, kept, moved, None if given is None else self._structure.unflatten(moved))

    def _run(self, group: Group, donated: Sequence[StoredArray], kept: Sequence[StoredArray], given: Any) -> Any:
        """Calls the program with the arrays of variables, binds the new arrays, and returns what else it gives."""
        if lent and (group is not self._group or not lent.isdisjoint(self.variables.donated_ids)):
            undisturbed(prepare_donation, donated)  # it takes locks that saves wait for
        if not group.whole:
            group.gather(donated)
        guard = self.guard
        guard.flattened = guard.broken = False
        read = arrays_of(kept) if kept else []
        if self.variables.shared:
            read += self.variables.shared
        arrays = group._data[0]  # pyright: ignore[reportPrivateUsage]
        group.inputs = self.divided(arrays, read, given, guard) if self.donated_leaves else (arrays, read, given, guard)
        # The program is called as `next` takes what there is to bind: no Python may come between the two.
        calls = self._calls if group is self._group else self._calls_into(group)
        try:
            if self._needs_home or traced_reads.active:
                with self._steady(group):
                    next(calls)
            else:
                next(calls)
        finally:
            group.inputs = None  # the arguments may be large
            if guard.deferral is not None:
                self._end_deferral()
        return group._data.pop()  # pyright: ignore[reportPrivateUsage]

    def divided(self, arrays: list[Any], read: list[Any], leaves: Sequence[Any], guard: Guard) -> tuple[Any, ...]:
        """The program's inputs if it takes over the memory of some arguments."""
        gifts = self.donated_leaves
        rest = [leaf for place, leaf in enumerate(leaves) if place not in gifts]
        return arrays, read, rest, guard, [leaf for place, leaf in enumerate(leaves) if place in gifts]

    @contextmanager
    def _steady(self, group: Group) -> Generator[None]:
        """Runs a step at its home, and as if no kept function had read a variable.

        What has read those that it writes is traced again.
        """
        variables = self.variables
        home = variables.home if self._needs_home else None
        if group is self._group and not traced_reads.stored.isdisjoint(variables.donated_ids):
            traced_reads.renew(variables.donated[0])
        with nullcontext() if home is None else jax.default_device(home.devices[0]), traced_reads.steady():
            yield

    def _end_deferral(self) -> None:
        """Hears signals again, which were put off as JAX ran Python."""
        if self.guard.broken and not self._takes_leaves:
            self.compile_anew()  # JAX would call a program that it could not finish through Python for ever
        self.guard.release()

    def _check(self) -> None:
        """Called before JAX runs Python for a step.

        Checks that new values can get out: not if this was called inside jax.jit, without a traced argument. And that
        a step of `again` is like the step before: JAX may trace it for new shapes, but for no other structure, and for
        arrays alone.

        Raises:
          TraceError: they cannot.
          Unusual: it is not.
          ArgumentError: an array that all replicas are given whole lies in parts on their devices.
        """
        if self._repeating and self._group.inputs is not None:
            leaves, structure = leaves_of(self._group.inputs[2])
            # `in`, as `==` would compare variables that are static parts of the structure by their values.
            if structure not in (self._structure,) or any(type(leaf) not in self._origin.repeatable for leaf in leaves):
                raise Unusual
            self._results.check_whole(leaves)
        if self.variables.donated:
            check_untraced(self.variables.donated[0])

    def finished(self, result: Any, donated: Sequence[StoredArray]) -> Any:
        """Returns the results of a step as the function gives them, once there may be one more step in flight.

        Args:
          result: what the program gave.
          donated: the slots of the variables that it has written.
        """
        return self._results.finished(result, donated)


def _is_of(capture: Capture, leaves: Sequence[Any]) -> bool:
    """True if a trace is that of arguments of such shapes and dtypes."""
    own = leaves[: len(leaves) - capture.executor.fed]
    traced = map(aval, opened(capture.closed).invars)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(own, traced, strict=False))


class _Results:
    """The results of a program, on the way from the traced function to the caller.

    Args:
      first: the function as first traced.
      variables: the variables of the program.
    """

    def __init__(self, first: Capture, variables: ProgramVariables) -> None:
        self._replicas = variables.mesh
        self._mesh = variables.mesh if variables.mesh is not None and variables.mesh.throttles else None
        self._constants = False
        self.bare = False
        """True if the results of a step are what the program gives."""
        self._whole: set[int] = set()
        """The places of the arguments that all replicas are given whole."""
        self._numbers = itertools.count()
        self._trees: dict[int, Any] = {}
        """The structures of results, by a number that the compiled program gives back with them."""
        self.note(first)

    def note(self, capture: Capture) -> None:
        """Takes note of a further trace."""
        self._constants |= capture.constants
        self._whole |= capture.executor.whole
        self.bare = self._mesh is None and not self._constants

    def check_whole(self, leaves: Sequence[Any]) -> None:
        """Refuses an argument that all replicas are to get whole and that lies in parts on their devices.

        Args:
          leaves: the arrays of the arguments.

        Raises:
          ArgumentError: there is one.
        """
        if self._replicas is None:
            return
        for place in self._whole:
            if isinstance(leaves[place], ArrayImpl):
                self._replicas.check_whole(leaves[place].shape, leaves[place].sharding)

    def of_program(self, outputs: Sequence[Any], capture: Capture) -> Any:
        """Returns the results as the compiled program gives them.

        JAX makes lists, tuples and dictionaries of the outputs without any Python: a plain nest comes in a tuple.
        Others come as their arrays, under the number of their structure, and are put together later: a signal would be
        heard in between, and the new arrays lost.
        """
        if is_plain(capture.tree):
            return (capture.tree.unflatten(outputs),)
        number = next(self._numbers)
        self._trees[number] = capture.tree
        return {number: list(outputs)}

    def finished(self, result: Any, donated: Sequence[StoredArray]) -> Any:
        """Returns the results as the function gives them."""
        if type(result) is tuple:
            (result,) = result
        else:
            ((number, flat),) = result.items()
            result = self._trees[number].unflatten(flat)
        if self._mesh is not None:
            self._mesh.throttle(partial(_computed, result, donated, of_result=self._mesh.peers is not None))
        return without_constants(result) if self._constants else result


def _computed(result: Nest, donated: Sequence[StoredArray], *, of_result: bool) -> Any:
    """Arrays that are ready once a dispatched step has been computed."""
    if of_result and jax.tree.leaves(result):
        return result
    return [slot.stored for slot in donated] or result
