"""`strategy.run` inside a traced program: one `shard_map` over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core.collectives import products
from jaxtribute._src.core.context import Context, entered
from jaxtribute._src.core.execution.capture import varying_outputs
from jaxtribute._src.core.execution.containers import refuse_traced
from jaxtribute._src.core.execution.eager import NotSplittable
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.hints import add_hint
from jaxtribute._src.core.execution.nests import at, flatten, is_array, is_number, lengths, reveal
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.execution.traced import TracedReplica, lift
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, Tracer, as_function, aval, closed, constants, opened
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.jaxprs.placements import Known, unplaced
from jaxtribute._src.core.points import UNEVEN
from jaxtribute._src.core.types import Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.agreement import all_parts
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, idle_replicas
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.placing import put, put_differentiated
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ShapeError, TraceError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy

_SPLIT, _WHOLE = PartitionSpec(AXIS), PartitionSpec()
_spec_of = attrgetter("policy.spec")
"""The axis of a variable's array that lies over the replicas."""
_is_split = attrgetter("policy.split")
"""True if each replica has a part of a variable's array."""


@dataclass(frozen=True)
class _Input:
    """One array of the arguments, as an input of the replicas' program."""

    value: Any
    place: int
    """Place of the array among the leaves of the arguments."""
    split: bool = False
    scalar: bool = False
    shapes: tuple[tuple[int, ...], ...] | None = None
    """Every replica's true shape, if they differ."""

    def local_shape(self, mesh: ReplicaMesh, replica: int) -> tuple[int, ...]:
        """Shape of the array in one replica."""
        if self.shapes is not None:
            return self.shapes[replica]
        shape = tuple(self.value.shape)
        if not self.split:
            return shape
        return () if self.scalar else (shape[0] // mesh.size, *shape[1:])

    def local_aval(self, mesh: ReplicaMesh, replica: int) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the array in one replica."""
        weak = getattr(self.value, "weak_type", False)
        return jax.ShapeDtypeStruct(self.local_shape(mesh, replica), self.value.dtype, weak_type=weak)


class _Arguments:
    """The flattened arguments of a replica function, split into inputs of the program and all else."""

    def __init__(self, nest: Nest, mesh: ReplicaMesh) -> None:
        self._mesh = mesh
        self._leaves, self._tree = flatten(nest)
        self.whole = lengths(nest)
        self.idle = idle_replicas(self._leaves)
        self.inputs: list[_Input] = []
        for place, leaf in enumerate(self._leaves):
            self._add(place, leaf)
        self.values = list(map(attrgetter("value"), self.inputs))
        self.splits = list(map(attrgetter("split"), self.inputs))
        """For each input whether it is split over the replicas."""
        self._ragged = {number: one.shapes for number, one in enumerate(self.inputs) if one.shapes is not None}
        signatures = list(zip(*self._ragged.values(), strict=True)) if self._ragged else [()] * mesh.size
        distinct = list(dict.fromkeys(signatures))
        # Replicas that see the same shapes run the same program. A program is traced for each distinct set of shapes,
        # not for each replica: mostly there is one, and two in an epoch's last step.
        self.table = list(map(distinct.index, signatures))
        """The class of each replica: those of one class see the same shapes."""
        self.samples = list(map(signatures.index, distinct))
        """One replica of each class."""
        first: Sequence[tuple[int, ...]] = next(iter(self._ragged.values()), [()] * mesh.size)
        self.rows = [shape[0] if shape else 0 for shape in first]
        """Every replica's number of rows, where they differ."""

    def _add(self, place: int, leaf: Leaf) -> None:
        if isinstance(leaf, PerReplica) and leaf.is_tuple:
            leaf = self._leaves[place] = stacked(leaf, self._mesh)
        if isinstance(leaf, PerReplica):
            self.inputs.append(_Input(leaf.data, place, True, leaf.scalar, leaf.shapes))
        elif isinstance(leaf, Mirrored):
            self.inputs.append(_Input(leaf.data, place))
        elif is_array(leaf):
            self.inputs.append(_Input(leaf, place))

    def local_avals(self, replica: int) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the inputs in one replica."""
        return [one.local_aval(self._mesh, replica) for one in self.inputs]

    def true_shapes(self, replica: int) -> dict[Any, tuple[int, ...]]:
        """By their numbers among the inputs, the shapes in one replica of those whose shapes differ."""
        return {number: shapes[replica] for number, shapes in self._ragged.items()}

    def fill(self, local: tuple[Any, ...]) -> Any:
        """The arguments with one replica's values in place of the inputs."""
        leaves = list(self._leaves)
        for one, value in zip(self.inputs, local, strict=True):
            leaves[one.place] = value
        return self._tree.unflatten(leaves)


def stacked(value: PerReplica, mesh: ReplicaMesh) -> Any:
    """Python numbers, one a replica, as one per-replica array, or as the number itself if all are the same."""
    values = value.data
    if all(map(is_number, values)):
        values = [part.item() for part in all_parts(values, mesh)]  # other workers' too
        if len(set(map(repr, values))) == 1:  # tells 0.0 from -0.0, and 1 from True
            return values[0]
    elif all(type(x) is type(values[0]) and not is_array(x) and x == values[0] for x in values):
        return values[0]
    if any(map(is_array, values)):
        whole = PerReplica.from_parts(values, mesh)
        if not whole.is_tuple:
            return whole
    if not all(map(is_number, values)):
        kind = ShapeError if all(map(is_array, values)) else TraceError
        raise kind(
            f"the replicas' values {values!r} cannot be one array of a compiled program. "
            "HINT: pass numbers or arrays of one shape and dtype, or call strategy.run outside jd.function."
        )
    return PerReplica(jnp.asarray(np.asarray(values)), mesh, scalar=True)


@dataclass(slots=True)
class _Traced:
    """One replica's program: its jaxpr, what it returns besides arrays, and the variables that it touches."""

    closed: ClosedJaxpr
    executor: TracedReplica
    results: list[Any]
    tree: Any
    places: list[int]
    summed: list[int]
    """Indices of the arrays whose sums over the replicas the program returns too, behind everything else."""


def run(strategy: Strategy, mesh: ReplicaMesh, fn: Function, args: Nest, kwargs: Nest, outer: Executor) -> Any:
    """Runs `fn` on every replica as part of the program that `outer` traces.

    Args:
      strategy: the strategy whose replicas run.
      mesh: the replicas' devices, more than one.
      fn: the replica function.
      args: positional arguments; per-replica values anywhere in them are split, all else is shared.
      kwargs: keyword arguments, likewise.
      outer: the executor of the surrounding program.

    Returns:
      `fn`'s result, its arrays wrapped as `PerReplica` or, where they are the same on all replicas, `Mirrored`.
    """
    arguments = _Arguments((args, kwargs), mesh)
    captured: Known = {}
    # An array that the function closes over stays one object in all traces: classes are compared by identity there.
    made: list[Any] = []

    def trace(replica: int, gathers: Any = None) -> _Traced:
        def make_executor() -> TracedReplica:
            return TracedReplica(mesh, arguments.idle, outer, made, gathers, uneven=len(arguments.samples) > 1)

        return _trace(strategy, fn, arguments, replica, captured, make_executor)

    if len(arguments.samples) == 1:
        traces = [trace(0)]
    else:
        from jaxtribute._src.core.execution.gathers import Gathers  # many programs never need it

        traces = Gathers.settled(trace, arguments.samples, arguments.table, arguments.rows)
    plan = _plan_classes(arguments, traces, mesh) if len(traces) > 1 else _plan_one(arguments, traces[0], mesh)
    # A plan's outputs: the results that are arrays, the written variables' values, the totals of travelling losses.
    results, written = len(traces[0].places), len(plan.written)
    # A mirrored variable keeps one array for all replicas: values that may differ would silently become replica 0's.
    for variable, varies in zip(plan.written, plan.varying[results : results + written], strict=True):
        if varies and not variable.policy.split:
            hint = "reduce the value before it is assigned, or create the variable with an aggregation. Of "
            hint += "apply_gradients leave reduce_op=None out, which is for gradients that are reduced already."
            if variable.distribute_strategy.is_default:
                hint = "make it in `with strategy.scope():`, and with it its jd.Model or jd.Optimizer."
            raise VariableError(
                f"{variable.name} would get a different value on each of {mesh.size} replicas, at "
                f"{traces[0].executor.written.get(variable) or 'an unknown line'}. HINT: {hint}"
            )
    taken = [*[False] * len(plan.consts), *arguments.splits]
    totals = len(traces[0].summed)
    given = [*plan.varying[:results], *map(_is_split, plan.written), *[False] * totals]
    # A result that does not vary is any replica's copy. `shard_map` does not check that: the inference has.
    mapped = mesh.map_replicas(
        _with_vectors(plan, arguments, given),
        in_specs=(*_specs(taken), *map(_spec_of, plan.variables)),
        out_specs=(*_specs(plan.varying[:results]), *map(_spec_of, plan.written), *[_WHOLE] * totals),
    )
    inputs = [*plan.consts, *arguments.values]
    if outer.traced:
        outputs = mapped(*inputs, *map(outer.get, plan.variables))
    else:
        # `jax.jit` refuses arrays of different devices, and what eager code gives may lie anywhere.
        wheres = [mesh.split if split else mesh.replicated for split in taken]
        inputs = list(map(_put, inputs, wheres))
        # Not traced, but differentiated or transformed around: the program is called at once, on the variables' values.
        held = [_put(outer.get(variable), variable.policy.where or mesh.replicated) for variable in plan.variables]
        outputs = jax.jit(mapped)(*inputs, *held)
    for variable, value in zip(plan.written, outputs[results : results + written], strict=True):
        outer.set(variable, value)
    summed = dict(zip(traces[0].summed, outputs[results + written :], strict=True))
    return _wrap(traces, plan, outputs, summed, arguments, mesh)


def _specs(splits: Sequence[bool]) -> list[PartitionSpec]:
    """The placements of arrays over the replicas, in order: those that are split, and those that are whole."""
    return [_SPLIT if split else _WHOLE for split in splits]


def run_transformed(
    strategy: Strategy, mesh: ReplicaMesh, fn: Function, args: Nest, kwargs: Nest, outer: Executor
) -> Any:
    """Runs `fn` where JAX differentiates or transforms the eager code around it: lockstep would lose the gradients.

    Raises:
      TraceError: replicas that see different shapes cannot be one program.
    """
    try:
        return run(strategy, mesh, fn, args, kwargs, outer)
    except NotSplittable as reason:
        raise TraceError(
            f"strategy.run on {mesh.size} replicas inside a function that is differentiated or transformed is one "
            f"program, which is not possible here: {reason}. HINT: differentiate in the replica function, with "
            "jd.value_and_grad, and reduce the gradients, or call it all within a jd.function."
        ) from reason


def _put(value: Numeric, where: Sharding) -> Any:
    """An input of the replicas' program on their devices; what it is computed from may be differentiated."""
    return put_differentiated(value, where) if isinstance(value, Tracer) else put(value, where)


def _trace(
    strategy: Strategy,
    fn: Function,
    arguments: _Arguments,
    replica: int,
    captured: Known,
    make_executor: Callable[[], TracedReplica],
) -> _Traced:
    """Traces `fn` with the shapes that `replica` sees; `captured` holds what the traces of others have captured."""
    seen: list[Any] = []
    mesh = strategy.extended.mesh

    def program(*local: Nest) -> list[Any]:
        executor = make_executor()
        context = ReplicaContext(strategy, lax.axis_index(AXIS))
        context.whole = arguments.whole
        context.without_rows = replica in arguments.idle
        args, kwargs = arguments.fill(local)
        try:
            with entered(Context(strategy, context, executor)):
                result = fn(*args, **kwargs)
        except Exception as error:
            if executor.guesses:
                raise NotSplittable("an array gathered from replicas of different shapes") from error
            add_hint(error, in_replica=True, empty=context.without_rows)
            raise
        reveal(result, (jax.Array,))
        leaves, tree = flatten(result)
        arrays: dict[int, Any] = {}
        for place, leaf in enumerate(leaves):
            # Inside the program a mirrored value is its array: what comes out is wrapped again, as the inference says.
            if isinstance(leaf, Mirrored):
                leaf = leaves[place] = leaf.data
            if is_array(leaf):
                arrays[place] = leaf
            else:
                refuse_traced(leaf)
        # Replicas of several shapes are several programs, whose totals would be outputs of one of them alone.
        alike = len(arguments.samples) == 1
        totals = executor.losses.totals_of(arrays.values()) if alike else {}
        # `make_jaxpr` gives the arrays alone; the rest gets out beside it.
        seen.extend((executor, leaves, tree, list(arrays), list(totals)))
        return [*arrays.values(), *executor.new_values(), *totals.values()]

    with mesh.within():
        # The axis is named without `shard_map`, whose specs would list variables and results, not known yet.
        closed = jax.make_jaxpr(program, axis_env=[(AXIS, mesh.size)])(*arguments.local_avals(replica))
    if mesh.group and mesh.devices[0].platform == "cpu":
        _refuse_bfloat16(list_collectives(opened(closed), AXIS))
    return _Traced(unplaced(lift(closed), captured), *seen)


def _refuse_bfloat16(collectives: Sequence[str]) -> None:
    """Refuses what XLA ends the process for, if replicas of several devices do it on CPUs; see `mesh.reduced`."""
    for line in collectives:
        if "bfloat16" in line.partition(" at ")[0] and line.startswith(("psum", "pmax", "pmin", "reduce_scatter")):
            raise TraceError(
                f"{line}: XLA's compiler for CPUs ends the process at sums, maxima and minima of bfloat16 between "
                "replicas of several devices. HINT: make it float32 before the collective; ctx.all_reduce does."
            )


@dataclass
class _Plan:
    """The one program that all replicas run.

    Attributes:
      program: the program over constants, inputs (as each replica sees them, ragged ones padded) and variables.
      consts: its constants.
      variables: the variables that it takes.
      written: the variables whose new values it returns behind the results.
      varying: for each result, new value and total whether it may differ between replicas.
      shapes: for each result every replica's shape, where they differ.
      wrong_means: for each result what `PerReplica.wrong_mean` says.
    """

    program: Callable[..., Sequence[Any]]
    consts: list[Any]
    variables: list[Variable]
    written: list[Variable]
    varying: list[bool]
    shapes: list[tuple[tuple[int, ...], ...] | None]
    wrong_means: Sequence[str]


def _plan_one(arguments: _Arguments, traced: _Traced, mesh: ReplicaMesh) -> _Plan:
    """All replicas see the same shapes: the traced program as it is."""
    variables = traced.executor.inputs
    flags = [*arguments.splits, *map(_is_split, variables)]
    consts = list(constants(traced.closed))

    def program(*inputs: Nest) -> Sequence[Any]:
        whole = closed(opened(traced.closed), inputs[: len(consts)])
        own = inputs[len(consts) :]
        return products.evaluated(whole, own) if traced.executor.puts_off else as_function(whole)(*own)

    varying = varying_outputs(opened(traced.closed), flags, grouped=bool(mesh.group))
    return _Plan(
        program, consts, variables, list(traced.executor.written), varying, [None] * len(varying), [""] * len(varying)
    )


def _plan_classes(arguments: _Arguments, traces: Sequence[_Traced], mesh: ReplicaMesh) -> _Plan:
    """Replicas see different shapes: one program of all classes' programs; see `ragged`."""
    from jaxtribute._src.core.execution import cutting, ragged  # many programs never need them, and start sooner

    first = traces[0]
    for other in traces[1:]:
        if other.tree != first.tree or other.places != first.places:
            raise NotSplittable("the results differ in structure")
        if list(map(id, other.executor.written)) != list(map(id, first.executor.written)):
            raise NotSplittable("the replicas write different variables")
        pairs = zip(other.results, first.results, strict=True)
        if any(one is not two for one, two in pairs if isinstance(one, Variable)):
            raise NotSplittable("the results are different variables")
    # A class may read variables that another does not: without rows to look up, a table is not read.
    variables: dict[Variable, None] = {}
    numbers = range(len(arguments.inputs))
    programs: list[cutting.Program] = []
    for traced in traces:
        read = traced.executor.inputs
        variables.update(dict.fromkeys(read))
        programs.append(cutting.Program(cutting.inlined(traced.closed, mesh), [*numbers, *read]))
    classes: list[ragged.ReplicaClass] = []
    for one, replica in zip(cutting.completed(programs, mesh), arguments.samples, strict=True):
        classes.append(ragged.ReplicaClass(*one, arguments.true_shapes(replica)))
    common = ragged.prepare(classes, everywhere=bool(mesh.group))
    wrong_means: Sequence[str] = [""] * len(classes[0].jaxpr.outvars)
    for look in UNEVEN.entries():
        wrong_means = look(classes, arguments.rows)
    largest: list[tuple[int, ...]] = []
    shapes: list[tuple[tuple[int, ...], ...] | None] = []
    for atoms in zip(*map(attrgetter("jaxpr.outvars"), classes), strict=True):
        column = [tuple(aval(atom).shape) for atom in atoms]
        if len({(len(aval(atom).shape), aval(atom).dtype) for atom in atoms}) > 1:
            raise NotSplittable("the results differ in rank or dtype")
        # One program has one shape for each result: the largest in every axis. `PerReplica` remembers the true ones.
        largest.append(tuple(map(max, zip(*column, strict=True))))
        every = tuple(at(column, arguments.table))
        shapes.append(None if len(set(every)) == 1 else every)
    flags = [*arguments.splits, *map(_is_split, classes[0].sources[len(numbers) :])]
    varying = varying_outputs(classes[0].jaxpr, flags, grouped=bool(mesh.group))
    for place, atoms in enumerate(zip(*map(attrgetter("jaxpr.outvars"), classes), strict=True)):
        # The inference has looked at the first class alone: a result is the same everywhere only if all classes compute
        # the same value of it.
        found = ragged.numbers_of(classes, atoms)
        varying[place] = varying[place] or len(found) > 1 or not found <= common

    def program(*inputs: Nest) -> Sequence[Any]:
        given = dict(zip([*numbers, *variables], inputs, strict=True))
        return ragged.Merged(classes, common, arguments.table, everywhere=bool(mesh.group))(given, largest)

    return _Plan(program, [], list(variables), list(first.executor.written), varying, shapes, wrong_means)


def _with_vectors(plan: _Plan, arguments: _Arguments, split: Sequence[bool]) -> Function:
    """The plan's program with scalars, which have no axis to split, carried in vectors."""
    start = len(plan.consts)

    def program(*inputs: Nest) -> tuple[Any, ...]:
        values = list(inputs)
        for place, one in enumerate(arguments.inputs):
            if one.scalar:
                values[start + place] = values[start + place].reshape(())
        outputs = plan.program(*values)
        return tuple(
            out.reshape(1) if is_split and jnp.ndim(out) == 0 else out
            for out, is_split in zip(outputs, split, strict=True)
        )

    return program


def _wrap(
    traces: Sequence[_Traced],
    plan: _Plan,
    outputs: Sequence[Any],
    totals: Mapping[int, Any],
    arguments: _Arguments,
    mesh: ReplicaMesh,
) -> Any:
    """The results as distributed values; of losses that have travelled with gradients the totals are known."""
    traced = traces[0]
    leaves = list(traced.results)
    for place, column in enumerate(zip(*map(attrgetter("results"), traces), strict=True)):
        if place not in traced.places and any(leaf is not column[0] and leaf != column[0] for leaf in column):
            # Not an array, and different in different classes: a Python value that depends on the shapes, such as a
            # length.
            kinds = at(arguments.table, mesh.local_ids)
            leaves[place] = PerReplica(tuple(at(column, kinds)), mesh)
    results = zip(traced.places, outputs, plan.varying, plan.shapes, strict=False)
    for result, (place, output, varies, shapes) in enumerate(results):
        if varies:
            scalar = np.ndim(leaves[place]) == 0
            leaves[place] = PerReplica(output, mesh, scalar, shapes, arguments.idle, plan.wrong_means[result])
            leaves[place].total = totals.get(result)
        else:
            leaves[place] = Mirrored(output, mesh)
    return traced.tree.unflatten(leaves)
