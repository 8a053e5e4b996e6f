"""Runs a user's step on virtual replicas: the function is the user's own, its strategy has another number of replicas.

Everything is one process and one device. What `strategy.run` is given is traced once for each shape of a replica's
rows and evaluated for all replicas side by side, in float64; the code around runs as Python. The variables stay as
they are: what the step writes is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, SingleDeviceSharding

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Mirrored, Optimizer, PerReplica, ReduceOp, ReplicaContext, Variable, VariableSynchronization
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.machine import CannotVerify, Machine, Record, Tape, together
from jaxtribute._src.addons.verify.meeting import Draws, meet
from jaxtribute._src.addons.verify.operations import as_wide, is_key
from jaxtribute._src.addons.verify.sources import Place, calling_place
from jaxtribute.extending import (
    Context,
    Executor,
    Function,
    Gathers,
    InReplica,
    Literal,
    MirroredPolicy,
    Nests,
    OnReadPolicy,
    Programs,
    TracedProgram,
    TracedReplica,
    Tracer,
    all_reduce,
    varying_outputs,
)
from jaxtribute.typing import Foreign, Leaf, Nest
from jaxtribute.typing import Function as Callee

_OWN = f"{__name__.rsplit('.', 2)[0]}."
"""The library's own add-ons, whose replica functions, such as Keras's steps, are told the rows of all replicas."""


@dataclass(slots=True, eq=False)
class Outcome:
    """The results and writes of a step on some replicas.

    Attributes:
      arrangement: the replicas.
      outputs: what it returned, by path: an array of float64, or a tuple with one for each replica.
      written: the new values of variables; those with a row for each replica are such rows.
      tapes: what each replica has computed, if it was kept.
      repeated: records of draws that gave all replicas the same numbers for different rows.
      rounded: True if code around the replicas computed in 32 bits.
      ran: True if replicas ran.
      lines: by variable the line of the last write within a replica.
      lost: what could not be followed, in words.
      shared: True if replicas were given values of their own, such as the rows of a batch.
      wholes: lines that give all replicas one array that is no state.
    """

    arrangement: Arrangement
    outputs: dict[str, Any] = field(default_factory=dict)
    written: dict[Variable, Any] = field(default_factory=dict)
    tapes: list[Tape] = field(default_factory=list)
    repeated: list[Record] = field(default_factory=list)
    rounded: bool = False
    ran: bool = False
    lines: dict[Variable, Place] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    shared: bool = False
    wholes: list[Place] = field(default_factory=list)


class _Replica(TracedReplica):
    """A replica whose reductions stay as they are written: one operation for each value, none packed or put off.

    Args:
      lines: where it notes the lines that write variables.
      args: those of a `TracedReplica`.
      options: likewise.
    """

    def __init__(self, lines: dict[Variable, Place], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lines = lines

    def all_reduce(self, values: list[Any], op: ReduceOp, summation: Foreign = None) -> list[Any]:
        """Returns each array reduced over the replicas."""
        del summation
        return [all_reduce([value], op, self._mesh.size, None, self.idle)[0] for value in values]

    def reduce_gradients(self, grads: Sequence[Any], op: ReduceOp, replicas: int, summation: Foreign) -> list[Any]:
        """Returns a replica's gradients reduced over the replicas."""
        del replicas, summation
        return self.all_reduce(list(map(jnp.asarray, grads)), op)

    def set(self, variable: Variable, value: Leaf) -> None:
        """Sets what the replica holds of the variable, and notes the line."""
        self._lines[variable] = calling_place()
        super().set(variable, value)

    def queue_loss(self, loss: Leaf) -> None:
        """Does nothing: losses travel alone."""

    def constrain(self, value: Leaf, layout: Foreign, mesh: Foreign) -> Any:
        """Returns the value: a virtual replica has one device."""
        del layout, mesh
        return value


class Stage(Executor):
    """Runs one step, once.

    Args:
      strategy: the user's strategy.
      arrangement: the replicas that stand for its own.
      state: what each variable holds, in float64.
      draws: the random numbers of one device with the whole batch; they are noted if this is that run.
      folded: the loops that are kept as one operation; None to keep nothing of what is computed.
    """

    def __init__(
        self,
        strategy: Any,
        arrangement: Arrangement,
        state: dict[Variable, Any],
        draws: Draws,
        folded: frozenset[int] | None = None,
    ) -> None:
        self._strategy, self._state, self._draws = strategy, state, draws
        self._wide: dict[int, Any] = {}
        self._alive: list[Any] = []
        self.batch = 0
        """Number of rows of the program's own batch."""
        self.placed: set[int] = set()
        """Ids of arrays that the program has given to all replicas."""
        tapes = [Tape(folded is not None, folded=folded or frozenset()) for _ in arrangement.sizes]
        self.found = Outcome(arrangement, tapes=tapes)

    # Arrays for the code around the replicas, which knows nothing of float64.

    def _shown(self, value: Any, dtype: Any) -> Any:
        """A value as the code around sees it."""
        if is_key(value):
            return value
        with np.errstate(all="ignore"):
            array = jax.device_put(np.asarray(value, dtype))
        self._wide[id(array)] = value
        self._alive.append(array)
        return array

    def _exact(self, value: Any) -> Any:
        """The value in float64 that stands behind an array of the code around."""
        known = self._wide.get(id(value))
        if known is None:
            known = as_wide(value)
            # What is no operand of the user's was computed of something in 32 bits.
            self.found.rounded = self.found.rounded or getattr(known, "dtype", None) == np.float64
        return known

    def note(self, values: Nest) -> None:
        """Notes arrays that are exact as they are."""
        for leaf in jax.tree.leaves(values):
            if Nests.is_array(leaf) and not is_key(leaf):
                self._wide[id(leaf)] = as_wide(leaf)
                self._alive.append(leaf)

    # Variables.

    @property
    def view(self) -> Any:
        """That of code that runs as Python."""
        return None

    def exact_value(self, variable: Variable) -> Any:
        """Gives the value of a variable: of a variable with a row for each replica, the rows."""
        if variable in self.found.written:
            return self.found.written[variable]
        if variable not in self._state:
            if variable.policy.cut is not None:
                raise CannotVerify(f"{variable.name} lies in slices, and was not known before")
            value = as_wide(np.asarray(variable.stored))
            self._state[variable] = value[None] if is_rows(variable) and variable.policy.form != "rows" else value
        return _rows_for(variable, self._state[variable], self.found.arrangement.replicas)

    def get(self, variable: Variable) -> Any:
        """Returns a variable's array."""
        return self._shown(self.exact_value(variable), variable.dtype)

    def set(self, variable: Variable, value: Any) -> None:
        """Keeps a variable's new array."""
        self.found.written[variable] = self._exact(value)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """Returns `make` of the variable's array."""
        return make(self.get(variable))

    def create(self, make: Any) -> Variable:
        """Refuses: a step that has run before has its variables."""
        raise CannotVerify(f"{calling_place()} makes a variable in the step")

    def component(self, value: Any, mesh: Any, *, scalar: bool) -> PerReplica:
        """Returns an array that is split over the replicas as a value of them."""
        parts = np.split(np.asarray(value), self.found.arrangement.replicas)
        return PerReplica(tuple(jnp.asarray(part.reshape(()) if scalar else part) for part in parts), mesh)

    # All replicas.

    def reduce(self, strategy: Any, values: Sequence[Any], op: ReduceOp, axis: Any) -> list[Any]:
        """Returns each value reduced over the replicas, and along `axis` within each."""
        return [self._reduced(strategy, value, op, axis) for value in values]

    def _reduced(self, strategy: Any, value: Any, op: ReduceOp, axis: Any) -> Any:
        place = calling_place()
        arrangement = self.found.arrangement
        if isinstance(value, PerReplica):
            shown = list(value.values)
        elif arrangement.replicas == 1:
            shown = [value.data if isinstance(value, Mirrored) else value]
        elif isinstance(value, Mirrored):
            shown = [value.data] * arrangement.replicas
        else:
            return super().reduce(strategy, [value], op, axis)[0]
        parts = list(map(self._exact, shown))
        given = jnp.asarray(shown[0]).dtype
        wide = total_of(parts, op, axis, arrangement.idle)
        if wide.dtype.kind in "biu":
            dtype: Any = jnp.int32 if given == np.bool_ else given
        else:
            dtype = given if jnp.issubdtype(given, jnp.inexact) else jnp.float32
        self._note_reduction(parts, wide, op, axis, place)
        return self._shown(wide, dtype)

    def _note_reduction(self, parts: list[Any], wide: Any, op: ReduceOp, axis: Any, place: Any) -> None:
        for tape, part in zip(self.found.tapes, parts, strict=True):
            tape.add(Record(f"strategy.reduce {op.name} axis={axis}", (part,), (wide,), None, place))

    def gather(self, value: Any, axis: int) -> Any:
        """Returns a value concatenated over the replicas along `axis`."""
        shown = list(value.values) if isinstance(value, PerReplica) else [getattr(value, "data", value)]
        parts = list(map(self._exact, shown))
        wide = np.concatenate(parts, axis) if len(parts) > 1 else parts[0]
        place = calling_place()
        for tape, part in zip(self.found.tapes, parts, strict=False):
            tape.add(Record("strategy.gather", (part,), (wide,), None, place))
        return self._shown(wide, jnp.asarray(shown[0]).dtype)

    # The replicas.

    def run(self, fn: Callee, args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Does what `strategy.run` does."""
        self.found.ran = True
        if Context.current().executor is not self:
            raise CannotVerify(f"{calling_place()} differentiates or transforms around strategy.run")
        if isinstance(fn, Function):
            fn = fn.python_function
        run = _Run(self, self._strategy, fn, (tuple(args), dict(kwargs or {})))
        return run.results()

    def evaluated(self, traces: Sequence[Any], inputs: Sequence[list[Any]]) -> list[list[Any]]:
        """The results of the replicas' programs."""
        running = [
            Machine(number, tape, self.found.arrangement.factor, self.found.arrangement.branch).run(closed, given)
            for number, (tape, closed, given) in enumerate(zip(self.found.tapes, traces, inputs, strict=True))
        ]
        return together(running, lambda meetings: meet(meetings, self.found, self._draws))

    def result(self, value: Any, dtype: Any) -> Any:
        """One result of a replica, for the code around."""
        return self._shown(value, dtype)

    def input_of(self, value: Any) -> Any:
        """One argument of a replica in float64."""
        return value if is_key(value) else self._exact(value)


class _Run:
    """One call of `strategy.run`."""

    def __init__(self, stage: Stage, strategy: Any, fn: Callee, nest: Nest) -> None:
        self._stage, self._strategy, self._fn = stage, strategy, fn
        self._mesh = strategy.extended.mesh
        self._count = stage.found.arrangement.replicas
        Nests.reveal(nest, (jax.Array, PerReplica, Mirrored))
        leaves, self._tree = Nests.flatten(nest)
        if getattr(fn, "__globals__", {}).get("__name__", "").startswith(_OWN) and stage.batch > 1:
            rows = stage.found.arrangement.rows
            leaves = [rows if type(leaf) is int and leaf == stage.batch else leaf for leaf in leaves]
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(leaves)):
            raise CannotVerify(f"{calling_place()} calls strategy.run within a JAX transformation")
        self._columns = [self._column(leaf) for leaf in leaves]
        """For each leaf what each replica has in its place."""
        self._arrays = [place for place, column in enumerate(self._columns) if Nests.is_array(column[0])]
        if any(isinstance(leaf, PerReplica) for leaf in leaves):
            stage.found.shared = True
        elif any(Nests.is_array(leaf) and np.ndim(leaf) and id(leaf) not in stage.placed for leaf in leaves):
            stage.found.wholes.append(calling_place())

    def _column(self, leaf: Any) -> list[Any]:
        if isinstance(leaf, PerReplica):
            parts = list(leaf.values)
            if len(parts) != self._count:
                raise CannotVerify("a value of the replicas comes from around the step")
            if all(map(Nests.is_number, parts)) and len(set(parts)) > 1:
                parts = list(map(jnp.asarray, parts))
            return parts
        if isinstance(leaf, Mirrored):
            return [leaf.data] * self._count
        return [leaf] * self._count

    def results(self) -> Any:
        """Traces, evaluates and hands back."""
        idle = self._stage.found.arrangement.idle
        shapes = [
            tuple(np.shape(self._columns[place][number]) for place in self._arrays) for number in range(self._count)
        ]
        distinct = list(dict.fromkeys(shapes))
        table = [distinct.index(shape) for shape in shapes]
        samples = [table.index(kind) for kind in range(len(distinct))]
        made: list[Any] = []
        uneven = len(distinct) > 1
        sizes = self._stage.found.arrangement.sizes

        def trace(replica: int, gathers: Gathers | None = None) -> Any:
            return self._trace(
                replica,
                lambda: _Replica(
                    self._stage.found.lines,
                    self._mesh,
                    idle if uneven else (),
                    self._stage,
                    made,
                    gathers,
                    uneven=uneven,
                ),
            )

        kinds = Gathers.settled(trace, samples, table, sizes) if uneven else [trace(0)]
        traces = [kinds[kind] for kind in table]
        first = traces[0]
        for other in traces[1:]:
            if other.places != first.places or other.tree != first.tree:
                raise CannotVerify("the results of replicas of different rows differ in structure")
        inputs = [
            [self._stage.input_of(self._columns[place][number]) for place in self._arrays]
            + [self._part(variable, number) for variable in traces[number].executor.inputs]
            for number in range(self._count)
        ]
        outputs = self._stage.evaluated([trace.closed for trace in traces], inputs)
        self._keep(traces, outputs)
        return self._wrapped(traces, outputs)

    def _part(self, variable: Variable, replica: int) -> Any:
        value = self._stage.exact_value(variable)
        return value[replica : replica + 1] if variable.policy.split else value

    def _trace(self, replica: int, make: Callable[[], TracedReplica]) -> Any:
        seen: dict[str, Any] = {}
        fill = {place: self._columns[place][replica] for place in range(len(self._columns))}

        def program(*local: Any) -> list[Any]:
            executor = make()
            context = ReplicaContext(self._strategy, lax.axis_index(AXIS))
            leaves = dict(fill)
            leaves.update(zip(self._arrays, local, strict=True))
            args, kwargs = self._tree.unflatten([leaves[place] for place in range(len(leaves))])
            with Context.entered(Context(self._strategy, context, executor)):
                result = self._fn(*args, **kwargs)
            Nests.reveal(result, (jax.Array,))
            found, tree = Nests.flatten(result)
            found = [leaf.data if isinstance(leaf, Mirrored) else leaf for leaf in found]
            arrays = {place: leaf for place, leaf in enumerate(found) if Nests.is_array(leaf)}
            seen.update(executor=executor, tree=tree, places=list(arrays), leaves=found)
            return [*arrays.values(), *executor.new_values()]

        avals = [jax.typeof(jnp.asarray(fill[place])) for place in self._arrays]
        given = [jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type) for one in avals]
        closed = TracedProgram.lift(jax.make_jaxpr(program, axis_env=[(AXIS, self._count)])(*given))
        return _Traced(closed=closed, **seen)

    def _keep(self, traces: Sequence[Any], outputs: list[list[Any]]) -> None:
        count = len(traces[0].places)
        for offset, variable in enumerate(traces[0].executor.written):
            values = [column[count + offset] for column in outputs]
            if variable.policy.split:
                whole = values[0] if len(values) == 1 else np.concatenate(values)
            else:
                whole = values[0]
            for tape, value in zip(self._stage.found.tapes, values, strict=True):
                tape.same(whole, value) if variable.policy.split else None
            self._stage.found.written[variable] = whole

    def _wrapped(self, traces: Sequence[Any], outputs: list[list[Any]]) -> Any:
        first = traces[0]
        leaves = list(first.leaves)
        jaxpr = Programs.opened(first.closed)
        split = [self._is_split(place) for place in self._arrays]
        varying = varying_outputs(jaxpr, [*split, *(one.policy.split for one in first.executor.inputs)])
        reached = _reached(jaxpr)
        for index, place in enumerate(first.places):
            dtype = Programs.aval(jaxpr.outvars[index]).dtype
            parts = [self._stage.result(column[index], dtype) for column in outputs]
            if self._count == 1:
                leaves[place] = parts[0]
            elif (
                varying[index]
                or jaxpr.outvars[index] not in reached
                or not _equal([column[index] for column in outputs])
            ):
                leaves[place] = PerReplica(tuple(parts), self._mesh, idle=self._stage.found.arrangement.idle)
            else:
                leaves[place] = Mirrored(parts[0], self._mesh)
        return first.tree.unflatten(leaves)

    def _is_split(self, place: int) -> bool:
        column = self._columns[place]
        return any(part is not column[0] for part in column[1:])


def _reached(jaxpr: Any) -> Any:
    """The values of a program that depend on what it is given; all others are constants, such as numbers of rows."""
    found = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in found for atom in eqn.invars):
            found.update(eqn.outvars)
    return _Values(found)


class _Values:
    def __init__(self, found: set[Any]) -> None:
        self._found = found

    def __contains__(self, atom: object) -> bool:
        return not isinstance(atom, Literal) and atom in self._found


def _equal(parts: list[Any]) -> bool:
    """True for arrays of one shape and of the same numbers; for keys too."""
    return is_key(parts[0]) or all(np.array_equal(part, parts[0], equal_nan=part.dtype.kind == "f") for part in parts)


@dataclass(slots=True)
class _Traced:
    closed: Any
    executor: TracedReplica
    tree: Any
    places: list[int]
    leaves: list[Any]


def total_of(parts: Sequence[Any], op: ReduceOp, axis: Any, idle: Sequence[int] = ()) -> Any:
    """Reduces the replicas' values as `strategy.reduce` does.

    Raises:
      CannotVerify: they have different shapes, and no axis is reduced.
    """
    counted = [part for number, part in enumerate(parts) if number not in idle]
    if axis is not None:
        axes = tuple(range(parts[0].ndim))[axis] if isinstance(axis, int) else tuple(axis)
        sums = [np.sum(np.asarray(part), axis=axes) for part in parts]
        sizes = [np.asarray(part).size for part in parts]
        count = sum(size // max(np.asarray(total).size, 1) for size, total in zip(sizes, sums, strict=True))
    else:
        if len({np.shape(part) for part in parts}) > 1:
            raise CannotVerify("strategy.reduce was given values of different shapes")
        sums = counted if op is ReduceOp.MEAN else [np.nan_to_num(part, nan=0.0) for part in parts]
        sums, count = sums if idle else parts, len(counted)
    total = np.sum(np.stack(sums), axis=0)
    return total if op is ReduceOp.SUM else total / count


def snapshot(variable: Variable) -> Any:
    """Copies a variable in float64: its value, or the replicas' rows."""
    if variable.policy.form == "rows":
        return as_wide(np.asarray(variable.stored))
    value = as_wide(np.asarray(variable.read_value()))
    return value[None] if variable.synchronization is VariableSynchronization.ON_READ else value


def is_rows(variable: Variable) -> bool:
    """True if each replica has a value of its own."""
    return variable.policy.form == "rows" or variable.synchronization is VariableSynchronization.ON_READ


def combined(variable: Variable, rows: Any) -> Any:
    """The one value of the replicas' rows; None if they have none."""
    how = variable.aggregation.name
    if how == "NONE":
        return None
    return {"SUM": lambda: rows.sum(0), "MEAN": lambda: rows.mean(0)}.get(how, lambda: rows[0])()


def _rows_for(variable: Variable, value: Any, replicas: int) -> Any:
    """The snapshot of a variable, for so many replicas."""
    if not is_rows(variable):
        return value
    if variable.aggregation.name == "SUM":
        rows = np.zeros((replicas, *value.shape[1:]), value.dtype)
        rows[0] = value.sum(0)
        return rows
    one = value.mean(0) if variable.aggregation.name == "MEAN" else value[0]
    return np.broadcast_to(one, (replicas, *np.shape(one))).astype(value.dtype)


@contextmanager
def standing_in(strategy: Any, variables: Iterable[Variable], stage: Stage) -> Generator[None]:
    """Gives a strategy and its variables the virtual replicas of `stage`, until the block ends."""
    extended = strategy.extended
    mesh = extended.mesh
    before = dict(vars(mesh))
    count, device = stage.found.arrangement.replicas, mesh.devices[0]
    policies = {variable: variable._policy for variable in variables if _is_on(variable, mesh)}  # pyright: ignore[reportPrivateUsage]
    hashed = hash(mesh)
    where = SingleDeviceSharding(device)
    try:
        with ExitStack() as stack:
            rows = {variable: is_rows(variable) for variable in policies}
            vars(mesh).update(
                devices=(device,) * count,
                size=count,
                group={},
                group_size=1,
                _hash=hashed,
                _bounded=False,
                local_ids=tuple(range(count)),
                local_devices=(device,) * count,
                local_places=(device,) * count,
                mesh=Mesh(np.array([device], dtype=object), (AXIS,)),
                replicated=where,
                split=where,
            )
            for variable in policies:
                variable._policy = OnReadPolicy(mesh) if rows[variable] else MirroredPolicy(mesh)  # pyright: ignore[reportPrivateUsage]
            stack.enter_context(mock.patch.object(extended, "call_for_each_replica", stage.run))
            # Slices of slots are a way to store them: every virtual replica updates whole ones.
            stack.enter_context(mock.patch.object(Optimizer, "_in_slices", return_value=False))
            # One device reduces as several do, so that their operations pair up.
            stack.enter_context(
                mock.patch.object(InReplica, "reducible", lambda _self, _strategy, grads, op: (grads, op))
            )
            yield
    finally:
        vars(mesh).clear()
        vars(mesh).update(before)
        for variable, policy in policies.items():
            variable._policy = policy  # pyright: ignore[reportPrivateUsage]


def _is_on(variable: Variable, mesh: Any) -> bool:
    return variable.policy.mesh is mesh or variable.policy.mesh == mesh
