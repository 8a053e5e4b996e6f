"""`Model`: a model of another library with its optimizer, state and random numbers, as variables of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute import Optimizer, ReduceOp, Variable, VariableAggregation, value_and_grad
from jaxtribute._src.addons.models.copies import Copy, lost_in, warn_of_lost, warn_of_state
from jaxtribute._src.addons.models.parts import Kind, Outline, Part, is_key, take_apart
from jaxtribute._src.addons.models.trees import take_state_apart
from jaxtribute._src.addons.models.unchanged import Source, refuse, sources
from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError
from jaxtribute.experimental import CommunicationOptions
from jaxtribute.extending import Callers, Context
from jaxtribute.typing import ArrayLike, Leaf, Nest, ReduceOpLike

if TYPE_CHECKING:
    from jaxtribute import ReplicaContext
    from jaxtribute.precision import LossScale, Policy

_AGGREGATIONS = {
    Kind.STATISTIC: VariableAggregation.MEAN,
    Kind.ALIKE: VariableAggregation.ONLY_FIRST_REPLICA,
}
_PARAMETERS = (Kind.PARAMETER, Kind.FROZEN)


if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    M = WithDefault("M", default=Any, covariant=True)
else:
    M = TypeVar("M", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Model(Generic[M]):
    """A model of Flax NNX, Equinox or plain nests, its arrays in variables of the strategy in whose scope it is made.

    `jd.value_and_grad`, `jd.Optimizer`, `jd.Checkpoint` and `strategy.visualize` take it whole, and a `jd.function`
    may close over it or take it as an argument. In a replica function it is the replica's own view of the model.

    Args:
      model: a module of Flax NNX, or a nest of arrays: a module of Equinox, parameters of Flax Linen or Haiku. Its
        arrays are copied. Those of floating dtypes are parameters; of NNX only `nnx.Param`. An abstract one, as
        `nnx.eval_shape` gives, has zeros until `jaxtribute.integrations.safetensors.load` fills it.
      optimizer: an Optax transformation that trains the parameters; None for a model that is not trained, or by
        an optimizer of its own: `jd.Optimizer(transform, model)`.
      state: a nest of what steps change besides, such as an `equinox.nn.State` or the `batch_stats` of Flax Linen: an
        attribute of that name. Floating arrays become the mean of what the replicas assign, all others must be the
        same on all replicas. NNX has it in its modules: `nnx.BatchStat` and the counts of `nnx.Rngs`.
      rng: a random key or seed for `key` and `keys`; of an abstract module of NNX also for its `nnx.Rngs`.
      precision: the policy of dtypes (`jd.precision.Policy` or its text), in which the model is called: parameters,
        inputs and results are cast. `value` and `apply` cast parameters alone.
      wrt: the parameters that are trained, if not all: of NNX a filter, such as `nnx.LoRAParam`; of a nest a function
        of a leaf, or a nest of True and False, as `equinox.partition` takes it. The others stay as they are.
      options: arguments of `jd.Optimizer`, such as `accumulate_steps`.

    Raises:
      ArgumentTypeError: the model holds no arrays, or a Python number, of which it is not known whether it is trained;
        a state with other leaves than arrays of numbers; `wrt` of another structure than the model.
      ArgumentError: a module of Equinox that holds its first state; an abstract model with random keys without `rng`;
        options without an optimizer; `wrt` that selects nothing.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     model = jd.Model({"w": jnp.zeros(3)}, optax.sgd(0.5))
      >>> loss = lambda x: jnp.sum((model.value["w"] - x) ** 2)
      >>> float(model.minimize(loss, jnp.ones(3)))
      3.0
      >>> model.value["w"]
      Array([1., 1., 1.], dtype=float32)

    Source: `flax.training.train_state.TrainState`, with variables; `nnx.ModelAndOptimizer`.
    """

    def __init__(
        self,
        model: M,
        optimizer: optax.GradientTransformation | None = None,
        *,
        state: Nest = None,
        rng: jax.Array | int | None = None,
        precision: Policy | str | None = None,
        wrt: Any = None,
        **options: Leaf,
    ) -> None:
        if optimizer is None and options:
            raise ArgumentError(f"{sorted(options)} are for an optimizer. HINT: pass an Optax transformation, too.")
        if isinstance(precision, str):
            from jaxtribute.precision import Policy  # an add-on that most models do without

            precision = Policy.parse(precision)
        self._precision = precision
        self._kind = type(model).__name__
        key = _key(rng)
        parts, self._outline = take_apart(model, wrt)
        if precision is not None:
            _warn_of_own_types(self._kind, self._outline.wider_than(precision.compute, model), precision)
        self._cells = _made(parts, "", key)
        self._copies: list[Copy] | None = None
        """The copies that a loss takes of this model, while it is differentiated."""
        self._moving = [".".join(cell.path) if cell.part.kind in _AGGREGATIONS else None for cell in self._cells]
        self._parameters = self._outline.nest(self.trainable_variables)
        found = None if state is None else take_state_apart(state)
        self._state: Outline | None = None if found is None else found[1]
        self._state_cells = [] if found is None else _made(found[0], "state/", None)
        self._stream = [] if key is None else _made(_stream(key), "rng/", None)
        self._optimizer = None if optimizer is None else Optimizer(optimizer, self._parameters, **options)
        self._scale: LossScale | None = options.get("loss_scale")

    # What it is.

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All that it consists of: its arrays, its state, its random numbers, the optimizer's slots."""
        slots = () if self._optimizer is None else self._optimizer.variables
        return (*(cell.variable for cell in self._all()), *slots)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The parameters."""
        return tuple(cell.variable for cell in self._cells if cell.part.kind is Kind.PARAMETER)

    @property
    def parameters(self) -> Any:
        """The parameters' variables, a nest as gradients are: of NNX dicts by attribute, else like the model itself.

        What is no parameter is left out there, or None.
        """
        return self._parameters

    __jd_parameters__ = parameters

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer; None if there is none."""
        return self._optimizer

    def named_variables(self) -> Iterator[tuple[tuple[str, ...], Variable]]:
        """Each variable but the optimizer's with its path in the model; for checkpoints and files."""
        for cell in self._all():
            yield cell.path, cell.variable

    def weights(self) -> Iterator[tuple[tuple[str, ...], Variable]]:
        """Each variable that a file of weights has, as `named_variables`: neither random numbers nor counts."""
        for cell in (*self._cells, *self._state_cells):
            if cell.part.kind not in (Kind.KEY, Kind.ALIKE) and cell.implementation is None:
                yield cell.path, cell.variable

    def _all(self) -> list[_Cell]:
        return [*self._cells, *self._state_cells, *self._stream]

    def __repr__(self) -> str:
        count = sum(variable.size for variable in self.trainable_variables)
        return f"<jd.Model of {self._kind}; {len(self._cells)} arrays, {count:,} trained numbers>"

    # Using it.

    def __call__(self: Model[Callable[P, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the model with its present values, and keeps what the call changes in it.

        In a replica function each of several replicas has random keys of its own.

        Raises:
          VariableError: the call changed what it may not: added variables, or changed others than statistics and
            counts on several replicas.
          TraceError: it changed something inside `jax.vmap` or another transformation.
        """
        if self._precision is None:
            return self.apply(_call, *args, **kwargs)
        given: Any = self._precision.to_compute((args, kwargs))
        return self._precision.to_output(self.apply(_call, *given[0], **given[1]))

    def apply(self, fn: Callable[Concatenate[M, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns `fn(model, *args, **kwargs)` of the model with its present values, and keeps what `fn` changes in it.

        Only modules of NNX can be changed, and of them only the variables are kept: another attribute, such as one that
        `module.eval()` sets, is as before for the next call. Raises what calling the model does.
        """
        results: list[R] = []

        def run(values: Sequence[Any]) -> list[Any]:
            model = self._outline.build(values)
            results.append(fn(model, *args, **kwargs))
            return self._outline.values(model)

        before = self._values()
        after = run(before)
        # By identity: an array that code has not replaced is not written, and does not have to be alike on the
        # replicas.
        changed = [new is not old for old, new in zip(before, after, strict=True)]
        refused = (cell.part.kind not in _AGGREGATIONS for cell in compress(self._cells, changed))
        made: Sequence[int] = [Source.OWN] * len(after)
        if _several() is not None and any(refused):
            made = sources(run, before, [cell.part.kind is Kind.KEY for cell in self._cells])
        changes = [
            (replace(cell, normalised=one == Source.ALIKE and cell.part.kind in _PARAMETERS), value)
            for place, (cell, value, new, one) in enumerate(zip(self._cells, after, changed, made, strict=True))
            if new and one != place
        ]
        self._keep(changes)
        return results[0]

    @property
    def value(self) -> M:
        """A new model with the present values; changes of it are not kept: assign it to keep them.

        A loss calls a module of Flax NNX as `model(x)`, which keeps its batch statistics and counts.

        Raises:
          ShapeError: (when assigned) another structure.
          VariableError: (when assigned) another shape or dtype; or in a replica function, where only updates change
            parameters.
        """
        values, copies = self._values(), self._copies
        copy = self._outline.build(values)
        if copies is not None:
            copies.append((copy, values))
        return copy

    @value.setter
    def value(self, value: Nest) -> None:
        changes: list[tuple[_Cell, Any]] = []
        for cell, new in zip(self._cells, self._outline.values(value), strict=True):
            # In half precision the model has shown parameters of another dtype than it keeps.
            kept = new if self._precision is None else self._precision.to_params(new)
            changes.append((cell, kept if cell.implementation is not None else _checked(cell.variable, kept)))
        self._keep(changes)

    @property
    def state(self) -> Any:
        """The state with its present values, None if there is none; assign a new one of the same structure.

        Raises:
          ShapeError: (when assigned) another structure or shape.
          VariableError: (when assigned) integers that differ between replicas.
        """
        if self._state is None:
            return None
        return self._state.build([cell.variable.read_value() for cell in self._state_cells])

    @state.setter
    def state(self, value: Nest) -> None:
        if self._state is None:
            raise ArgumentError("this jd.Model was made without a state. HINT: pass the first one as state=.")
        self._keep(list(zip(self._state_cells, self._state.values(value), strict=True)))

    # Random numbers.

    def key(self) -> jax.Array:
        """A random key that is new in each call; of several replicas each gets one of its own.

        Raises:
          ArgumentError: the model was made without `rng`.
        """
        return self._own(self._next_key())

    def keys(self, examples: int) -> jax.Array:
        """One random key for each example, new in each call; in a replica function for each of the replica's examples.

        An example's key depends on its place in the whole batch, not on how many replicas share that. All replicas
        must call it, as in `jd.ReplicaContext.example_keys`.

        Args:
          examples: how many there are, such as `x.shape[0]`.

        Raises:
          ArgumentError: the model was made without `rng`.
        """
        key, replica = self._next_key(), _several()
        if replica is not None:
            return replica.example_keys(key, examples)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(examples, dtype=jnp.int32))

    def _next_key(self) -> jax.Array:
        if not self._stream:
            raise ArgumentError("this jd.Model was made without random numbers. HINT: pass rng=jax.random.key(0).")
        key, count = self._stream
        number = count.variable.read_value()
        self._keep([(count, number + np.uint32(1))])
        return jax.random.fold_in(key.read(), number)

    def _own(self, key: jax.Array) -> jax.Array:
        replica = _several()
        return key if replica is None else replica.fold_in(key)

    # Training it.

    def minimize(
        self, loss: Callable[[*Ts], R], *args: *Ts, has_aux: bool = False, memory: int | str | None = None
    ) -> R:
        """Differentiates `loss(*args)` by the parameters and updates them; returns what `loss` does.

        In a replica function the losses of all replicas add up to the loss of the batch, as
        `jd.nn.compute_average_loss` has them.

        Args:
          loss: a function that uses this model, and returns a scalar, or `(scalar, aux)` with `has_aux`.
          args: its arguments.
          has_aux: whether it returns auxiliary data besides.
          memory: how much the backward pass may keep, such as `"12GiB"` or `"auto"`; see `jd.value_and_grad`.

        Source: `tf.keras.optimizers.Optimizer.minimize`.
        """
        differentiate = value_and_grad if self._scale is None else self._scale.value_and_grad
        self._copies = copies = []
        try:
            value, gradients = differentiate(loss, self, has_aux=has_aux, memory=memory)(*args)
        finally:
            self._copies = None
        if any(self._moving):
            warn_of_lost(self._kind, lost_in(copies, self._outline, self._moving))
        self.apply_gradients(gradients)
        return value

    def apply_gradients(self, gradients: Nest, reduce_op: ReduceOpLike | None = "SUM", **extra: Any) -> None:
        """Reduces gradients over the replicas and updates the parameters; see `jd.Optimizer.apply_gradients`.

        Args:
          gradients: what `jd.value_and_grad(loss, model)` gives: a nest like `parameters`.
          reduce_op: how they are reduced.
          extra: what the transformation takes besides, such as `value`.

        Raises:
          ArgumentError: the model has no optimizer, or the gradients are not one for each parameter.

        Source: `tf.keras.optimizers.Optimizer.apply_gradients`.
        """
        if self._optimizer is None:
            raise ArgumentError("this jd.Model has no optimizer. HINT: jd.Model(module, optax.adam(1e-3)).")
        warn_of_state(self._kind, gradients, self._moving)
        self._optimizer.apply_gradients(gradients, reduce_op, **extra)

    # Its arrays.

    def _values(self) -> list[Any]:
        """The present values, as the model is to have them."""
        values: list[Any] = []
        for cell in self._cells:
            value = cell.read()
            if cell.part.kind is Kind.KEY:
                value = self._own(value)
            elif cell.part.kind in _PARAMETERS and self._precision is not None:
                value = self._precision.to_compute(value)
            values.append(value)
        return values

    def _keep(self, changes: Sequence[tuple[_Cell, Any]]) -> None:
        """Writes values that code in the present context gave; on several replicas means travel together."""
        replica, context = _several(), Context.current()
        if replica is None:
            for cell, value in changes:
                cell.variable.assign(cell.stored(value))
            return
        for cell, _ in changes:
            if cell.part.kind not in _AGGREGATIONS and not cell.normalised:
                refuse(cell.variable.name, cell.part.kind.value, replica.num_replicas_in_sync)
        traced = context.executor.traced
        # As Python, each replica has numbers of its own: parameters are compared with their mean.
        means = [
            (cell, value)
            for cell, value in changes
            if cell.part.kind is Kind.STATISTIC or (cell.normalised and not traced)
        ]
        # All in one collective, whatever the number of layers that keep statistics.
        exact = CommunicationOptions(wire="float32")
        reduced = replica.all_reduce(ReduceOp.MEAN, [_checked(cell.variable, value) for cell, value in means], exact)
        for (cell, value), mean in zip(means, reduced, strict=True):
            if cell.normalised and not jnp.allclose(value, mean, 100 * jnp.finfo(mean.dtype).eps, 0, equal_nan=True):
                refuse(cell.variable.name, cell.part.kind.value, replica.num_replicas_in_sync)
            context.executor.standpoint.store(context.executor, cell.variable, mean.astype(cell.variable.dtype))
        for cell, value in changes:
            alike = cell.part.kind is Kind.ALIKE
            if traced and (alike or cell.normalised):  # that they are alike is checked in the program
                context.executor.standpoint.store(context.executor, cell.variable, _checked(cell.variable, value))
            elif alike:
                cell.variable.assign(value)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One array of a model, and the variable that keeps it.

    Attributes:
      part: the array as it was, without its value.
      path: its path, for checkpoints.
      variable: its variable; of random keys their data.
      implementation: of random keys their kind, else None.
      normalised: True if it is a parameter, and the replicas have made a new value of it and its like alone.
    """

    part: Part
    path: tuple[str, ...]
    variable: Variable
    implementation: Any
    normalised: bool = False

    def read(self) -> Any:
        """The present value."""
        value = self.variable.read_value()
        return value if self.implementation is None else jax.random.wrap_key_data(value, impl=self.implementation)

    def stored(self, value: Nest) -> Any:
        """The array that the variable keeps of a value."""
        return value if self.implementation is None else jax.random.key_data(value)


def _warn_of_own_types(kind: str, modules: Sequence[str], precision: Policy) -> None:
    if modules:
        Callers.warn(
            f"{', '.join(modules)} of the {kind} compute in float32 or longer, whatever precision says, and so does "
            f"all that uses their results. HINT: make them with dtype={precision.compute}, nnx.Embed above all."
        )


def _made(parts: Sequence[Part], prefix: str, key: jax.Array | None) -> list[_Cell]:
    """Makes the variables of parts; of abstract ones zeros, and random keys from `key`."""
    cells: list[_Cell] = []
    for number, part in enumerate(parts):
        value, implementation = part.value, None
        if is_key(value):
            # Variables hold numbers: of a key they keep the data, and the kind beside it.
            value, implementation = _concrete(part, number, key)
        elif isinstance(value, jax.ShapeDtypeStruct):
            value = np.zeros(value.shape, value.dtype)
        variable = Variable(
            value,
            part.kind is Kind.PARAMETER,
            prefix + part.name,
            aggregation=_AGGREGATIONS.get(part.kind, VariableAggregation.NONE),
        )
        head = (prefix.rstrip("/"),) if prefix else ()
        path = (*head, *map(str, part.path))
        cells.append(_Cell(Part(part.path, None, part.kind), path, variable, implementation))
    return cells


def _concrete(part: Part, number: int, key: jax.Array | None) -> tuple[Any, Any]:
    """The data and the kind of random keys."""
    value = part.value
    if isinstance(value, jax.ShapeDtypeStruct):
        if key is None:
            raise ArgumentError(f"{part.name} is an abstract random key. HINT: pass rng=, from which it is made.")
        value = jax.random.split(jax.random.fold_in(key, number), value.shape)
    return jax.random.key_data(value), jax.random.key_impl(value)


def _key(rng: Leaf) -> jax.Array | None:
    if rng is None or is_key(rng):
        return rng
    if isinstance(rng, (int, np.integer)):
        return jax.random.key(int(rng))
    raise ArgumentTypeError(
        f"rng is {rng!r} of type {type(rng).__name__}. HINT: pass a seed, or a key of jax.random.key."
    )


def _stream(key: jax.Array) -> list[Part]:
    return [Part(("key",), key, Kind.FIXED), Part(("count",), np.zeros((), np.uint32), Kind.ALIKE)]


def _several() -> ReplicaContext | None:
    """The context of one replica of several."""
    replica = Context.current().replica
    return replica if replica is not None and replica.num_replicas_in_sync > 1 else None


def _checked(variable: Variable, value: ArrayLike) -> jax.Array:
    """An array of the variable's shape and dtype, from a value whose type fits.

    Raises:
      VariableError: it does not.
    """
    array = jnp.asarray(value)
    if array.shape != variable.shape or not (array.dtype == variable.dtype or array.weak_type):
        raise VariableError(
            f"{variable.name} of shape {variable.shape} and dtype {variable.dtype} was given a value of shape "
            f"{array.shape} and dtype {array.dtype}. HINT: a jd.Model keeps the shapes and dtypes of its arrays."
        )
    return array.astype(variable.dtype)


def _call(model: Nest, *args: Nest, **kwargs: Nest) -> Any:
    return model(*args, **kwargs)
