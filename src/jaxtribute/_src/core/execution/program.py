"""One compiled program: the variables that it takes and gives back, and the call that does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter, is_
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from jaxtribute._src.core.execution.capture import Capture, Constant, is_constant
from jaxtribute._src.core.execution.compiled_only import CompiledOnly
from jaxtribute._src.core.execution.eager import EagerStep
from jaxtribute._src.core.execution.interrupts import Guard, undisturbed
from jaxtribute._src.core.execution.nests import bundled, is_plain, leaves_of, unbundled
from jaxtribute._src.core.execution.traced import check_untraced
from jaxtribute._src.core.execution.worker_programs import compare_programs, own_arguments
from jaxtribute._src.core.jaxprs.core import ArrayImpl, as_function, closed, constants, opened
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.observers import DISPATCH
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Nest, Numeric
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.placing import own, put
from jaxtribute._src.core.values.stored import (
    Group,
    StoredArray,
    arrays_of,
    lent,
    prepare_donation,
    release,
    replace,
    set_slot,
    updating,
)
from jaxtribute._src.core.values.variable import Variable

_inputs_of = attrgetter("inputs")


class Grow(Exception):  # noqa: N818
    """A retrace touched variables that the program does not take yet."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture


class Unusual(Exception):  # noqa: N818
    """A step is not like the one before; nothing has run."""


class Program:
    """A function compiled for one structure of arguments, over all their shapes.

    Variables that it writes are donated and rebound; those that it only reads are passed. `jax.jit` keeps one
    executable for each combination of shapes, and asks `retrace` for the program of a new one.

    Args:
      first: the function as traced for the first shapes.
      retrace: traces it for others.
      home: the devices to run on; None for those of the arguments.
      donated_leaves: the places of the arguments whose memory the program may take over.
    """

    def __init__(
        self,
        first: Capture,
        retrace: Callable[[Sequence[Any]], Capture],
        home: ReplicaMesh | None,
        donated_leaves: Sequence[int] = (),
    ) -> None:
        self._retrace = retrace
        self.name = ""  # in messages
        self.repeatable: tuple[type, ...] = (ArrayImpl,)  # what the arguments of calls by `again` may be
        self._home = home
        self._donated_leaves = frozenset(donated_leaves)
        """The places among the leaves of arguments whose memory the program may take over."""
        self._pending: Capture | None = None
        self.mesh: ReplicaMesh | None = None
        self.donated: list[Variable] = []
        self.kept: list[Variable] = []
        self._constants = False
        self._bare = False
        """True if the results of a step are what the program gives."""
        self._growing: Capture | None = None
        """The variables that the program is still to take, until it does."""
        self._special = False
        """True if a step needs what `_prepare` does."""
        self._guard = Guard(self._check)
        """The guard that tells when JAX runs Python."""
        self._structure: Any = None
        """The structure of the arguments of steps that `again` runs."""
        self._group = Group()
        """The arrays of the variables that the program writes."""
        self._shared: list[jax.Array] = []
        """Arrays from around the function of which other workers hold parts: no constants can be made of them."""
        self._numbers = itertools.count()
        self._trees: dict[int, Any] = {}
        """The structures of results, by a number that the compiled program gives back with them."""
        self._grow(first)

    def _grow(self, capture: Capture) -> None:
        # Until the last line an interrupt may come anywhere: a program that is still marked as growing is made again by
        # the next step, from the same capture, before it runs.
        self._growing, self._special = capture, True
        release(self.donated)
        self._group = Group()
        written = dict.fromkeys([*self.donated, *capture.executor.written])
        read = dict.fromkeys([*self.kept, *capture.executor.inputs])
        self.donated, self.kept = list(written), [variable for variable in read if variable not in written]
        self._shared += [array for array in _shared_of(capture) if not any(map(is_, self._shared, repeat(array)))]
        self.mesh = capture.executor.mesh or self.mesh
        self._throttles = self.mesh is not None and self.mesh.throttles
        self._home = self._home or capture.executor.home
        self._constants |= capture.constants
        self._bare = not self._throttles and not self._constants
        both = [*self.donated, *self.kept]
        self._unplaced = [i for i, v in enumerate(both) if v.policy.mesh is None]
        self._unplaced_ids = frozenset(id(both[place]) for place in self._unplaced)
        owners = [both[place].distribute_strategy.extended for place in self._unplaced]
        self._copied_to_all: set[int] = owners[0].copied_to_all if owners else set()
        self._move_unplaced(self._unplaced_of(self.donated, self.kept))
        # Without an argument that is bound to a device, JAX would run on its default one.
        bound = any(variable.stored.committed for variable in (*self.donated, *self.kept))
        self._needs_home = self._home is not None and not bound
        target = self._target()  # once: it may look at every variable
        # The new values must come out where the variables lie: left to itself the compiler may choose another place,
        # and the next call would be compiled for that one.
        state = [self._placement(variable, target) for variable in self.donated]
        self._shardings = None if any(sharding is None for sharding in state) else [state, None]
        self._donated_ids = frozenset(id(variable) for variable in self.donated)
        # The first call traces `_body` for the very shapes that `capture` has: it is used instead of tracing once more.
        self._pending = capture
        self._closed = capture.closed
        central = next((v.policy for v in (*self.donated, *self.kept) if v.policy.parameter_device is not None), None)
        if central is not None and central.mesh is not None and central.parameter_device is not None:
            from jaxtribute._src.core.execution.central.plan import CentralProgram  # for one strategy alone

            self.mesh, self._donated_leaves = self.mesh or central.mesh, frozenset()
            self._central = True
            self._jitted: Any = CentralProgram(
                self._body, self.donated, self.kept, central.mesh, central.parameter_device
            )
        else:
            self._central = False
            self._compile_anew()
        self._growing, self._special = None, bool(self._unplaced)

    def _compile_anew(self) -> None:
        """Makes a `jax.jit` that knows no program yet."""

        def step(*inputs: Nest) -> list[Any]:  # of its own: equal functions would share what JAX knows of them
            return self._body(*inputs)

        donated = (0, 4) if self._donated_leaves else 0
        self._jitted = jax.jit(step, donate_argnums=donated, out_shardings=self._shardings)
        home = self.mesh or self._home
        if home is not None and home.described:
            self._jitted = CompiledOnly(self._jitted, home.replicated)
        # One step of those that `again` runs: each `next` calls the program with the group's `inputs`, and puts what it
        # gives into the group.
        group = self._group
        self._steps = map(set_slot, repeat(group), starmap(self._jitted, map(_inputs_of, repeat(group))))

    def _target(self) -> Sharding | None:
        """Place of arguments and variables of no strategy; None where any will do."""
        home = self.mesh or self._home
        if home is not None:
            return home.replicated
        owned = (v.stored.sharding for v in (*self.donated, *self.kept) if v.policy.mesh is not None)
        return next(owned, None)

    def _placement(self, variable: Variable, target: Sharding | None) -> Sharding | None:
        """Place of a variable's new value, which is `target` if it is of no strategy; None: JAX decides."""
        if variable.policy.mesh is None and target is not None:
            return target
        return variable.stored.sharding if variable.stored.committed else None

    def _body(
        self,
        donated: Sequence[Any],
        kept: Sequence[Any],
        given: Any,
        guard: Any = None,
        donated_leaves: Sequence[Any] = (),
    ) -> list[Any]:
        """The written variables' new arrays in a list, and the results, in a tuple.

        Of the arguments it takes the leaves in a list, or themselves as `bundled`.

        JAX makes lists, tuples and dictionaries of the outputs without any Python. Results of other classes it gives
        as their arrays, under the number of their structure, and they are put together later: a signal would be heard
        in between, and the new arrays lost.
        """
        if type(guard) is Guard and self._group.inputs is not None:
            raise Unusual  # JAX itself runs as Python: `jax.disable_jit`
        leaves = given if type(given) is list else leaves_of(unbundled(given))[0]
        if donated_leaves:
            rest, gifts = iter(leaves), iter(donated_leaves)
            leaves = [
                next(gifts if i in self._donated_leaves else rest) for i in range(len(leaves) + len(donated_leaves))
            ]
        capture = self._pending or self._traced(leaves)
        self._pending = None
        # JAX asks for the program of new shapes in the middle of a call, when the variables that go in are fixed. A
        # trace that touches others cannot go on: `Grow` carries it out of the call, which is then made again with all.
        count = len(self.kept)
        known = dict(zip((*self.donated, *self.kept), (*donated, *kept[:count]), strict=True))
        shared = dict(zip(map(id, self._shared), kept[count:], strict=True))
        executor = capture.executor
        spreads = self.mesh is None and executor.mesh is not None
        spreads = spreads or any(id(array) not in shared for array in _shared_of(capture))
        if spreads or any(v not in known for v in executor.inputs) or any(v in self.kept for v in executor.written):
            raise Grow(capture)
        self._constants |= capture.constants
        self._bare = self._bare and not self._constants
        inputs = [known[variable] for variable in capture.executor.inputs]
        own_leaves, fed = leaves[: len(leaves) - executor.fed], leaves[len(leaves) - executor.fed :]
        program = capture.closed
        if shared:
            program = closed(opened(program), [shared.get(id(value), value) for value in constants(program)])
        outputs = as_function(program)(*own_leaves, *inputs, *fed)
        count = capture.tree.num_leaves
        # JAX would hand an input that is also an output back as it is: the caller's own memory, as a variable's.
        passed = {id(value) for value in (*leaves, *inputs)}
        state = [jnp.copy(value) if id(value) in passed else value for value in outputs[count:]]
        known.update(zip(capture.executor.written, state, strict=True))
        arrays = [known[variable] for variable in self.donated]
        if is_plain(capture.tree):
            return [arrays, (capture.tree.unflatten(outputs[:count]),)]
        number = next(self._numbers)
        self._trees[number] = capture.tree
        return [arrays, {number: list(outputs[:count])}]

    def _traced(self, leaves: Sequence[Any]) -> Capture:
        def trace() -> Capture:
            capture = self._retrace(leaves)
            compare_programs(self.name, capture.closed, capture.executor.mesh)
            return capture

        return self._guard.resumed(trace)

    def __call__(self, leaves: Sequence[Any], within: EagerStep | None = None, given: Any = None) -> Any:
        """Runs one step: puts the variables in, takes their new values back, returns the results.

        Args:
          leaves: the arrays of the arguments.
          within: the eager step that it is part of, which keeps what is written.
          given: the arguments as `bundled`, if all their leaves are arrays: in one form always, as JAX compiles for it.
        """
        if DISPATCH.observers and DISPATCH.due():
            return DISPATCH.around(self, self, self.name, leaves, within, given)
        mesh = self.mesh
        if mesh is not None and mesh.peers is not None:
            mesh.entering(self.name, partial(self._collectives, leaves))
            if self._pending is not None:
                compare_programs(self.name, self._pending.closed, mesh, leaves)
        donated: Sequence[StoredArray] = self.donated
        if self._central or isinstance(self._jitted, CompiledOnly):
            given = None  # they take the leaves
        elif given is not None and self._structure is None:
            self._structure = leaves_of(given)[1]
        try:
            if within is None:
                with updating:
                    result = self._run(leaves, donated, self.kept, self._group, given)
            else:
                result, donated = within.operate(partial(self._part, leaves, within))
        except Grow as grow:
            with updating:
                self._grow(grow.capture)
            return self(leaves, within, given)
        except (RuntimeError, ValueError) as error:
            if mesh is not None:
                mesh.explain(error)
            raise
        return self._finished(result, donated)

    @property
    def repeats(self) -> bool:
        """True if `again` can run steps of the program."""
        alone = self.mesh is None or self.mesh.peers is None
        plain = not (self._central or self._needs_home or self._donated_leaves or self._shared)
        return alone and plain and not self._must_prepare() and not isinstance(self._jitted, CompiledOnly)

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one step of a program that `repeats`, without any Python that is not needed.

        Most steps pass here: each operation counts. What the arguments are is left to JAX, which looks for a program
        by their structure, shapes, dtypes and places; of all else a flag tells that it has not changed.

        Raises:
          Unusual: it is another step; nothing has happened.
        """
        if self._special and self._must_prepare():
            raise Unusual
        group, guard = self._group, self._guard
        with updating:
            if not group.whole:
                group.gather(self.donated)
            if lent and not lent.isdisjoint(self._donated_ids):
                undisturbed(prepare_donation, self.donated)
            guard.seen = False
            read = arrays_of(self.kept) if self.kept else []
            given = bundled(args, kwargs) if kwargs else args
            group.inputs = (group._data[0], read, given, guard)  # pyright: ignore[reportPrivateUsage]
            try:
                if traced_reads.active:
                    with self._steady():
                        next(self._steps)
                else:
                    next(self._steps)
            except Grow as grow:
                self._grow(grow.capture)
                raise Unusual from None
            except ValueError as error:
                if guard.broken:
                    raise
                raise Unusual from error  # JAX refuses arrays of other devices
            finally:
                group.inputs = None  # the arguments may be large
                if guard.deferral is not None:
                    self._end_deferral()
            result = group._data.pop()  # pyright: ignore[reportPrivateUsage]
        if type(result) is tuple and self._bare:
            return result[0]
        return self._finished(result, self.donated)

    def _finished(self, result: Any, donated: Sequence[StoredArray]) -> Any:
        """The results of a step as the function gives them, once there may be one more step in flight."""
        if type(result) is tuple:
            (result,) = result
        else:
            ((number, flat),) = result.items()
            result = self._trees[number].unflatten(flat)
        mesh = self.mesh
        if self._throttles and mesh is not None:
            mesh.throttle(partial(_computed, result, donated, of_result=mesh.peers is not None))
        return jax.tree.map(_unwrapped, result, is_leaf=is_constant) if self._constants else result

    def _part(self, leaves: Sequence[Any], within: EagerStep) -> tuple[Any, Sequence[StoredArray]]:
        """The step on what the eager step `within` has made of the variables."""
        with updating:
            donated = [within.slot(variable, written=True) for variable in self.donated]
            kept = [within.slot(variable, written=False) for variable in self.kept]
            for variable in self.donated:
                within.changed(variable)
            return self._run(leaves, donated, kept, Group()), donated

    def _collectives(self, leaves: Sequence[Any]) -> list[str]:
        """Describes the program, for workers to compare: its arguments and its collectives."""
        shapes = [f"argument {leaf.dtype}{list(leaf.shape)}" for leaf in leaves if hasattr(leaf, "dtype")]
        return [*shapes, *own_arguments(leaves), *list_collectives(opened(self._closed), AXIS)]

    def _run(
        self,
        leaves: Sequence[Any],
        donated: Sequence[StoredArray],
        kept: Sequence[StoredArray],
        group: Group,
        given: Any = None,
    ) -> Any:
        """Calls the program with the arrays of `donated` and `kept`, binds the new ones, and returns its results."""
        if self._must_prepare():
            self._prepare(donated, kept)
        if lent and (donated is not self.donated or not lent.isdisjoint(self._donated_ids)):
            undisturbed(prepare_donation, donated)  # it takes locks that saves wait for
        if not group.whole:
            group.gather(donated)
        guard = self._guard
        read = arrays_of(kept)
        read += self._shared
        if self._donated_leaves:
            inputs = self._divided(group.arrays, read, leaves)
        else:
            inputs = (group.arrays, read, [*leaves] if given is None else given, guard)
        guard.seen = False
        # The program is called by `replace`, as it takes what there is to bind: nothing may come between the two.
        call = map(set_slot, (group,), starmap(self._jitted, (inputs,)))
        try:
            if self._needs_home or traced_reads.active:
                home = jax.default_device(self._home.devices[0]) if self._needs_home and self._home else nullcontext()
                with home, self._steady() if donated is self.donated else traced_reads.steady():
                    replace(call)
            else:
                replace(call)
        # JAX refuses arrays of other devices before anything is given up. Asking each argument first would cost every
        # step what only the first one, or a wrong one, needs.
        except ValueError:
            guard.release()
            moved = self._moved_to_program_devices(leaves, self._unplaced_of(donated, kept))
            if moved is None:
                raise
            return self._run(moved, donated, kept, group, None if given is None else self._structure.unflatten(moved))
        finally:
            if guard.deferral is not None:
                self._end_deferral()
        return group._data.pop()  # pyright: ignore[reportPrivateUsage]

    def _steady(self) -> AbstractContextManager[None]:
        """Runs a step as if no kept function had read a variable; what has read those that it writes is traced anew."""
        if not traced_reads.stored.isdisjoint(self._donated_ids):
            traced_reads.renew(self.donated[0])
        return traced_reads.steady()

    def _end_deferral(self) -> None:
        """Hears signals again, which were put off as JAX ran Python."""
        if self._guard.broken and not self._central:
            self._compile_anew()  # JAX would call a program that it could not finish through Python for ever
        self._guard.release()

    def _must_prepare(self) -> bool:
        """True of programs in the making, and of those that have variables of no strategy on several devices."""
        made = self._growing is None and self.mesh is None
        return self._special and not (made and self._copied_to_all.isdisjoint(self._unplaced_ids))

    def _prepare(self, donated: Sequence[StoredArray], kept: Sequence[StoredArray]) -> None:
        """Prepares a step of a program that is being made for more variables, or that has some of no strategy."""
        if self._growing is not None:
            raise Grow(self._growing)  # an interrupt came while the program was made for more variables
        self._move_unplaced(self._unplaced_of(donated, kept))

    def _divided(self, old: list[Any], read: list[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The program's inputs where it takes over the memory of some arguments."""
        rest = [leaf for i, leaf in enumerate(leaves) if i not in self._donated_leaves]
        return old, read, rest, self._guard, [leaf for i, leaf in enumerate(leaves) if i in self._donated_leaves]

    def _check(self) -> None:
        """Called before JAX runs Python for a step.

        Checks that new values can get out: not if this was called inside jax.jit, without a traced argument. And that
        a step of `again` is one: JAX may trace it for new shapes, but for no other structure, and for arrays alone.

        Raises:
          TraceError: they cannot.
          Unusual: it is not.
        """
        inputs = self._group.inputs
        if inputs is not None:
            leaves, structure = leaves_of(inputs[2])
            # `in`, as `==` would compare variables that are static parts of the structure by their values.
            if structure not in (self._structure,) or any(type(leaf) not in self.repeatable for leaf in leaves):
                raise Unusual
        if self.donated:
            check_untraced(self.donated[0])

    def _unplaced_of(self, donated: Sequence[StoredArray], kept: Sequence[StoredArray]) -> list[StoredArray]:
        """Those of variables that belong to no strategy."""
        both = (*donated, *kept)
        return [both[place] for place in self._unplaced]

    def _moved_to_program_devices(self, leaves: Sequence[Any], unplaced: Sequence[StoredArray]) -> list[Any] | None:
        """Brings arguments and variables of no strategy from other devices to the program's; None if none is away."""
        target = self._target()
        if target is None:
            return None

        def away(array: Numeric) -> bool:
            return isinstance(array, jax.Array) and array.committed and array.sharding.device_set != target.device_set

        stray = [slot for slot in unplaced if away(slot.stored)]
        if not stray and not any(away(leaf) for leaf in leaves):
            return None
        for slot in stray:
            slot.bind(own(slot.stored, target))
        return [put(leaf, target) if away(leaf) else leaf for leaf in leaves]

    def _move_unplaced(self, unplaced: Sequence[StoredArray]) -> None:
        """Brings variables that belong to no strategy to the devices of this program."""
        target = self._target()
        for slot in unplaced:
            array = slot.stored
            if target is not None and len(target.device_set) > 1:
                if array.sharding != target:
                    slot.bind(own(array, target))
                    self._copied_to_all.add(id(slot))
            elif len(array.devices()) > 1:
                slot.bind(array.addressable_shards[0].data.copy())
                self._copied_to_all.discard(id(slot))

    @property
    def jitted(self) -> Any:
        """The function of donated variables, kept variables and arguments that `jax.jit` made, for looking at."""
        return self._jitted

    @property
    def donated_leaves(self) -> frozenset[int]:
        """The places among the leaves of arguments whose memory the program takes over."""
        return self._donated_leaves

    def lower(self, leaves: Sequence[Any]) -> Any:
        """The program lowered for `leaves`, for looking at; runs nothing."""
        donated, kept = [v.peek() for v in self.donated], [*(v.peek() for v in self.kept), *self._shared]
        return self._jitted.lower(donated, kept, leaves, Guard(None))


def program_of(
    first: Capture,
    retrace: Callable[[Sequence[Any]], Capture],
    home: ReplicaMesh | None,
    donated_leaves: Sequence[int] = (),
    name: str = "",
) -> Callable[[Sequence[Any]], Any]:
    """The program of a traced function: a `Program`, unless it touches variables that other processes hold."""
    touched = (*first.executor.inputs, *first.executor.written, *first.executor.operations)
    owners = (getattr(entry, "variable", entry) for entry in touched)
    kinds = (variable.policy.program for variable in owners if isinstance(variable, Variable))
    kind = next((kind for kind in kinds if kind is not None), None) or Program
    program = kind(first, retrace, home, donated_leaves)
    if isinstance(program, Program):
        program.name = name
    return program


def _computed(result: Nest, donated: Sequence[StoredArray], *, of_result: bool) -> Any:
    """Arrays that are ready once a dispatched step has been computed."""
    if of_result and jax.tree.leaves(result):
        return result
    return [slot.stored for slot in donated] or result


def _unwrapped(value: Numeric) -> Any:
    return value.value if isinstance(value, Constant) else value


def _shared_of(capture: Capture) -> list[jax.Array]:
    """The arrays from around a function of which other workers hold parts."""
    values = constants(capture.closed)
    return [value for value in values if isinstance(value, ArrayImpl) and not value.is_fully_addressable]
