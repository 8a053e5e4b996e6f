"""`Variable`: one array with a name, a placement and rules for who may write it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self, cast

import jax
import numpy as np

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.devices import device_name
from jaxtribute._src.core.types import DType, Foreign, Nest, Numeric
from jaxtribute._src.core.values.assigning import AssignMethods
from jaxtribute._src.core.values.creating import Making
from jaxtribute._src.core.values.distributed import DistributedValues, Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.enums import (
    AggregationLike,
    ReduceOp,
    SynchronizationLike,
    VariableAggregation,
    VariableSynchronization,
)
from jaxtribute._src.core.values.layouts import check_layout, parse_layout
from jaxtribute._src.core.values.numbers import initial_array, initial_shape, row_ids
from jaxtribute._src.core.values.operators import ArrayOperators
from jaxtribute._src.core.values.placing import put
from jaxtribute._src.core.values.policies.base import Policy, Update
from jaxtribute._src.core.values.scatter import ScatterMethods
from jaxtribute._src.core.values.stored import StoredArray
from jaxtribute.errors import ArgumentError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy


def checked_arguments(
    trainable: bool | None,
    name: str | None,
    synchronization: SynchronizationLike,
    aggregation: AggregationLike,
) -> tuple[VariableSynchronization, VariableAggregation]:
    """Checks a new variable's arguments; returns the members that the last two name.

    Raises:
      ArgumentError: a name of no member, or an aggregation that nothing is known of.
      ArgumentTypeError: a flag or name that is none.
    """
    if trainable is not None:
        settings.flag("trainable", trainable)
    settings.text("name", name, optional=True)
    how = settings.member("aggregation", "NONE" if aggregation is None else aggregation, VariableAggregation)
    if how not in (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA):
        ReduceOp.from_variable_aggregation(how)
    return settings.member("synchronization", synchronization, VariableSynchronization), how


def check_aggregation(aggregation: VariableAggregation, dtype: np.dtype[Any]) -> None:
    """Checks that values of a dtype can be combined so.

    Raises:
      ArgumentError: means of them would have to round.
    """
    if aggregation is VariableAggregation.MEAN and not jax.numpy.issubdtype(dtype, np.inexact):
        raise ArgumentError(
            f"aggregation MEAN of dtype {dtype} would have to round. "
            "HINT: use a floating dtype, VariableAggregation.SUM or ONLY_FIRST_REPLICA."
        )


class _Creation(type):
    """Lets the current context make the variable: replicas that create one in step must share it."""

    if not TYPE_CHECKING:  # `Variable.__init__` tells the types

        def __call__(cls, *args: Nest, **kwargs: Nest) -> Any:
            context = contexts.current()
            kind = context.strategy.extended.variable_kind if cls is Variable else cls
            return context.executor.create(Making(kind, args, kwargs))


class Variable(AssignMethods, ScatterMethods, ArrayOperators, DistributedValues, StoredArray, metaclass=_Creation):
    """Mutable state of a training program, placed by the strategy in whose `scope()` it is made.

    Args:
      initial_value: an array, a number, a nest of numbers, or a function without arguments that returns one.
        Its shape becomes the variable's, for good.
      trainable: whether optimizers should update it. Defaults to True, to False for ON_READ.
      name: a name for messages and checkpoints.
      dtype: the element type; by default that of `initial_value`, with JAX's rules for Python numbers.
      synchronization: when the copies are brought together: a member, or its name.
      aggregation: how values that replicas write (or ON_READ values that are read) are combined, likewise.
      layout: for each axis of the value the axis of the strategy's `replica_shape` that splits it, a tuple of them, or
        None: `(None, "model")`. By default as the strategy's own `layout` says. Where a replica has one device, the
        value is whole.

    Raises:
      ArgumentError: MEAN of an integer dtype, a synchronization that the strategy cannot give, or an initial value
        that the dtype cannot hold, or a layout by axes that the replicas do not have.
      ShapeError: a layout that does not divide the shape.
      ArgumentTypeError: an initial value that is no array of numbers, or another argument of a wrong type.
      VariableError: the initial value is computed inside a trace, where it has no value yet.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     w = jd.Variable(jnp.zeros(3), name="w")
      ...     total = jd.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
      >>> w.assign_add(jnp.ones(3)).numpy()
      array([1., 1., 1.], dtype=float32)
      >>> w @ w
      Array(3., dtype=float32)

    Source: `tf.Variable`.
    """

    derived = False
    """True for a variable that the library made beside another one, such as an optimizer's slot."""
    follows: tuple[Variable, bool | str | None] | None = None
    """The variable that an optimizer's slot lies beside, and its `shard_update`; None there for a sum of gradients."""
    followers: weakref.WeakSet[Any] | None = None
    """The `jd.function`s that were traced with it, of a variable whose owner, such as a Keras layer, may be rebuilt."""

    # For subclasses that keep their values elsewhere.
    _checked_arguments = staticmethod(checked_arguments)
    _check_aggregation = staticmethod(check_aggregation)
    _parse_layout = staticmethod(parse_layout)

    def __init__(
        self,
        initial_value: Numeric,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: DType = None,
        *,
        synchronization: SynchronizationLike = VariableSynchronization.AUTO,
        aggregation: AggregationLike = VariableAggregation.NONE,
        layout: Foreign = None,
    ) -> None:
        synchronization, aggregation = checked_arguments(trainable, name, synchronization, aggregation)
        strategy = contexts.current().strategy
        shape_alone = strategy.extended.mesh.described
        value = initial_shape(initial_value, dtype) if shape_alone else initial_array(initial_value, dtype)
        check_aggregation(aggregation, value.dtype)
        self._name = name or "Variable"
        self._synchronization, self._aggregation = synchronization, aggregation
        self._strategy = strategy
        self._shape, self._dtype = tuple(value.shape), np.dtype(value.dtype)
        # Name, shape and dtype are there by now: a strategy's layouts ask for them.
        policy, self._synchronization = strategy.extended.variable_policy(synchronization)
        chosen = parse_layout(layout) if layout is not None else strategy.extended.layout_of(self)
        if chosen and policy.mesh is not None:
            policy = policy.laid_out(check_layout(chosen, self._shape, policy.mesh, self._name))
        self._policy: Policy = policy.fitted(self._shape, self._dtype)
        on_read = self._synchronization is VariableSynchronization.ON_READ
        self._trainable = trainable if trainable is not None else not on_read
        # A variable outlives the function that makes it: its first array must be no tracer of a program.
        with jax.ensure_compile_time_eval():
            if policy.mesh is not None:
                # Workers may have drawn other first values, as without a seed: all take the first one's.
                settings_told = f"{self._synchronization.name} {self._aggregation.name}"
                value = policy.mesh.agreed(value, f"variable {self._name!r}", settings_told)
            self._data = self._policy.stored(value)
        self._policy.made(self)

    @classmethod
    def with_policy(
        cls,
        value: Numeric,
        policy: Policy,
        *,
        name: str,
        strategy: Any,
        shape: tuple[int, ...] | None = None,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> Variable:
        """Makes a variable that the library itself stores by `policy`, such as an optimizer's slot.

        Args:
          value: the initial value, or with `shape` the array that the policy would store for it.
          policy: how it is stored.
          name: its name.
          strategy: whose it is.
          shape: the shape of the value, if that is stored already.
          aggregation: how the replicas' values are combined.
        """
        variable = cls.__new__(cls)
        host = initial_array(value, None) if shape is None else value
        variable._name, variable._trainable, variable._policy = name, False, policy
        variable.derived = True
        # A row for each replica is what each of them writes for itself.
        rows = policy.form == "rows"
        variable._synchronization = VariableSynchronization.ON_READ if rows else VariableSynchronization.ON_WRITE
        variable._aggregation = aggregation
        variable._strategy = strategy
        variable._shape, variable._dtype = tuple(host.shape if shape is None else shape), np.dtype(host.dtype)
        with jax.ensure_compile_time_eval():
            variable._data = policy.stored(host) if shape is None else host
        policy.made(variable)
        return variable

    # What it is.

    @property
    def name(self) -> str:
        """The name, as TensorFlow prints it (`'Variable:0'`)."""
        return f"{self._name}:0"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value on one replica."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape))

    @property
    def device(self) -> str:
        """TensorFlow's name of the (first) device that holds the value."""
        context = self._context()
        # A replica that runs as Python has its own copy on its own device; every other reader is told the first.
        seen = context.executor.local and not context.executor.traced and context.replica is not None
        seen = seen and self._policy.parameter_device is None
        devices = (context.executor.get(self) if seen else self.stored).devices()
        # In the mesh's order, as a set of devices has none: TensorFlow names the first replica's.
        order = self._policy.mesh.devices if self._policy.mesh is not None else ()
        return device_name(next((device for device in order if device in devices), next(iter(devices))))

    @property
    def trainable(self) -> bool:
        """True if optimizers should update it."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """Time at which the copies are brought together."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """Combination of values from several replicas."""
        return self._aggregation

    @property
    def distribute_strategy(self) -> Strategy:
        """The strategy in whose scope the variable was made."""
        return self._strategy

    @property
    def policy(self) -> Policy:
        """Storage of the value; for strategies and optimizers."""
        return self._policy

    # Reading.

    def read_value(self) -> jax.Array:
        """Returns the value as the current context sees it, an array of shape `shape`.

        In replica context that is this replica's value; elsewhere that of all, which ON_READ variables reduce.

        Raises:
          VariableError: an ON_READ variable without aggregation is read in cross-replica context.
        """
        context = self._context()
        return context.executor.standpoint.read(context.executor, self, context.replica is not None)

    _operand = read_value

    def sparse_read(self, indices: Numeric, *, mask: Numeric = None) -> jax.Array:
        """Returns the rows at `indices`, of shape `(*indices.shape, *shape[1:])`.

        Args:
          indices: the rows.
          mask: of a `jd.nn.ShardedTable` the places, of the indices' shape, where rows are wanted and not zeros.

        Raises:
          ArgumentError: an index that is known names no row; a mask for another variable.

        Source: `tf.Variable.sparse_read`.
        """
        if mask is not None:
            raise ArgumentError(f"{self.name} was given a mask. HINT: it is for tables; use jnp.where.")
        ids = row_ids(indices, self.shape[0], self.name)
        return jax.numpy.take(self.read_value(), ids, axis=0)

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """This process's copies, one for each of its replicas, each on its device; in replica context its own."""
        context = self._context()
        if context.replica is not None and context.executor.local:
            return (self.read_value(),)
        value = self.distributed()
        return value.values if isinstance(value, ReplicaValues) else (value,)

    def lay_out(self, policy: Policy) -> None:
        """Has the variable stored by a policy that differs from its own in the layout alone."""
        # An array that no strategy has placed has no layout either.
        if policy.where is not None:
            self._policy = policy
            self.bind(put(self.stored, policy.where))

    def distributed(self) -> PerReplica[jax.Array] | Mirrored | jax.Array:
        """The variable as a `Mirrored` or `PerReplica` value, or as an array if there is one copy."""
        executor = self._context().executor
        return executor.standpoint.distributed(executor, self)

    def replaced_in(self, program: Any, value: Numeric) -> None:
        """Gives a variable that another process holds its new value in a program that is being traced."""
        raise NotImplementedError

    def check_seen(self, program: Any) -> None:
        """Checks that a program knows all that it has changed so far of a variable that another process holds."""
        raise NotImplementedError

    def _update(self, value: Numeric, update: Update) -> Self:
        context = self._context()
        context.strategy.extended.check_variable(self)
        context.executor.standpoint.write(context.executor, self, value, update, context.replica is not None)
        return self

    def _context(self) -> Context:
        """The context in force; outside every scope, the cross-replica context of the variable's own strategy."""
        return contexts.of(self._strategy)

    # Copies.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A variable of its own, stored as this one is, whose value it has at first.

        Raises:
          VariableError: in a replica function or a compiled one.
        """
        context = self._context()
        if context.executor.traced or context.executor.local or context.executor.differentiating:
            raise VariableError(
                f"{self.name} is copied in a function that is compiled, differentiated or run on replicas. "
                "HINT: copy variables outside."
            )
        # Past `_Creation`, by which the context in force would make it, and place it again.
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.bind(context.executor.get(self).copy())
        memo[id(self)] = made
        return made

    def __copy__(self) -> Self:
        return self.__deepcopy__({})  # one array cannot be two variables': a step that writes one takes its memory

    def __reduce__(self) -> Any:
        """Pickled is what makes such a variable again, in the scope of whatever strategy it is loaded in."""
        value = np.asarray(self.read_value())
        settings = self._trainable, self._name, self._synchronization.name, self._aggregation.name
        return _made_again, (type(self), value, *settings)

    def __repr__(self) -> str:
        context = self._context()
        if context.executor.traced or (context.replica is not None and self._policy.label != "Variable"):
            return f"<jd.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"
        values = self.values
        if self._policy.label == "Variable":
            return _shown(self, "", values[0])
        lines = (f"  {i}: {_shown(self, f'/replica_{i}' if i else '', value)}" for i, value in enumerate(values))
        return f"{self._policy.label}:{{\n" + ",\n".join(lines) + "\n}"


def _made_again(kind: type[Variable], value: Numeric, trainable: bool, name: str, *how: Any) -> Variable:
    return kind(value, trainable, name, synchronization=how[0], aggregation=how[1])


def _shown(variable: Variable, suffix: str, value: Numeric) -> str:
    text = np.array2string(np.asarray(value), separator=", ")
    name = variable.name.removesuffix(":0")
    return f"<jd.Variable '{name}{suffix}:0' shape={variable.shape} dtype={variable.dtype.name}, numpy={text}>"


# To JAX a variable in a nest is its present value, so that every jax.numpy function takes variables.
jax.tree_util.register_pytree_node(
    Variable, lambda variable: ((variable.read_value(),), None), lambda _, children: cast("Any", children[0])
)
