"""Variables that parameter servers hold."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import IndexedSlices, Variable, VariableAggregation, VariableSynchronization
from jaxtribute._src.addons.parameter_servers.server.client import MOVE, pulled
from jaxtribute._src.addons.parameter_servers.server.layout import Layout, Shard
from jaxtribute._src.addons.parameter_servers.variables.indexing import wanted_rows, with_arrays
from jaxtribute._src.addons.parameter_servers.variables.operations import Operation, changed_in, read_rows
from jaxtribute._src.addons.parameter_servers.variables.program import ServerProgram
from jaxtribute.errors import VariableError
from jaxtribute.extending import (
    Context,
    Lease,
    Overlay,
    Policy,
    ReplicaMesh,
    Scatter,
    TracedProgram,
    Update,
    check_untraced,
    overlaid_rows,
    row_ids,
)
from jaxtribute.typing import AggregationLike, Array, ArrayLike, DType, Foreign, Leaf, SynchronizationLike

if TYPE_CHECKING:
    from jaxtribute import Strategy
    from jaxtribute._src.addons.parameter_servers.variables.access import Access
    from jaxtribute.extending import Executor


_KINDS = {Update.ASSIGN: "assign", Update.ADD: "add", Update.SUB: "sub"}


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """Part of a variable for which an initial value is wanted.

    Attributes:
      shape: the shape of the part.
      offset: where it begins, along each axis.

    Source: `ShardInfo` of TensorFlow's trackables.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VariableDescription:
    """All that another process needs to know of a variable."""

    key: int
    name: str
    layout: Layout
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation


@dataclass(frozen=True, slots=True)
class RemoteArrayInfo:
    """Stand-in for a variable's array where only its shape or placement is asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    committed: bool = False


class ServerPolicy(Policy):
    """Values on servers: reads pull, writes send operations (see `ServerVariable`).

    Args:
      mesh: the device that this process computes on.
      access: how this process reaches the servers.
    """

    remote = True
    program: ClassVar[Any] = ServerProgram

    def __init__(self, mesh: ReplicaMesh, access: Access) -> None:
        self._mesh = mesh
        self.access = access

    @property
    def mesh(self) -> ReplicaMesh:
        """The device that this process computes on."""
        return self._mesh

    def place(self, value: ArrayLike) -> jax.Array:
        return jnp.asarray(value)


class ServerVariable(Variable):
    """A variable on parameter servers, made by `jd.Variable` in the scope of a `jd.ParameterServerStrategy`.

    Reading it fetches the value, writing it sends an operation: `assign_add`, `assign_sub`, `assign`, a `scatter`.
    Operations of several workers are applied in the order in which they arrive, each as a whole.

    The arguments are those of `jd.Variable`. `initial_value` may be a function with an argument `shard_info`, wrapped
    in `functools.partial(function, shape=..., dtype=...)`: each server then computes its own part.
    """

    def __init__(
        self,
        initial_value: Leaf,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: DType = None,
        *,
        synchronization: SynchronizationLike = VariableSynchronization.AUTO,
        aggregation: AggregationLike = VariableAggregation.NONE,
        layout: Foreign = None,
    ) -> None:
        synchronization, aggregation = self._checked_arguments(trainable, name, synchronization, aggregation)
        if layout is not None:
            self._parse_layout(layout)  # replicas have one device here, where a layout means nothing
        strategy = Context.current().strategy
        on_read = synchronization is VariableSynchronization.ON_READ
        trainable = not on_read if trainable is None else trainable
        extended: Any = strategy.extended
        check = functools.partial(self._check_aggregation, aggregation)
        key, division = extended.create_on_servers(initial_value, dtype, check)
        self._describe(
            VariableDescription(key, name or "Variable", division, trainable, synchronization, aggregation), strategy
        )

    @classmethod
    def described(cls, description: VariableDescription, strategy: Strategy) -> ServerVariable:
        """The variable of that description in this process."""
        kind = ShardedVariable if description.layout.split else ServerVariable
        variable = kind.__new__(kind)
        variable._describe(description, strategy)
        return variable

    def _describe(self, description: VariableDescription, strategy: Strategy) -> None:
        if description.layout.split:
            # Only the partitioner knows, after `__init__` has begun, whether there are several shards.
            self.__class__ = ShardedVariable  # pyright: ignore[reportAttributeAccessIssue] (it adds methods only)
        self.description = description
        self._name, self._trainable = description.name, description.trainable
        self._synchronization, self._aggregation = description.synchronization, description.aggregation
        self._shape, self._dtype = description.layout.shape, description.layout.dtype
        extended: Any = strategy.extended
        self._strategy, self._policy = strategy, extended.server_policy

    @property
    def layout(self) -> Layout:
        """Division of the variable over the servers."""
        return self.description.layout

    @property
    def policy(self) -> ServerPolicy:
        policy = self._policy
        assert isinstance(policy, ServerPolicy)
        return policy

    @property
    def device(self) -> str:
        return f"/job:ps/replica:0/task:{self.layout.shards[0].server}/device:CPU:0"

    @property
    def stored(self) -> Any:
        """Shape and dtype: the array is elsewhere."""
        return RemoteArrayInfo(self._shape, self._dtype)

    def peek(self) -> jax.Array:
        return jnp.asarray(self.policy.access.read([self.layout])[0])

    def numpy(self) -> np.ndarray[Any, Any]:
        if Context.current().executor.traced:
            return super().numpy()
        return np.array(self.policy.access.read([self.layout])[0])

    def lease(self) -> Lease:
        """The value, fetched, for a checkpoint."""
        return Lease(self.peek())

    def bind(self, array: jax.Array) -> None:
        """Replaces the value; on a worker what others have written since it was read stays."""
        access, extended = self.policy.access, cast("Any", self._strategy.extended)
        with access.client.lock:
            # A value that was never read here cannot have been computed from.
            read = all(shard.key in access.client.known for shard in self.layout.shards)
            if extended.cluster is None and read and not self.layout.copies:
                access.change(MOVE, self, [pulled(access.client, self.layout), array])
            else:
                access.change("assign", self, [array])

    def read_value(self) -> Any:
        """Returns the servers' value, or the step's present view of it.

        Raises:
          VariableError: an optimizer of the step that is being traced has updated the variable, or it was written there
            through its shards, or a shard through the whole.
        """
        return Context.current().executor.get(self)

    _operand = read_value

    def _update(self, value: Leaf, update: Update) -> Self:
        """Sends the servers the operation, rather than a new value."""
        context = Context.current()
        context.strategy.extended.check_variable(self)
        executor = context.executor
        if not (type(value) is np.ndarray and (value.dtype, value.shape) == (self.dtype, self.shape)):
            # Which copies; an array that fits is on its way before this returns.
            value = self.policy.written_by_one(value, self)
        if isinstance(executor, TracedProgram):
            value = jnp.asarray(value)  # what the step reads later has the methods of JAX's arrays
            executor.record(Operation(_KINDS[update], self, 1), [value], self)
            executor.values[self] = update.apply(executor.view_of(self), value)
            executor.changed(self)
        elif isinstance(executor, Overlay):
            executor.set(self, update.apply(executor.get(self), value))
        else:
            check_untraced(self)
            self.policy.access.change(_KINDS[update], self, [value])
        return self

    def replaced_in(self, program: TracedProgram, value: ArrayLike) -> None:
        """A traced program that gives the variable another value sends the difference, which others' writes survive."""
        self._move_in(program, program.get(self), value)

    def move(self, old: ArrayLike, new: ArrayLike) -> None:
        """Gives the variable a value that was computed from one that was read.

        Others may push to the variable meanwhile: where they have, the difference is added to what they wrote.

        Args:
          old: the value that was read, of the variable's shape.
          new: the value that it is to become.
        """
        context = Context.current()
        context.strategy.extended.check_variable(self)
        executor = context.executor
        if isinstance(executor, TracedProgram):
            self._move_in(executor, old, new)
        elif isinstance(executor, Overlay):
            executor.set(self, _after_move(executor.get(self), old, new))
        else:
            check_untraced(self)
            self.policy.access.change(MOVE, self, [old, new])

    def check_seen(self, program: TracedProgram) -> None:
        """Checks that a traced program knows all that it has changed of the variable so far.

        Raises:
          VariableError: an optimizer has updated it, or it was written through its shards, or a shard through it.
        """
        for operation in program.operations:
            if isinstance(operation, Operation) and operation.variable is self:
                continue
            changed = operation.changes()
            if any(self.layout.keys & other.layout.keys for other in changed):
                raise VariableError(
                    f"{self.name} is read after {operation.name} in the same step; its parameter server has the new "
                    "value, the worker has not. HINT: read it before, or in the next step."
                )

    def _move_in(self, program: TracedProgram, old: ArrayLike, new: ArrayLike) -> None:
        now = program.view_of(self)
        program.record(Operation(MOVE, self, 2), [old, new], self)
        program.values[self] = _after_move(now, old, new)
        program.changed(self)

    def _scatter(self, delta: IndexedSlices, how: Scatter) -> Any:
        context = Context.current()
        context.strategy.extended.check_variable(self)
        ids, rows = self._checked_rows(delta, how)
        executor = context.executor
        if isinstance(executor, TracedProgram):
            executor.record(Operation(how.value, self, 2), [ids, rows], self)
            # For what the step reads later. If it reads nothing, this is cut from the program, and nothing is fetched.
            executor.values[self] = how.apply(executor.view_of(self), ids, rows)
            executor.changed(self)
        elif isinstance(executor, Overlay):
            raise VariableError(
                f"{self.name}.{how.value} inside a function that jd.grad differentiates. HINT: call it outside."
            )
        else:
            check_untraced(self)
            self.policy.access.change(how.value, self, [ids, rows])
        return self

    def sparse_read(self, indices: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
        """Returns the rows at `indices`; only they are fetched.

        Args:
          indices: the rows.
          mask: the places, of the indices' shape, where rows are wanted and not zeros.

        Source: `tf.Variable.sparse_read`.
        """
        if mask is None or (isinstance(mask, np.ndarray) and mask.all()):
            return self._looked_up(indices, padded=False)
        numbers: Any = np if isinstance(indices, np.ndarray) and isinstance(mask, np.ndarray) else jnp
        ids = numbers.asarray(indices)
        if not jnp.issubdtype(ids.dtype, jnp.signedinteger):
            ids = ids.astype(jax.dtypes.canonicalize_dtype(np.int64))
        rows = self._looked_up(numbers.where(mask, ids, np.asarray(-1, ids.dtype)), padded=True)
        wanted = jnp.asarray(mask).reshape(*np.shape(mask), *[1] * (rows.ndim - np.ndim(mask)))
        return jnp.where(wanted, rows, jnp.zeros_like(rows))

    def _looked_up(self, ids: ArrayLike, *, padded: bool) -> Any:
        """The rows as the executor in force sees them; any for the id -1 if `padded`."""
        executor = Context.current().executor
        if isinstance(executor, Overlay):
            return overlaid_rows(executor, self, ids, lambda below: self._rows_in(below, ids, padded=padded))
        return self._rows_in(executor, ids, padded=padded)

    def _rows_in(self, executor: Executor, ids: ArrayLike, *, padded: bool) -> Any:
        """The rows as an executor sees them."""
        if not isinstance(executor, TracedProgram):
            return jnp.asarray(self.policy.access.rows(self.layout, np.asarray(ids), padded=padded))
        self.check_seen(executor)
        if not changed_in(executor, self):
            return read_rows(executor, self, ids, padded=padded)
        ids = jnp.asarray(ids)
        if padded:
            ids = jnp.where(ids == np.asarray(-1, ids.dtype), jnp.zeros_like(ids), ids)
        return jnp.take(executor.values[self], row_ids(ids, self.shape[0], self.name), axis=0)

    def __repr__(self) -> str:
        servers = ", ".join(map(str, sorted(self.layout.servers)))
        return (
            f"<jd.{type(self).__name__} '{self.name}' shape={self.shape} dtype={self.dtype.name}, "
            f"{len(self.layout.shards)} shard(s) on parameter server(s) {servers}>"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> ServerVariable:
        raise VariableError(f"{self.name} is on parameter servers and cannot be copied. HINT: make another variable.")

    def __reduce__(self) -> Any:
        raise VariableError(f"{self.name} is on parameter servers and cannot be pickled. HINT: save a jd.Checkpoint.")


class ShardedVariable(ServerVariable):
    """A variable whose rows are split over parameter servers; it behaves as one variable.

    Source: `tf.distribute`'s `ShardedVariable`.
    """

    _variables: tuple[ServerVariable, ...] = ()
    """The shards, once they were asked for: a step must meet the same object each time."""

    @property
    def variables(self) -> list[ServerVariable]:
        """The shards as variables of their own."""
        if not self._variables:
            self._variables = tuple(self._shard(i, shard) for i, shard in enumerate(self.layout.shards))
        return list(self._variables)

    def _shard(self, i: int, shard: Shard) -> ServerVariable:
        layout = Layout(shard.shape, self.dtype, (Shard(shard.key, shard.server, 0, shard.shape[0], shard.shape),))
        name = f"{self._name}/part_{i}"
        given = self.description
        made = VariableDescription(shard.key, name, layout, given.trainable, given.synchronization, given.aggregation)
        return ServerVariable.described(made, self._strategy)

    def __getitem__(self, key: Leaf) -> Any:
        """Some rows, or parts of them; if they are known beforehand, only they are fetched."""
        executor = Context.current().executor
        key = with_arrays(key)
        wanted = wanted_rows(key, self.shape)
        # A compiled step, and a gradient, take the whole, so that the gradient is one of all rows, as anywhere.
        if wanted is None or executor.traced or isinstance(executor, Overlay):
            return super().__getitem__(key)
        rows, index = wanted
        return self.sparse_read(rows)[index]


def _after_move(now: Array, old: ArrayLike, new: ArrayLike) -> Any:
    """A step's view of a variable that it moves; the servers do the same to the value that they have by then."""
    # A step that moves what it has read sees what it wrote. One that starts elsewhere, as sums do from zero, adds.
    if now is old or jnp.asarray(new).dtype == np.bool_:
        return new
    return now + (jnp.asarray(new) - jnp.asarray(old))


def _value(variable: Variable) -> tuple[tuple[Any], None]:
    return (variable.read_value(),), None


def _unwrapped(_: None, children: tuple[Any]) -> Any:
    return children[0]


for _kind in (ServerVariable, ShardedVariable):
    jax.tree_util.register_pytree_node(_kind, _value, _unwrapped)
