"""One call of `strategy.run` on virtual replicas: traced once for each shape of their rows, evaluated for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Mirrored, PerReplica, ReduceOp, ReplicaContext, Variable
from jaxtribute._src.addons.verify.holding import means_by_rows
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.sources import Place, calling_place
from jaxtribute.extending import (
    Context,
    Gathers,
    Literal,
    Nests,
    Programs,
    TracedProgram,
    TracedReplica,
    Tracer,
    all_reduce,
    varying_outputs,
)
from jaxtribute.typing import Foreign, Leaf, Nest
from jaxtribute.typing import Function as Callee

if TYPE_CHECKING:
    from jaxtribute._src.addons.verify.stage import Stage

_OWN = f"{__name__.rsplit('.', 2)[0]}."
"""The library's own add-ons, whose replica functions, such as Keras's steps, are told the rows of all replicas."""


class _Replica(TracedReplica):
    """A replica whose reductions stay as they are written: one operation for each value, none packed or put off.

    Args:
      lines: where it notes the lines that write variables.
      losses: where it notes the lines that differentiate by variables.
      share: its weight in a mean; None if all count alike.
      args: those of a `TracedReplica`.
      options: likewise.
    """

    def __init__(
        self, lines: dict[Variable, Place], losses: list[Place], share: float | None, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._lines, self._losses, self._share = lines, losses, share

    def all_reduce(self, values: list[Any], op: ReduceOp, summation: Foreign = None) -> list[Any]:
        """Returns each array reduced over the replicas."""
        del summation
        if op is ReduceOp.MEAN and self._share is not None:
            # What comes of no rows may be NaN.
            own = map(jnp.asarray if self._share else jnp.zeros_like, values)
            values, op = [value * self._share for value in own], ReduceOp.SUM
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
        """Notes the line: losses travel alone."""
        del loss
        self._losses.append(calling_place())

    def constrain(self, value: Leaf, layout: Foreign, mesh: Foreign) -> Any:
        """Returns the value: a virtual replica has one device."""
        del layout, mesh
        return value


class Run:
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
                raise CannotVerify(
                    "a value of the replicas comes from around the step. HINT: give it to the step as an argument"
                )
            if all(map(Nests.is_number, parts)) and len(set(parts)) > 1:
                parts = list(map(jnp.asarray, parts))
            return parts
        if isinstance(leaf, Mirrored):
            return [leaf.data] * self._count
        return [leaf] * self._count

    def results(self) -> Any:
        """Traces, evaluates and hands back."""
        traces = self._traces()
        inputs = [
            [self._stage.input_of(self._columns[place][number]) for place in self._arrays]
            + [self._part(variable, number) for variable in traces[number].inputs]
            for number in range(self._count)
        ]
        outputs = self._stage.evaluated([trace.closed for trace in traces], inputs)
        self._keep(traces, outputs)
        return self._wrapped(traces, outputs)

    def _traces(self) -> list[_Traced]:
        """The program of each replica; one that was traced for such arguments before is the same."""
        known = self._stage.traces
        try:
            sizes = self._stage.found.arrangement.sizes
            key = self._fn, sizes, self._tree, tuple(map(_kind, zip(*self._columns, strict=True)))
            if key not in known:
                # Functions are kept, so that no other gets the identity of one.
                known[key] = self._traced()
            traces, lines, losses = known[key]
        except TypeError:  # something that cannot be looked up
            traces, lines, losses = self._traced()
        self._stage.found.lines.update(lines)
        self._stage.found.losses += losses
        return traces

    def _traced(self) -> tuple[list[_Traced], dict[Variable, Place], list[Place]]:
        idle = self._stage.found.arrangement.idle
        lines: dict[Variable, Place] = {}
        losses: list[Place] = []
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
                    lines,
                    losses,
                    self._share(replica),
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
        return traces, lines, losses

    def _share(self, replica: int) -> float | None:
        """A replica's weight in means, where a strategy weighs them by rows."""
        sizes, shared = self._stage.found.arrangement.sizes, self._stage.found.shared or self._count == 1
        return sizes[replica] / sum(sizes) if shared and means_by_rows(self._strategy) else None

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
        executor, leaves = seen["executor"], seen["leaves"]
        plain = [None if place in seen["places"] else leaf for place, leaf in enumerate(leaves)]
        return _Traced(closed, list(executor.inputs), list(executor.written), seen["tree"], seen["places"], plain)

    def _keep(self, traces: Sequence[Any], outputs: list[list[Any]]) -> None:
        count = len(traces[0].places)
        for offset, variable in enumerate(traces[0].written):
            values = [column[count + offset] for column in outputs]
            if variable.policy.split:
                whole = values[0] if len(values) == 1 else np.concatenate(values)
            else:
                whole = values[0]
            for tape, value in zip(self._stage.found.tapes, values, strict=True):
                tape.same(whole, value) if variable.policy.split else None
            self._stage.found.written[variable] = self._stage.found.inner[variable] = whole

    def _wrapped(self, traces: Sequence[Any], outputs: list[list[Any]]) -> Any:
        first = traces[0]
        leaves = list(first.leaves)
        jaxpr = Programs.opened(first.closed)
        split = [self._is_split(place) for place in self._arrays]
        varying = varying_outputs(jaxpr, [*split, *(one.policy.split for one in first.inputs)])
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


def _kind(column: Sequence[Any]) -> Any:
    """Tells apart what programs are traced for: arrays by their types, all else by itself."""
    return tuple(jax.typeof(jnp.asarray(leaf)) if Nests.is_array(leaf) else (type(leaf), leaf) for leaf in column)


def _equal(parts: list[Any]) -> bool:
    """True for arrays of one shape and of the same numbers; for keys too."""
    return is_key(parts[0]) or all(np.array_equal(part, parts[0], equal_nan=part.dtype.kind == "f") for part in parts)


@dataclass(slots=True)
class _Traced:
    closed: Any
    inputs: list[Variable]
    written: list[Variable]
    tree: Any
    places: list[int]
    leaves: list[Any]
