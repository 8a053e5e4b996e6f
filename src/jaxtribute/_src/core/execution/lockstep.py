"""Eager `strategy.run`: each replica runs the Python function on its own device, and all meet at collectives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.collectives.cross_replica import gather_value, pick_value, reduce_many
from jaxtribute._src.core.collectives.summation import Summation
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.eager import EagerStep, stepping
from jaxtribute._src.core.execution.executor import Executor
from jaxtribute._src.core.execution.hints import add_hint
from jaxtribute._src.core.execution.nests import at, flatten, lengths, map_leaves
from jaxtribute._src.core.execution.regrouping import components, join, movable, regroup
from jaxtribute._src.core.execution.rendezvous import Rendezvous
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.execution.traced import check_untraced
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Array, Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.agreement import all_parts
from jaxtribute._src.core.values.creating import Making, check_alike
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, idle_replicas
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
from jaxtribute._src.core.values.placing import put
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ContextError

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy

R = TypeVar("R")


class LockstepReplica(Executor):
    """One replica that runs as Python: it sees its own copies, on its own device, and waits for the others to meet."""

    local = True
    standpoint = standpoints.PYTHON_IN_REPLICA

    def __init__(self, run: LockstepRun, index: int) -> None:
        self._run = self.eager_run = run
        self._index = index

    @property
    def view(self) -> Hashable:
        """That of the step, as replicas see it; the replica's device is part of the key already."""
        return "replica", self._run.step.view

    def get(self, variable: Variable) -> Any:
        """This replica's copy."""
        if self._run.wrote(variable):
            self._run.step.noted(variable)
        else:
            self._run.step.noted_stored(variable)
        mesh = variable.policy.mesh
        if mesh is None:
            return self._run.near(self._run.step.get(variable), self._index)
        self._run.strategy.extended.check_variable(variable)
        return self._run.read(variable, self._index)

    def set(self, variable: Variable, value: Numeric) -> None:
        """Rebinds this replica's copy; equal copies of a mirrored variable come together as one array."""
        check_untraced(variable)
        if variable.policy.mesh is None:
            self._run.step.set(variable, jax.device_put(value, next(iter(variable.stored.devices()))))
        else:
            self._run.step.operate(lambda: self._run.write(variable, self._index, value))

    def together(self, operation: Callable[[Executor], R]) -> R:
        return self._run.step.operate(lambda: operation(self))

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """`make` of this replica's copy."""
        return make(self.get(variable))

    def create(self, make: Making) -> Variable:
        """Makes one variable for all replicas, with replica 0's initial value."""
        return self._run.meet(self._index, "jd.Variable", make, self._run.made)

    @property
    def idle(self) -> tuple[int, ...]:
        return self._run.idle

    def all_reduce(self, values: list[Any], op: ReduceOp, summation: Summation | None = None) -> list[Any]:
        whole = self._collective("all_reduce", lambda whole: list(reduce_many(whole, op, summation)))
        return _reduced(values, whole, op, self._run.mesh.local_ids[self._index] in self.idle)

    def all_gather(self, values: list[Any], axis: int) -> list[Any]:
        whole = lambda values: [Mirrored(gather_value(value, axis), value.mesh) for value in values]  # noqa: E731
        gather = self._collective("all_gather", whole)
        return _gathered(values, gather, partial(self._scatter, axis), axis)

    def constrain(self, value: Array, layout: Layout, mesh: ReplicaMesh) -> Array:
        return jax.device_put(value, mesh.local_layout(self._index, layout))

    def select(self, value: Numeric, replica: int) -> Any:
        run = self._run

        def merge(payloads: list[Any]) -> list[Any]:
            if run.mesh.peers is not None:
                return run.components(pick_value(join([tuple(payloads)], run.mesh, run.idle)[0], replica))
            return [run.near(payloads[replica], index) for index in range(len(payloads))]

        def call(value: Numeric) -> Any:
            _check_eager("a write of ONLY_FIRST_REPLICA", [value], run.step)
            return run.meet(self._index, f"a read of replica {replica}", value, merge)

        def backward(_: None, cotangent: Numeric) -> tuple[Any]:
            total = self.all_reduce([cotangent], ReduceOp.SUM)[0]
            return (total if run.mesh.local_ids[self._index] == replica else jnp.zeros_like(total),)

        if not (isinstance(value, Tracer) and _inexact([value])):
            return call(value)
        chosen = jax.custom_vjp(call)
        chosen.defvjp(lambda value: (call(value), None), backward)
        return chosen(value)

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Any:
        """Runs `fn` once, in cross-replica context, with what all replicas brought."""
        run = self._run
        _check_eager("merge_call", flatten((args, kwargs))[0], self._run.step)

        def merge(payloads: list[Any]) -> Sequence[Any]:
            args, kwargs = run.regroup(payloads, agreeing=True)
            with contexts.entered(Context(run.strategy, None, run.eager)):
                result = fn(run.strategy, *args, **kwargs)
            run.forget()
            return run.components(map_leaves(run.mirrored, result))

        return run.meet(self._index, f"merge_call of {getattr(fn, '__qualname__', fn)}", (args, kwargs), merge)

    def _scatter(self, axis: int, cotangents: list[Any], sizes: list[int]) -> list[Any]:
        """This replica's part of the sums of cotangents: for each `size` elements, after the other replicas'."""
        run = self._run
        _check_eager("all_gather's gradient", cotangents, run.step)
        place = run.mesh.local_places[self._index]
        payload = [jax.device_put(value, place) for value in cotangents], sizes

        def merge(payloads: list[tuple[list[Any], list[int]]]) -> Sequence[Any]:
            parts, wanted = zip(*payloads, strict=True)
            totals = reduce_many(run.joined(parts), ReduceOp.SUM)
            # For each array a column with what the replicas get of it; a replica takes its place in every column.
            lengths = zip(*map(np.ndarray.tolist, all_parts(wanted, run.mesh)), strict=True)
            columns = map(partial(_cut_out, axis=axis, mesh=run.mesh), totals, lengths)
            return list(map(list, zip(*columns, strict=True)))

        return run.meet(self._index, "all_gather's gradient", payload, merge)

    def _collective(self, name: str, whole: Callable[[list[PerReplica]], list[Any]]) -> Callable[..., list[Any]]:
        run, index = self._run, self._index

        def merge(payloads: list[list[Any]]) -> Sequence[Any]:
            return run.components(whole(run.joined(payloads)))

        def call(values: list[Any]) -> list[Any]:
            _check_eager(name, values, run.step)
            # The literals that JAX hands to a function that is differentiated are Python's numbers to everybody else.
            return run.meet(index, name, [_as_array(value) for value in values], merge)

        return call


def _check_eager(name: str, values: list[Any], step: EagerStep) -> None:
    if any(isinstance(value, Tracer) for value in values):
        why, instead = "", "use jd.function, or call it outside the transformed function"
        if step.uncompiled:
            why = ", as it does in a jd.function for rows that do not divide"
            instead = "drop the remainder (drop_remainder=True), or write a solver's loop out with jax.lax.fori_loop"
        raise ContextError(
            f"{name} was called inside jax.jit, jax.grad, jax.vmap or the like by a replica function that runs eagerly"
            f"{why}. HINT: {instead}."
        )


class LockstepRun:
    """One eager `strategy.run`."""

    def __init__(self, strategy: Strategy, mesh: ReplicaMesh, step: EagerStep) -> None:
        self.strategy, self.mesh, self.step = strategy, mesh, step
        self.eager = contexts.current().executor
        step.resets.append(self._reset)
        self._parts: dict[Variable, tuple[jax.Array, list[Any]]] = {}
        self._copies: dict[int, tuple[Any, Mirrored]] = {}
        self._writes: dict[Variable, dict[int, Any]] = {}
        self.idle: tuple[int, ...] = ()
        self._op_by_op = step.op_by_op
        self._rendezvous: Rendezvous
        self.endings: list[Callable[[], None]] = []
        """Called when a replica is done: checks of what it has done outside of the library."""

    def __call__(self, fn: Function, args: Nest, kwargs: Nest) -> Any:
        """Runs `fn` on all replicas and joins their results."""
        bound = map_leaves(self._localised, (tuple(args), kwargs))
        self.idle = idle_replicas(flatten(bound)[0])
        self._whole = lengths((args, kwargs))
        # What is rebuilt from the arguments, such as a module of NNX, is the replicas' own.
        with contexts.entered(Context(self.strategy, None, LockstepReplica(self, 0))):
            calls = self.components(bound)
        bodies = [partial(self._replica, index, fn, *call) for index, call in enumerate(calls)]
        self._rendezvous = Rendezvous(bodies, self.idle)
        return self.regroup(self._rendezvous.run())

    def _replica(self, index: int, fn: Function, args: Nest, kwargs: Nest) -> Any:
        device = self.mesh.local_devices[index]
        # Numbers and arrays of a replica lie on its device, but bound to none, so that they meet arrays from around.
        ident = self.mesh.local_numbers[index]
        op_by_op = jax.disable_jit() if self._op_by_op else nullcontext()
        with jax.default_device(device), op_by_op:
            context = ReplicaContext(self.strategy, ident)
            context.whole = self._whole
            context.without_rows = self.mesh.local_ids[index] in self.idle
            with contexts.entered(Context(self.strategy, context, LockstepReplica(self, index))):
                try:
                    result = fn(*args, **kwargs)
                except Exception as error:
                    add_hint(error, in_replica=True, empty=context.without_rows)
                    raise
                for check in self.endings:
                    check()
                return result

    def meet(self, index: int, meeting: str, payload: Nest, merge: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Waits for all replicas; see `Rendezvous.meet`."""

        def compiled(payloads: list[Any]) -> Sequence[Any]:
            # User code may run one operation at a time. The library's own reductions stay compiled: they are programs
            # of all devices.
            with jax.disable_jit(False):
                return merge(payloads)

        result = self._rendezvous.meet(index, meeting, payload, compiled if self._op_by_op else merge)
        contexts.show()  # in another replica's thread variables may have changed
        return result

    def made(self, makings: Sequence[Making]) -> list[Variable]:
        """One variable for all replicas, made as replica 0 asks for it, where it stands."""
        check_alike(makings, self.mesh.local_ids)
        context = ReplicaContext(self.strategy, self.mesh.local_numbers[0])
        with contexts.entered(Context(self.strategy, context, LockstepReplica(self, 0))):
            return [makings[0]()] * len(makings)

    def components(self, nest: Nest) -> list[Any]:
        """One nest a local replica; remembers the copies of mirrored values, which `regroup` finds again."""
        return components(nest, self.mesh, self._remember)

    def _localised(self, leaf: Leaf) -> Any:
        return self.mirrored(leaf) if isinstance(leaf, jax.Array) and leaf.committed else leaf

    def mirrored(self, leaf: Leaf) -> Any:
        """An array of all replicas, such as `strategy.reduce` gives, as a value with a copy on each device."""
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        if self.mesh.peers is not None and leaf.is_fully_addressable:
            # Another worker's array of the same line may hold other numbers.
            return PerReplica(tuple(jax.device_put(leaf, place) for place in self.mesh.local_places), self.mesh)
        return Mirrored(put(leaf, self.mesh.replicated), self.mesh)

    def regroup(self, results: Sequence[Any], *, agreeing: bool = False) -> Any:
        """Joins one nest a local replica into a nest of distributed values; see `regroup`."""
        return regroup(results, self.mesh, known=self._copies, idle=self.idle, agreeing=agreeing)

    def joined(self, payloads: Sequence[Sequence[Any]]) -> list[PerReplica]:
        """Values of all replicas, of which each brings a list; they remember the replicas that had no data."""
        return join(list(zip(*payloads, strict=True)), self.mesh, self.idle)

    def _remember(self, copies: Sequence[Any], whole: Mirrored) -> None:
        # The copies are kept with their ids, so that no other array takes the id of one that is gone.
        for copy in copies:
            self._copies[id(copy)] = copy, whole

    def wrote(self, variable: Variable) -> bool:
        """True if the step, or one of the replicas, has written the variable."""
        return variable in self._writes or self.step.holds(variable)

    def read(self, variable: Variable, index: int) -> Any:
        """One replica's copy, as it last wrote it."""
        pending = self._writes.get(variable, {})
        return pending[index] if index in pending else self._split(variable)[index]

    def _split(self, variable: Variable) -> list[Any]:
        """The variable's copies, one a local replica; kept as long as the variable holds the same array."""
        array = self.step.get(variable)
        # By the identity of the array: a new one means that somebody has written the variable meanwhile.
        known = self._parts.get(variable)
        if known is None or known[0] is not array:
            with jax.ensure_compile_time_eval():  # the first read may come in a loop's body or in jax.jit
                spread = variable.policy.spread(array)
                parts = [movable(part, self.mesh) for part in self.mesh.local_parts(spread)]
            known = self._parts[variable] = (array, parts)
            if variable.policy.shared:
                self._remember(known[1], Mirrored(spread, self.mesh))
        return known[1]

    def near(self, value: Numeric, index: int) -> Any:
        """A value on the device of a replica, or in a mirrored one's copy there."""
        return movable(jax.device_put(value, self.mesh.local_places[index]), self.mesh)

    def forget(self) -> None:
        """Drops what is known of the variables: cross-replica code may have changed them."""
        self._parts.clear()

    def _reset(self) -> None:
        """Drops what the replicas have written: it is written again."""
        self._parts.clear()
        self._writes.clear()

    def write(self, variable: Variable, index: int, value: Numeric) -> None:
        """Notes one replica's new copy; when all have written, the variable gets them as one array."""
        parts = self._split(variable)
        value = self.near(value, index)
        if not variable.policy.shared:
            parts[index] = value
            array = self.mesh.assemble(parts)
            where = variable.policy.where
            # Replicas write values that are whole on each of their devices.
            if variable.policy.layout and where is not None:
                array = put(array, where)
            self.step.bind(variable, array)
            # The replica may hold what it wrote, so the array counts as lent.
            self._parts[variable] = (self.step.get(variable), parts)
            return
        # Copies of a mirrored variable must not differ for anybody to see: a replica sees what it has written, the
        # variable changes when the last replica has.
        pending = self._writes.setdefault(variable, {})
        pending[index] = value
        self.step.changed(variable)
        if len(pending) == len(parts):
            del self._writes[variable]
            self.step.bind(variable, variable.policy.collected(self.mesh.join_copies(at(pending, range(len(parts))))))
            self.step.get(variable)  # the replicas may hold what they wrote, so the array counts as lent


def run(strategy: Strategy, mesh: ReplicaMesh, fn: Function, args: Nest, kwargs: Nest) -> Any:
    """Runs `fn` eagerly on every local replica; see `Strategy.run`."""
    contexts.announce()
    return stepping(lambda step: LockstepRun(strategy, mesh, step)(fn, args, kwargs))


def _reduced(values: list[Any], call: Callable[[list[Any]], list[Any]], op: ReduceOp, is_idle: bool) -> list[Any]:
    """`call(values)`, its gradient being the same reduction of the cotangents.

    Nothing comes back for what an idle replica did not contribute.
    """
    arrays = list(map(_as_array, values))
    if not any(isinstance(array, Tracer) for array in arrays):
        return call(arrays)
    places = _inexact(arrays)

    def backward(missing: list[Any], cotangents: list[Any]) -> tuple[list[Any]]:
        totals = _called_at(call, cotangents, places)
        if is_idle:
            for place in places:
                totals[place] = jnp.where(missing[place], jnp.zeros_like(totals[place]), totals[place])
        return (totals,)

    def forward(values: list[Any]) -> tuple[list[Any], list[Any]]:
        dropped = reduction_of(op).dropped
        return call(values), [dropped(value, jnp.asarray(True)) for value in values] if is_idle else []

    reduce = jax.custom_vjp(call)
    reduce.defvjp(forward, backward)
    return reduce(arrays)


def _as_array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _gathered(values: list[Any], gather: Callable[..., list[Any]], scatter: Callable[..., list[Any]], axis: int) -> Any:
    """`gather(values)`, its gradient being this replica's part of the summed cotangents."""
    if not any(isinstance(value, Tracer) for value in values):
        return gather(values)
    places = _inexact(values)
    sizes = [values[place].shape[axis] for place in places]

    def backward(_: Any, cotangents: list[Any]) -> tuple[list[Any]]:
        return (_called_at(lambda chosen: scatter(chosen, sizes), cotangents, places),)

    call = jax.custom_vjp(gather)
    call.defvjp(lambda values: (gather(values), None), backward)
    return call(values)


def _called_at(call: Callable[[list[Any]], list[Any]], values: list[Any], places: list[int]) -> list[Any]:
    """Results of `call` for the values in some places, in these places; None in the others, which have no gradient."""
    results = dict(zip(places, call(at(values, places)), strict=True))
    return list(map(results.get, range(len(values))))


def _inexact(arrays: list[Any]) -> list[int]:
    """Indices of the arrays that have a gradient."""
    return [place for place, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]


def _cut_out(total: Mirrored, lengths: Sequence[int], axis: int, mesh: ReplicaMesh) -> list[Any]:
    """Each local replica's part of a sum over the replicas, of which every replica has `lengths` along `axis`."""
    bounds = [0, *accumulate(lengths)]
    return [
        jax.lax.slice_in_dim(value, bounds[replica], bounds[replica + 1], axis=axis)
        for value, replica in zip(total.values, mesh.local_ids, strict=True)
    ]
