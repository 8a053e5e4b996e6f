"""Keras variables whose values a strategy stores."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import jax
import keras
import numpy as np

from jaxtribute import Variable, VariableAggregation
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.apart import apart_of
from jaxtribute._src.addons.keras.custom_loops import own_replica, write
from jaxtribute._src.addons.keras.internals import KerasModel, KerasVariable
from jaxtribute._src.addons.keras.merging import SEED, moved_seed
from jaxtribute._src.addons.keras.share import current
from jaxtribute.errors import VariableError
from jaxtribute.extending import Context, Eager
from jaxtribute.typing import Array, Foreign, Leaf

if TYPE_CHECKING:
    from jaxtribute import Strategy


_AVERAGE = "_average"
"""The end of the names of optimizers' moving averages of weights."""


class StrategyVariable(keras.Variable):
    """A Keras variable made in a strategy's scope: a `jd.Variable` holds its value.

    Keras keeps a variable's array in `_value`; here that reads and assigns the `jd.Variable`, which knows where the
    array lies and which replica asks.
    """

    strategy: Strategy
    _stored: Variable | None = None
    of_optimizer: bool = False
    """True for an optimizer's."""
    _read: Foreign = None
    """The value while one worker alone writes it to a file, if other workers hold parts of it."""

    def assign(self, value: Leaf) -> Any:
        """Gives the variable a new value.

        Raises:
          VariableError: it is a metric's, and what a layer's `call` writes to it would be lost.
        """
        share = current()
        if share is not None and id(self) in share.metrics and internals.is_lost(self):
            raise VariableError(
                f"the metric variable {self.path} is updated where Keras's step on JAX keeps no metric's state, "
                "such as in a layer's call: its value would be lost. HINT: update the metric in the model's "
                "compute_loss or compute_metrics, or pass it to compile(metrics=...)."
            )
        return super().assign(value)

    @property
    def stored(self) -> Variable:
        """The variable that holds the value.

        Raises:
          AttributeError: Keras has not given it a value yet.
        """
        if self._stored is None:
            raise AttributeError(f"the Keras variable {self.path} has no value yet. HINT: build the model first.")
        return self._stored

    @property
    def _value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._stored is None:
            return None
        value = self._stored.read_value() if self._read is None else self._read
        number = self._own_number() if self.name == SEED else 0
        return value if isinstance(number, int) and number == 0 else moved_seed(value, number)

    @_value.setter
    def _value(self, value: Leaf) -> None:
        # Keras sets None for a variable whose value is to come.
        if self._stored is not None:
            if value is not None and self._is_remote() and in_step():
                self.send(self._value, value)
            elif value is not None:
                write(self, value)
        elif value is not None:
            self._stored = self._made(value)

    def numpy(self) -> Any:
        """The value on the host; on devices that are only described, the array that describes it."""
        return self.value if self.strategy.extended.mesh.described else super().numpy()

    def send(self, old: Array, new: Array) -> None:
        """Sends parameter servers what a step has made of a value, which other workers may have changed meanwhile."""
        stored: Any = self.stored
        if self.aggregation == "only_first_replica":
            stored.assign(new)  # what all workers write alike
        else:
            stored.move(old, new)

    def _own_number(self) -> Any:
        """The number of the worker, or of the replica of a custom loop: each draws random numbers of its own."""
        if self._is_remote():
            return worker_index() or 0
        replica = own_replica()
        return 0 if replica is None else replica.replica_id_in_sync_group

    def _is_remote(self) -> bool:
        return self._stored is not None and self._stored.policy.remote

    def _made(self, value: Leaf) -> Variable:
        if on_servers(self.strategy) and worker_index() is not None:
            raise VariableError(
                f"the Keras variable {self.path} is created in a function that runs on a worker. HINT: build the "
                "model on the coordinator, in strategy.scope(): begin it with keras.Input, or call it once; make "
                "metrics, and layers with state such as Dropout, there, too."
            )
        executor = Context.current().executor
        with Context.entered(Context(self.strategy, None, executor)):
            # What replicas write has been brought together by then, as Keras's own rules say.
            first = VariableAggregation.ONLY_FIRST_REPLICA
            layout = self._layout_as_slot() if self.strategy.extended.mesh.group else None
            made = Variable(value, trainable=self.trainable, name=self.path, aggregation=first, layout=layout)
            made.derived = layout is not None
            made.followers = weakref.WeakSet()
            self.of_optimizer = self.of_optimizer or internals.made_by_optimizer()
            apart = apart_of(self.strategy)
            if apart is not None:
                me = weakref.ref(self)
                apart.tell(made, lambda: _role(me()))
            return made

    def role(self) -> tuple[bool, VariableAggregation]:
        """True if the variable learns, and how its values become one where islands that have trained alone meet."""
        if self.overwrite_with_gradient:  # what rows and weights are like, such as a scale
            return False, VariableAggregation.MEAN
        if self.trainable or self.aggregation not in (None, "none"):
            return self.trainable, VariableAggregation[(self.aggregation or "none").upper()]
        # Slots stay an island's own, and frozen weights as they are. Statistics of layers become means.
        averaged = self.name.endswith(_AVERAGE) if self.of_optimizer else not self.stored.trainable
        mean = averaged and np.issubdtype(self.stored.dtype, np.inexact)
        return False, VariableAggregation.MEAN if mean else VariableAggregation.NONE

    @property
    def trainable(self) -> bool:
        """True if optimizers are to update it; a `jd.function` that was traced with the other value is traced again."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        if bool(value) != self._trainable:
            tell_followers([self], (self._stored, "trainable"))
        self._trainable = bool(value)

    def _layout_as_slot(self) -> tuple[Any, ...] | None:
        """The layout of the variable that an optimizer's variable belongs to; the empty one if that is none of ours."""
        if not internals.made_by_optimizer():
            return None
        owner = internals.owner_of_slot(self.name, tuple(self.shape))
        return owner.stored.policy.layout if isinstance(owner, StrategyVariable) else ()


def _role(variable: StrategyVariable | None) -> tuple[bool, VariableAggregation]:
    return (False, VariableAggregation.NONE) if variable is None else variable.role()


@contextmanager
def read_by_all(variables: Iterable[KerasVariable], peers: Foreign) -> Generator[None]:
    """Reads the variables of which other workers hold parts, as all do together; then each may read them alone.

    Args:
      variables: those of a strategy, and others.
      peers: the strategy's workers.

    Raises:
      ClusterError: another worker is known to be in another call.
    """
    parts = [
        variable
        for variable in variables
        if isinstance(variable, StrategyVariable)
        and variable._stored is not None  # pyright: ignore[reportPrivateUsage]
        and (variable.stored.policy.cut is not None or variable.stored.policy.by_rows)
    ]
    if parts and peers is not None:
        peers.exchange("the values of a Keras model in slices", "")
    try:
        for variable in parts:
            variable._read = np.asarray(variable.stored.read_value())  # pyright: ignore[reportPrivateUsage]
        yield
    finally:
        for variable in parts:
            variable._read = None  # pyright: ignore[reportPrivateUsage]


def tell_followers(variables: Iterable[KerasVariable], change: Hashable) -> None:
    """Tells the functions that were traced with some of the variables of a change, once; see `Function.turn`."""
    followers: set[Any] = set()
    for variable in variables:
        if isinstance(variable, StrategyVariable) and variable._stored is not None:  # pyright: ignore[reportPrivateUsage]
            followers.update(variable.stored.followers or ())
    for function in followers:
        function.turn(change)


def rebuilt(original: Callable[..., Any], layer: KerasModel, variable: KerasVariable) -> None:
    """Gives a variable to a layer, or takes it away; of a layer that is built functions may have been traced before."""
    if vars(layer).get("built"):  # LoRA adds variables, and quantization exchanges them
        tell_followers([*layer.variables, variable], object())
    original(layer, variable)


class PlainValue:
    """The attribute `_value` of Keras variables that no strategy stores.

    In a function that is traced, or that replicas run, such a variable becomes one of the strategy in force, the
    default one included: a program takes its value as an input, and gives a new one where the function assigns it.
    """

    def __get__(self, variable: KerasVariable, owner: type[Any] | None = None) -> Any:
        if variable is None:
            return self
        value = vars(variable).get("_value")
        if value is not None and _tracked():
            joined(variable)
            return variable._value  # as `StrategyVariable` gives it: a seed is each replica's own
        return value

    def __set__(self, variable: KerasVariable, value: Leaf) -> None:
        known = vars(variable).get("_value")
        if known is not None and value is not None:
            _check_copy(variable)
        if known is None or value is None or not _tracked():
            vars(variable)["_value"] = value
            return
        joined(variable)
        variable._value = value  # which `StrategyVariable` takes from now on


def _check_copy(variable: KerasVariable) -> None:
    """Refuses to change a plain variable where others would go on with the value of before.

    Raises:
      VariableError: it is a copy on a worker, or workers have copies of it, or a step under parameter servers runs.
    """
    apart = on_servers(Context.current().strategy) and in_step()
    # Generators may draw apart where data are made: nobody expects the numbers of another process.
    if apart or (vars(variable).get(internals.SENT) and variable.name != SEED):
        raise VariableError(
            f"the Keras variable {variable.path} was not made in the scope of the ParameterServerStrategy, and is "
            "changed while functions on workers have a copy of it, which would keep its value. HINT: make the layer or "
            "metric in `with strategy.scope():`."
        )


def in_step() -> bool:
    """True in a function that is traced, differentiated, run by a replica or by a worker."""
    context = Context.current()
    return type(context.executor) is not Eager or context.replica is not None or worker_index() is not None


def worker_index() -> int | None:
    """The number of the worker of parameter servers that the calling thread is; None elsewhere."""
    module = sys.modules.get("jaxtribute._src.addons.parameter_servers.scheduling.worker_task")
    return None if module is None else module.experimental_get_current_worker_index()


def _tracked() -> bool:
    """True in a function that is traced or differentiated, or that several replicas run."""
    context = Context.current()
    return (type(context.executor) is not Eager or own_replica() is not None) and not on_servers(context.strategy)


def joined(variable: KerasVariable) -> Variable:
    """The variable that holds a Keras variable's value; one that has none yet gets it of the strategy in force."""
    adopt(variable, Context.current().strategy)
    return variable.stored


def by_path(layer: Foreign) -> Any:
    """The variables of a layer or model that are trained, in dictionaries by the parts of their paths.

    Raises:
      VariableError: two of them have one path.
    """
    nest: dict[str, Any] = {}
    for variable in layer.trainable_variables:
        *scopes, name = variable.path.split("/")
        inner = nest
        for scope in scopes:
            inner = inner.setdefault(scope, {})
        if name in inner:
            raise VariableError(
                f"two trained variables of {layer.name} have the path {variable.path}. HINT: name their layers, or "
                "pass a nest of variables of your own in place of the model."
            )
        inner[name] = variable
    return nest


def new_variable(_: object, cls: type[Any], *__: object, **___: object) -> Any:
    """`keras.Variable.__new__`: in a strategy's scope a variable is a `StrategyVariable`."""
    strategy = Context.current().strategy
    # Slots that an optimizer makes under parameter servers stay plain: the servers make their own from its description.
    if cls is not keras.Variable or strategy.is_default or (on_servers(strategy) and internals.made_by_optimizer()):
        return object.__new__(cls)
    variable = object.__new__(StrategyVariable)
    variable.strategy = strategy
    return variable


def on_servers(strategy: Strategy) -> bool:
    """True if a strategy is a `ParameterServerStrategy`."""
    module = sys.modules.get("jaxtribute._src.addons.parameter_servers.strategy")
    return module is not None and isinstance(strategy, module.ParameterServerStrategy)


def is_on_servers(variable: object) -> bool:
    """True if parameter servers hold a Keras variable's value."""
    return isinstance(variable, StrategyVariable) and on_servers(variable.strategy)


def shards(variables: Iterable[KerasVariable]) -> list[Any]:
    """Returns variables with each that a `variable_partitioner` has split replaced by its shards, in order of rows.

    In TensorFlow `layer.weights` lists the shards. Here a layer's variable is one, whatever the servers do: in Keras 3
    the layer computes with it, gradients are by it, and `trainable_weights`, `get_weights` and `set_weights` are made
    of `weights`.

    Args:
      variables: such as `layer.weights` of a model on parameter servers. Variables of other strategies, and plain
        ones, are returned as they are.

    Returns:
      Variables of parameter servers, with `shape`, `device`, `numpy` and `assign`.

    Source: `ShardedVariable.variables` of TensorFlow's `tf.distribute`.
    """
    found: list[Any] = []
    for variable in variables:
        if is_on_servers(variable):
            stored: Any = variable.stored
            found.extend(stored.variables if stored.layout.split else [stored])
        else:
            found.append(variable)
    return found


def keep_in(variable: KerasVariable, stored: Variable, strategy: Strategy) -> None:
    """Makes `stored` hold a Keras variable's value."""
    # An attribute of the object would hide the property of the class.
    variable.__dict__.pop("_value", None)
    # Layers, optimizers and metrics hold the object: it has to become another one in its place.
    variable.__class__ = StrategyVariable
    variable.strategy, variable._stored = strategy, stored


def adopt(variable: KerasVariable, strategy: Strategy) -> None:
    """Makes a Keras variable that was created outside every scope one of `strategy`'s, with the value that it has."""
    value: Any
    if isinstance(variable, StrategyVariable):
        if strategy.is_default or not variable.strategy.is_default:
            return
        with Context.entered(Context.outside()):
            value = variable.stored.read_value()  # the default strategy's, which a function had made it
        variable._stored = None  # pyright: ignore[reportPrivateUsage]
    elif type(variable) is keras.Variable:
        value = variable.__dict__.pop("_value")
        variable.__class__ = StrategyVariable
    else:
        return
    variable.strategy = strategy
    # Outside what is being traced: the variable was there before, and its value is an array.
    with Context.entered(Context.outside()), jax.ensure_compile_time_eval():
        cast("StrategyVariable", variable)._value = value  # pyright: ignore[reportPrivateUsage]
