"""`Optimizer`: an Optax transformation applied to variables under any strategy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.execution.nests import variables_in
from jaxtribute._src.core.execution.worker_programs import compared
from jaxtribute._src.core.optimizer.accumulation import Accumulation, make_accumulation
from jaxtribute._src.core.optimizer.call import Call
from jaxtribute._src.core.optimizer.extras import Extras, check_cycle, check_taken, uses_value
from jaxtribute._src.core.optimizer.gradients import Targets, for_examples, listed, names_of
from jaxtribute._src.core.optimizer.hyperparameters import of_replica, plain, settable
from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.optimizer.slots import Slots, make_slots, optax_rules
from jaxtribute._src.core.optimizer.updates import (
    LossScale,
    Update,
    as_cut,
    guarded_update,
    reduce_to_slices,
    sliced_update,
)
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.types import Nest
from jaxtribute._src.core.values.enums import ReduceOp, ReduceOpLike, reduction_of
from jaxtribute._src.core.values.slices import Cut
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError, StrategyMixError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.strategies.base import Strategy


class Optimizer:
    """Updates variables by an Optax transformation; its slots are variables beside those that it updates.

    The same call works under every strategy: in a replica function `apply_gradients` first reduces the
    gradients over the replicas.

    Args:
      transform: any `optax.GradientTransformation`, such as `optax.adam(1e-3)`.
      variables: the variables to update, all of one strategy: a nest, in whose structure the transformation sees
        parameters, gradients and its state. A `jd.Model` stands for its parameters.
      shard_update: whether each replica updates one slice of the large variables and holds the slots of that
        slice only, so that the slots take `1 / replicas` of the memory on each device. The gradients are
        reduce-scattered and the new values gathered. `"auto"` shards variables of 1 MiB and more over 4 replicas and
        more, if it is not slower: not between processes on CPUs. The result is the same for every transformation;
        those that mix the elements of an array (other than by a reduction of all of them, as in a norm) gather their
        slots for the computation.
      accumulate_steps: how many calls of `apply_gradients` make one update. The others only add up each
        replica's own gradients: no replica waits for another until the last call of a cycle reduces the sums. An
        update is what one call with the examples of all would have done. `FullyShardedStrategy` reduce-scatters
        in each call and adds up slices, and `CentralStorageStrategy` reduces in each call, so that no device
        holds more than it would without accumulation.
      accumulate_op: MEAN where the calls' losses are each divided by the size of their own batch, SUM where they are
        divided by that of the whole cycle.
      loss_scale: the loss scale of mixed precision; see `jd.precision`. Updates by gradients that are not finite are
        left out.
      wrt: the part of `variables` that gradients are given for, a nest; by default all. `optax.lookahead` updates
        `optax.LookaheadParams(fast, slow)` by the gradients of `fast`.

    Raises:
      ArgumentError: no variables, or one twice; an unknown `shard_update`; `accumulate_steps` below 1; `wrt` that are
        not among the variables.
      ArgumentTypeError: `transform` is no Optax transformation.
      StrategyMixError: variables of different strategies.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> with strategy.scope():
      ...     w = jd.Variable(1.0)
      ...     optimizer = jd.Optimizer(optax.sgd(0.1), [w])
      >>> def step():
      ...     gradients = jd.grad(lambda: w * w, [w])()
      ...     optimizer.apply_gradients(gradients, reduce_op="MEAN")
      >>> strategy.run(step)
      >>> round(float(w), 6)
      0.8

    Source: `tf.keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        transform: optax.GradientTransformation,
        variables: Any,
        *,
        shard_update: bool | Literal["auto"] = "auto",
        accumulate_steps: int = 1,
        accumulate_op: Literal["MEAN", "SUM"] = "MEAN",
        loss_scale: LossScale | None = None,
        wrt: Any = None,
    ) -> None:
        _check_transform(transform)
        self._transform = transform
        self._variables, tree = variables_in(variables)
        _check_variables(self._variables)
        self._parameters = Parameters.of(self._variables, tree)
        of_gradients = variables if wrt is None else wrt
        differentiated, gradients = variables_in(of_gradients)
        _check_wrt(differentiated, self._variables)
        self._targets = Targets(differentiated, gradients, listed(of_gradients))
        self._strategy: Strategy = self._variables[0].distribute_strategy
        self._mesh = self._strategy.extended.mesh
        self._slots: Slots
        self._sliced: dict[int, Cut]
        self._accumulation: Accumulation | None = None
        self._rows: Any = None
        cycle = settings.whole("accumulate_steps", accumulate_steps, 1)
        op = settings.member("accumulate_op", accumulate_op, ReduceOp)
        reduction_of(op)
        self.remote: Any = self._strategy.extended.remote_optimizer(transform, self.nest)
        """The updater of variables of other processes; None if this object updates the variables."""
        if self.remote is not None:
            self._slots, self._sliced = self.remote.slots, {}
            self._state = self._slots.variables
            _check_remote(self._strategy, accumulate_steps=cycle if cycle > 1 else None, loss_scale=loss_scale, wrt=wrt)
            return
        if shard_update not in (True, False, "auto"):
            raise ArgumentError(f"shard_update is {shard_update!r}. HINT: pass True, False or 'auto'.")
        # A variable that is stored in pieces is updated in them, whatever was chosen.
        stored = {i: v.policy.cut for i, v in enumerate(self._variables) if v.policy.cut is not None}
        shared = [Slots.shared_out(v.policy, v.shape, v.dtype, shard_update) for v in self._variables]
        cuts = {i: cut for i, cut in enumerate(shared) if cut is not None} | stored
        self._slots = make_slots(transform, self._variables, self._parameters, cuts, shard_update)
        # A variable that is stored whole and has no slots of its shape has nothing to shard.
        self._sliced = {i: cut for i, cut in cuts.items() if i in stored or i in self._slots.owners}
        places = {variable: i for i, variable in enumerate(self._variables)}
        of_grads = enumerate(places[variable] for variable in differentiated)
        self._sliced_grads = {k: self._sliced[i] for k, i in of_grads if i in self._sliced}
        self._update = _whole_update(transform, self._slots, self._parameters, gradients)
        table = next((variable for variable in self._variables if variable.policy.by_rows), None)
        if table is not None:
            options = {"accumulate_steps": cycle if cycle > 1 else None, "wrt": wrt}
            self._rows = table.policy.row_updates(self, self._update, self._parameters, self._slots, options)
        self._state = self._slots.variables
        if loss_scale is not None:
            self._update = guarded_update(self._update, loss_scale)
            self._state = (*self._state, *loss_scale.variables)
        # Without donation: the old arrays may be in the user's hands, who has read them.
        self._eager_update = jax.jit(compared(self._update, "an optimizer's update", self._mesh))
        if cycle > 1:
            # A cycle of one call needs no sums: it is the update itself.
            shapes = gradients.unflatten([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in differentiated])
            value = uses_value(transform, self._parameters, shapes)
            self._accumulation = make_accumulation(self._strategy, differentiated, cycle, op, value=value)

    @property
    def transform(self) -> optax.GradientTransformation:
        """The Optax transformation."""
        return self._transform

    @property
    def variables(self) -> tuple[Variable, ...]:
        """State that a checkpoint keeps besides the variables themselves: slots, loss scale, accumulated gradients."""
        return (*self._state, *getattr(self._accumulation or self._rows, "variables", ()))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that the optimizer updates."""
        return self._variables

    @property
    def nest(self) -> Any:
        """The variables that the optimizer updates, in the nest that the transformation sees."""
        return self._parameters.nest(self._variables)

    @property
    def state(self) -> Any:
        """The slots as the nest that the Optax transformation's `init` returns; assign a nest of new values.

        The nest is made again each time: what is put into it changes nothing before it is assigned, but for
        hyperparameters, `optimizer.state.hyperparams["learning_rate"] = 0.1`. Any slot can be assigned by itself.

        Raises:
          ShapeError: (when assigned) another structure or shape.
        """
        # By way of `variables`, which brings tables' rows up to the present step.
        state = self._slots.tree.unflatten(self.variables[: len(self._slots.variables)])
        context = contexts.current()
        of_one = self._mesh.size > 1 and context.replica is not None and not context.strategy.is_default
        return settable(of_replica(state) if of_one else state)

    @state.setter
    def state(self, value: Nest) -> None:
        for variable, new in zip(self.variables, self._slots.values_in(plain(value)), strict=False):
            if new is not variable:
                variable.assign(new)

    def __repr__(self) -> str:
        names = ", ".join(names_of(self._variables))
        cycle = "" if self._accumulation is None else f", {self._accumulation.steps} calls an update"
        slots = len(self._slots.variables)
        return f"<jd.Optimizer of {names}; {slots} slots, {len(self._sliced)} variables sharded{cycle}>"

    def apply_gradients(self, grads_and_vars: Any, reduce_op: ReduceOpLike | None = "SUM", **extra: Any) -> None:
        """Reduces gradients over the replicas and updates the variables; with `accumulate_steps`, now and then.

        All replicas must call it. In cross-replica context per-replica gradients are reduced and all others
        taken as they are.

        Args:
          grads_and_vars: gradients in the variables' nest or a list of them in its order, or pairs of a gradient and
            its variable in any order; one for every variable. If all have an axis more than their variables, in front,
            they are gradients for each example, as `optax.contrib.dpsgd` takes them: those of all replicas are
            gathered.
          reduce_op: SUM (losses are divided by the global batch size), MEAN, or None for gradients that are
            reduced already and equal on all replicas.
          extra: what the transformation takes besides (`optax.GradientTransformationExtraArgs`). `value` and `grad`,
            the replica's own loss and gradients, are reduced as the gradients are, and so is what functions such as
            `value_fn` return. All else is handed on as it is; arrays must be the same on all replicas, or be for such
            a function. With `accumulate_steps` losses are added up as gradients are, and `grad` and functions refused.

        Raises:
          ArgumentError: a gradient is missing, None or one too many, or in another nest than its variable; the
            transformation takes nothing besides gradients; an argument that cannot be given under this strategy or with
            `accumulate_steps`.
          ShapeError: a gradient is not shaped as its variable.
          VariableError: an array in `extra` differs between replicas.

        Source: `tf.keras.optimizers.Optimizer.apply_gradients`.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)
        check_taken(self._transform, extra)
        grads = self._targets.ordered(grads_and_vars)
        context = contexts.of(self._strategy)
        if self._rows is not None and not context.executor.traced:
            self._rows.apply_eagerly(grads, reduce_op, extra, context)
            return
        examples = for_examples(grads, self._targets.variables)
        if self.remote is not None:
            _check_remote(self._strategy, gradients_for_each_example=examples or None, **extra)
            self.remote.apply(grads, context)
            return
        if self._accumulation is not None:
            check_cycle(self._accumulation.steps, extra, examples=examples)
            if not self._accumulation.of_values:
                extra.pop("value", None)  # which the transformation would not look at
        extras = Extras.of(extra)
        grads.extend(extras.reduced)
        call = Call(context, extras, len(self._targets.variables), op)
        if examples:
            grads, op = call.gathered(grads)
        executor = context.executor
        executor.standpoint.apply(executor, grads, op, partial(self._apply, call), extras.others)

    def _apply(self, call: Call, grads: list[Any], op: ReduceOp | None, others: Sequence[Any]) -> None:
        """Updates by gradients as the code that runs has them, or adds them to the sums of a cycle."""
        context = contexts.of(self._strategy)
        accumulation = self._accumulation
        others = call.others(others, grads, context)
        if accumulation is None:
            # Sums of a cycle take gradients as they are: most are reduced when the cycle ends.
            grads, op = context.executor.standpoint.reducible(self._strategy, grads, op)

        def update(executor: Executor) -> None:
            within = context._replace(executor=executor)
            if accumulation is None:
                self._keep(self._updated(call, grads, op, self._held(within), within, others), within)
            else:
                self._add(accumulation, call, grads, op, within, others)

        context.executor.together(update)

    def _add(
        self,
        accumulation: Accumulation,
        call: Call,
        grads: Sequence[Any],
        op: ReduceOp | None,
        context: contexts.Context,
        others: Sequence[Any],
    ) -> None:
        executor, several = context.executor, self._mesh.size > 1
        # Sums that each replica has made of its own gradients are still to be reduced at the end of a cycle.
        rows = ReduceOp.SUM if executor.local and several and accumulation.in_parts else None

        def finish(sums: list[Any], held: list[Any]) -> tuple[list[Any], list[Any]]:
            cycle = accumulation.cycle(sums, context)
            return list(map(jnp.zeros_like, sums)), self._updated(call, cycle, rows, held, context, others)

        sums, held = accumulation.added(grads, op, context), self._held(context)
        calls = executor.get(accumulation.count) + np.int32(1)
        last = calls >= np.int32(accumulation.steps)
        if executor.traced:
            # Whether it is the last call is known when the program runs. All replicas count alike, so they come to the
            # collectives inside together.
            sums, held = lax.cond(last, finish, lambda sums, held: (sums, held), sums, held)
            self._keep(held, context)
        elif last:
            sums, held = finish(sums, held)
            self._keep(held, context)
        for entry, total in zip(accumulation.sums, sums, strict=False):
            executor.set(entry.variable, total)
        # From zero again at the end: the number never outgrows its 32 bits.
        executor.set(accumulation.count, jnp.where(last, jnp.zeros_like(calls), calls))

    def _in_slices(self, context: contexts.Context) -> bool:
        """True if one replica's program updates slices."""
        return bool(self._sliced) and context.executor.local

    def _held(self, context: contexts.Context) -> list[Any]:
        """The arrays of the variables and their slots: as they are stored, or whole."""
        variables = (*self._variables, *self._state)
        if self._in_slices(context):
            # The pieces as they are stored: nothing is gathered for an update in slices.
            return list(map(context.executor.get, variables))
        executor = context.executor
        return [executor.standpoint.whole(executor, variable) for variable in variables]

    def _keep(self, arrays: Sequence[Any], context: contexts.Context) -> None:
        """Stores what `_updated` made of what `_held` gave."""
        in_slices = self._in_slices(context)
        for variable, value in zip((*self._variables, *self._state), arrays, strict=True):
            if in_slices:
                context.executor.set(variable, value)
            else:
                context.executor.standpoint.store(context.executor, variable, value)

    def _updated(
        self,
        call: Call,
        grads: Sequence[Any],
        op: ReduceOp | None,
        held: Sequence[Any],
        context: contexts.Context,
        others: Sequence[Any],
    ) -> list[Any]:
        """The new arrays of the variables and their slots, from those that `_held` gave."""
        count, replicas, wrt = len(self._variables), self._mesh.size, self._targets.variables
        # Gradients that are reduced already have left the idle replicas out.
        idle = () if op is None else context.executor.idle
        update = call.bound(self._update, others)
        if self._rows is not None:
            return self._rows.updated(update, grads, op, held, self._sliced, context)
        if self._in_slices(context):
            variables = (*self._variables, *self._state)
            pieces = [as_cut(array, variable.policy.cut) for array, variable in zip(held, variables, strict=True)]
            reduced = reduce_to_slices(grads, self._sliced_grads, replicas, op, idle)
            return sliced_update(update, self._sliced, reduced, pieces[count:], pieces[:count])
        if op is not None:
            # All in one call: small gradients share collectives, and the losses of the step travel along.
            summation = self._strategy.extended.summation(None)
            grads = context.executor.reduce_gradients(grads, op, replicas, summation)
        # A central variable is updated where it is stored, so its gradient goes there first.
        admits = [variable.policy.admit for variable in wrt]
        admits += [admits[0]] * (len(grads) - len(admits))
        grads = [admit(grad) for admit, grad in zip(admits, grads, strict=True)]
        values, params = list(held[count:]), list(held[:count])
        if context.executor.traced:
            return update(grads, values, params)
        # It reads no variables, and should not be compiled again because other code does.
        with traced_reads.steady():
            if call.compiled_once:
                return self._eager_update(grads[: len(wrt)], values, params, call.named(grads, others))
            return jax.jit(update)(grads, values, params)


def _check_wrt(wrt: Sequence[Any], variables: Sequence[Variable]) -> None:
    strangers = [str(getattr(v, "name", v)) for v in wrt if not any(v is variable for variable in variables)]
    if strangers or not wrt:
        raise ArgumentError(
            f"wrt holds {strangers or 'nothing'}, not variables of the optimizer. HINT: pass a part of the nest given "
            "as variables, such as params.fast."
        )


def _check_remote(strategy: Strategy, **options: Any) -> None:
    refused = {name: value for name, value in options.items() if value is not None}
    if refused:
        raise ArgumentError(
            f"{strategy!r} applies the gradients of each call where its variables are, and nothing else: "
            f"{', '.join(f'{name}={value!r}' for name, value in refused.items())} is not for it. HINT: leave it out."
        )


def _check_transform(transform: Any) -> None:
    if not all(callable(getattr(transform, name, None)) for name in ("init", "update")):
        raise ArgumentTypeError(
            f"transform is {transform!r} of type {type(transform).__name__}. "
            "HINT: pass an Optax transformation, e.g. optax.adam(1e-3)."
        )


def _check_variables(variables: Sequence[Variable]) -> None:
    if not variables or not all(isinstance(variable, Variable) for variable in variables):
        kinds = sorted({type(variable).__name__ for variable in variables})
        raise ArgumentError(
            f"variables holds {kinds or 'nothing'}. HINT: jd.Optimizer updates jd.Variables; for plain arrays call the "
            "Optax transformation itself."
        )
    if len(set(variables)) < len(variables):
        raise ArgumentError(f"a variable is listed twice among {names_of(variables)}. HINT: list each variable once.")
    # One update is one program, which runs on one set of replicas.
    first = variables[0].distribute_strategy
    for variable in variables:
        if variable.distribute_strategy is not first:
            raise StrategyMixError(
                f"{variable.name} belongs to {variable.distribute_strategy!r}, {variables[0].name} to {first!r}. "
                "HINT: create all variables of an optimizer in one scope."
            )


def _whole_update(
    transform: optax.GradientTransformation, slots: Slots, parameters: Parameters, gradients: Any
) -> Update:
    """The transformation's update as a function of flat lists.

    Args:
      transform: the transformation, which sees parameters and gradients in the user's nest.
      slots: its state.
      parameters: the nest of the parameters.
      gradients: the structure of the gradients: the same, or that of some of the parameters.
    """

    def update(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any], extra: dict[str, Any]) -> list[Any]:
        nest = parameters.nest(params)
        with optax_rules():
            updates, state = transform.update(gradients.unflatten(grads), slots.state(values), nest, **extra)
            # Under these rules as well: an update may have another dtype than its parameter.
            fresh = parameters.tree.flatten_up_to(optax.apply_updates(nest, updates))
        parameters.check_shapes(fresh, params)
        return [*fresh, *Slots.arrays_of(state)]

    return update
