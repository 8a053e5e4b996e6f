"""Updates of variables whose gradients are rows: of them and of their slots only those rows are read and written.

The transformation is handed the touched rows of such a variable in place of the whole array, and of its slots the rows
beside them. That is its update of these rows if no row's result depends on another row; `row_proof` proves it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxtribute import IndexedSlices, PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.tables.exact import CatchUp
from jaxtribute._src.addons.tables.pages import in_large_pages
from jaxtribute._src.addons.tables.proof import check_row_wise
from jaxtribute._src.addons.tables.rows import wide
from jaxtribute._src.addons.tables.stacking import grouped
from jaxtribute._src.addons.tables.stacking import touched as stacked
from jaxtribute.errors import ArgumentError, ContextError
from jaxtribute.extending import Context, Cut, Function, Parameters, Slicing, Slots, optax_rules
from jaxtribute.typing import Nest, Numeric, ReduceOpLike

if TYPE_CHECKING:
    from jaxtribute import Optimizer, ReplicaContext

Update = Callable[..., list[Any]]


@dataclass(frozen=True)
class Reduction:
    """The way in which the replicas' rows of a gradient come together.

    Attributes:
      local: True if each replica has rows of its own, which are exchanged.
      finish: makes the result of the sum.
      idle: the replicas that got no data, whose rows do not count.
    """

    local: bool
    finish: Callable[[Any], Any]
    idle: tuple[int, ...] = ()


class RowUpdates:
    """The updates of an optimizer some of whose variables are tables.

    Args:
      optimizer: the optimizer.
      update: its update, as a function of flat lists.
      parameters: the nest of its variables.
      slots: its state.
      options: what the optimizer was asked for besides, by name; None for what it was not.

    Raises:
      ArgumentError: the transformation makes a row's update of other rows, or an option that is not for tables.
    """

    def __init__(
        self, optimizer: Optimizer, update: Update, parameters: Parameters, slots: Slots, options: Mapping[str, Any]
    ) -> None:
        self._optimizer, self._slots, self._parameters = optimizer, slots.variables, parameters
        self._variables = optimizer.trainable_variables
        tables = [place for place, variable in enumerate(self._variables) if variable.policy.by_rows]
        _check_options([self._variables[place] for place in tables], options)
        self._tables: dict[int, list[int]] = {place: [] for place in tables}
        """For each table, by its place among the variables, the places of its slots behind the variables."""
        for place, owner in enumerate(slots.owners):
            if owner in self._tables:
                self._tables[owner].append(len(self._variables) + place)
        check_row_wise(optimizer.transform, update, parameters, slots, self._variables, tables)
        self._exact: dict[int, CatchUp] = {}
        """The steps that rows have missed, of tables that are updated exactly."""
        for place in tables:
            self._policy(place).updates[self] = None
            if self._policy(place).exact:
                self._begin_exact(place, update, slots)
        self._compiled: Function[..., None] = Function(self._run)

    def _policy(self, place: int) -> Any:
        return self._variables[place].policy

    def _begin_exact(self, place: int, update: Update, slots: Slots) -> None:
        table: Any = self._variables[place]
        policy = self._policy(place)
        if policy.updater() is not None:
            gc.collect()  # an optimizer that nobody has any more
        if policy.updater() is not None:
            raise ArgumentError(
                f"{table.name} is updated exactly by another optimizer, which would miss this one's steps. HINT: "
                "delete it and the functions that use it, or make the table with updates='lazy'."
            )
        catch_up = CatchUp(update, self._variables, slots, place)
        table.follow(catch_up if catch_up.pending else None)
        policy.updater = weakref.ref(self)
        if catch_up.pending:
            self._exact[place] = catch_up

    def first_slots(self, table: Variable, rows: Any, executor: Any) -> list[tuple[Variable, Any]]:
        """The slots beside a table's rows, with their values where these rows begin."""
        place = next(place for place in self._tables if self._variables[place] is table)
        # Of other tables one row is as good as all.
        shapes = [(1, *one.shape[1:]) if one.policy.by_rows else one.shape for one in self._variables]
        params = [jnp.zeros(shape, one.dtype) for shape, one in zip(shapes, self._variables, strict=True)]
        params[place] = rows
        with optax_rules():
            state = Slots.arrays_of(self._optimizer.transform.init(self._parameters.nest(params)))
        own = [one - len(self._variables) for one in self._tables[place]]
        found = [(self._slots[one], jnp.asarray(state[one], self._slots[one].dtype)) for one in own]
        if place in self._exact:
            catch_up = self._exact[place]
            found.append((catch_up.last, jnp.broadcast_to(executor.get(catch_up.count), rows.shape[:1])))
        return found

    @property
    def variables(self) -> tuple[Variable, ...]:
        """None besides the optimizer's own, whose rows are brought up to the present step: they are to be looked at."""
        for place in self._exact:
            table: Any = self._variables[place]
            table.settle()
        return ()

    def updated(
        self,
        update: Callable[..., list[Any]],
        grads: Sequence[Any],
        op: ReduceOp | None,
        held: Sequence[Any],
        sliced: Mapping[int, Cut],
        context: Context,
    ) -> list[Any]:
        """The new arrays of the variables and their slots, in a program.

        Args:
          update: the update of gradients, slots and parameters.
          grads: the gradients, `IndexedSlices` for tables.
          op: how they are reduced; None for one replica.
          held: the arrays of the variables and their slots as they are stored.
          sliced: the variables that are updated in slices.
          context: the context of the code.

        Raises:
          ContextError: the code is of several replicas, and has no replica's rows.
        """
        mesh, executor = self._optimizer.trainable_variables[0].policy.mesh, context.executor
        replicas = 1 if mesh is None else mesh.size
        local = replicas > 1
        if local and (not executor.local or context.replica is None):
            raise ContextError(
                f"{self._optimizer!r} has tables, whose gradients are each replica's rows. HINT: call apply_gradients "
                "in the function passed to strategy.run."
            )
        if self._exact and len(held) > len(self._variables) + len(self._slots):
            raise ArgumentError(
                f"{self._optimizer!r} has a loss scale, which leaves updates out that exact tables would count. HINT: "
                "make the tables with updates='lazy', or leave loss_scale out."
            )
        # Counted once: what is reduced already would be exchanged as rows all the same.
        # What is reduced already is the same on all replicas: the first one hands it over.
        idle = executor.idle if op is not None or not local else tuple(range(1, replicas))
        finish = _finish(op, replicas - len(idle))
        rows = Reduction(local, finish, idle)
        grads, arrays = list(grads), list(held)
        touched: dict[int, Any] = {}
        for place, where, values in self._touched(grads, rows, executor):
            slots, touched[place] = self._tables[place], where
            for one in (place, *slots):
                in_large_pages((*self._variables, *self._slots)[one].stored)
            grads[place] = _piece(values, replicas)
            for one, array in zip((place, *slots), self._present(place, slots, held, where, executor), strict=True):
                arrays[one] = _piece(array, replicas)
        results = (
            self._results(update, grads, op, arrays, sliced, context)
            if local
            else update(grads, arrays[len(self._variables) :], arrays[: len(self._variables)])
        )
        for place, slots in self._tables.items():
            for one in (place, *slots):
                new = jnp.asarray(results[one], held[one].dtype)
                # Sorted, and each once but for those behind the end, which are dropped.
                results[one] = held[one].at[touched[place]].set(new, mode="drop", indices_are_sorted=True)
        for place, catch_up in self._exact.items():
            catch_up.counted(touched[place], executor)
        return results

    def _touched(self, grads: Sequence[Any], reduction: Reduction, executor: Any) -> Iterator[tuple[int, Any, Any]]:
        """The places of the tables among the variables, with the rows that a step changes, and their gradients."""
        places = list(self._tables)
        tables = [self._variables[place] for place in places]
        slices = [_as_slices(grads[place], table) for place, table in zip(places, tables, strict=True)]
        for group in grouped(tables):
            found = stacked(
                [tables[number] for number in group], [slices[number] for number in group], reduction, executor
            )
            for number, (where, values) in zip(group, found, strict=True):
                yield places[number], where, values

    def _present(self, place: int, slots: Sequence[int], held: Sequence[Any], where: Any, executor: Any) -> list[Any]:
        """The rows of a table and of its slots that a step changes, as they are before it."""
        if place in self._exact:
            catch_up = self._exact[place]
            return catch_up.rows(catch_up.arrays(executor), where)
        return [held[one].at[where].get(mode="fill", fill_value=0) for one in (place, *slots)]

    def _results(
        self,
        update: Callable[..., list[Any]],
        grads: list[Any],
        op: ReduceOp | None,
        arrays: Sequence[Any],
        sliced: Mapping[int, Cut],
        context: Context,
    ) -> list[Any]:
        """The results of `update` for one replica's rows and all other variables."""
        count, executor = len(self._variables), context.executor
        replicas = context.strategy.extended.mesh.size
        pieces: list[Any] = []
        cuts_of = [one.policy.cut for one in (*self._variables, *self._slots)]
        # A loss scale, which comes last, is whole.
        for one, cut in zip_longest(arrays, cuts_of):
            pieces.append(one if isinstance(one, Slicing.Piece) else Slicing.as_cut(one, cut))
        cuts = {place: cut for place, cut in sliced.items() if place not in self._tables}
        if op is not None:
            whole = [k for k, grad in enumerate(grads) if k not in cuts and not isinstance(grad, Slicing.Piece)]
            summation = context.strategy.extended.summation(None)
            reduce = partial(executor.reduce_gradients, op=op, replicas=replicas, summation=summation)
            totals = Slicing.replaced_at(whole, grads, reduce)
            cut = Slicing.reduced(grads, cuts, replicas, op, executor.idle) if cuts else grads
            grads = [totals[k] if k in whole else one for k, one in enumerate(cut)]
        all_cuts = {**cuts, **{place: pieces[place].cut for place in self._tables}}
        return Slicing.update(update, all_cuts, grads, pieces[count:], pieces[:count])

    def apply_eagerly(
        self, grads: Sequence[Any], op: ReduceOpLike | None, extra: Mapping[str, Any], context: Context
    ) -> None:
        """Applies gradients in code that runs as Python, by a compiled program of all replicas.

        Raises:
          ContextError: gradients of several replicas outside a replica function.
          ArgumentError: more arguments than gradients.
        """
        if extra:
            raise ArgumentError(
                f"apply_gradients of tables was given {', '.join(extra)} outside of a jd.function. HINT: compile the "
                "step, @jd.function."
            )
        slices = [_as_slices(grads[place], self._variables[place]) for place in self._tables]
        dense = [grad for place, grad in enumerate(grads) if place not in self._tables]
        replica, several = context.replica, context.strategy.num_replicas_in_sync > 1
        padded = [(one.values, one.indices) for one in slices]
        if replica is None and not several:
            with context.executor.compiling():
                self._compiled(padded, dense, op)
            return
        if replica is None or (several and not context.executor.local):
            raise ContextError(
                f"{self._optimizer!r} has tables, whose gradients are each replica's rows. HINT: call apply_gradients "
                "in the function passed to strategy.run."
            )
        if several:
            padded = self._padded(slices, replica)

        def merged(strategy: Any, *args: Nest) -> None:
            del strategy
            with Context.current().executor.compiling():
                self._compiled(*args, op)

        context.executor.merge(merged, (padded, dense), {})

    def _padded(self, slices: Sequence[IndexedSlices], replica: ReplicaContext) -> list[tuple[Any, Any]]:
        """Values and indices of rows, as many on each replica: they may have looked up different numbers of rows."""
        counts = jnp.asarray([[len(one.indices) for one in slices]])
        sizes = np.asarray(replica.all_gather(counts, axis=0)).max(axis=0)
        padded: list[tuple[Any, Any]] = []
        for one, place, size in zip(slices, self._tables, sizes, strict=True):
            more = int(size) - len(one.indices)
            indices = jnp.pad(wide(one.indices), (0, more), constant_values=self._variables[place].shape[0])
            padded.append((jnp.pad(one.values, [(0, more), *[(0, 0)] * (one.values.ndim - 1)]), indices))
        return padded

    def _run(self, slices: Any, dense: Any, op: ReduceOpLike | None) -> None:
        """Applies gradients of all replicas, in a program.

        Raises:
          ContextError: the function runs as Python, where this would be called again, and again.
        """
        if not Context.current().executor.traced:
            raise ContextError(
                f"{self._optimizer!r} has tables, and its update could not be compiled. HINT: compile the step, "
                "@jd.function."
            )
        strategy = self._variables[0].distribute_strategy

        def apply(slices: Any, dense: Any) -> None:
            rest, rows = iter(dense), iter(slices)
            pairs: list[Any] = []
            for place, variable in enumerate(self._variables):
                pairs.append((IndexedSlices(*next(rows)) if place in self._tables else next(rest), variable))
            self._optimizer.apply_gradients(pairs, op)

        strategy.run(apply, (slices, dense))


def _check_options(tables: Sequence[Variable], options: Mapping[str, Any]) -> None:
    present = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    if present:
        names = ", ".join(table.name for table in tables)
        raise ArgumentError(
            f"an optimizer of tables, {names}, updates the rows of each call: {present} is not for it. HINT: leave it "
            "out, or make an optimizer of its own for the other variables."
        )


def _as_slices(grad: Any, variable: Any) -> IndexedSlices:
    """A table's gradient, which must be of rows."""
    if isinstance(grad, IndexedSlices):
        return grad
    kind = "a PerReplica" if isinstance(grad, PerReplica) else f"an array of shape {jnp.shape(grad)}"
    raise ArgumentError(
        f"the gradient of the table {variable.name} is {kind}, and not jd.IndexedSlices of its rows. HINT: take it by "
        "jd.value_and_grad or jd.grad, of a function that looks rows up."
    )


def _finish(op: ReduceOp | None, count: int) -> Callable[[Any], Any]:
    """The function that makes the reduced rows of their sum over the replicas."""
    if op is None:
        return lambda rows: rows
    return lambda rows: Slicing.reduction_of(op).finish(rows, count, rows.dtype)


def _piece(rows: Numeric, replicas: int) -> Any:
    """Rows of one replica of several, as a piece of the rows of all."""
    if replicas == 1:
        return rows
    return Slicing.Piece(rows, Cut((replicas * rows.shape[0], *rows.shape[1:]), replicas, axis=0))
