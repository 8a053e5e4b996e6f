"""A Keras optimizer on parameter servers: an Optax transformation of it, and its variables beside those it updates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxtribute import Optimizer
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasOptimizer, KerasVariable
from jaxtribute._src.addons.keras.unpickling import rebuilt
from jaxtribute._src.addons.keras.variables import is_on_servers, keep_in
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Context
from jaxtribute.typing import Array, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy

_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


@dataclass(frozen=True)
class Parameter:
    """Properties of a variable that an optimizer asks for besides its value.

    Attributes:
      path: its name, behind those of its layers.
      constraint: what it is put through after an update, or None.
      overwritten: whether its gradient is its new value.
      decays: whether weight decay is for it.
    """

    path: str
    constraint: Any
    overwritten: bool
    decays: bool

    @classmethod
    def of(cls, variable: KerasVariable, optimizer: KerasOptimizer) -> Parameter:
        """Properties that `optimizer` asks of a Keras variable."""
        decays = internals.decays(innermost(optimizer), variable)
        return cls(variable.path, variable.constraint, bool(variable.overwrite_with_gradient), decays)

    @property
    def plain(self) -> bool:
        """True if its value is all that matters."""
        return self.constraint is None and not self.overwritten and self.decays


class KerasTransform:
    """The transformation.

    Where it is given all variables of the model, it knows them apart; on one of several servers, by shape alone.

    Args:
      optimizer: a Keras optimizer, which is copied.
      variables: the Keras variables that it updates.
    """

    def __init__(self, optimizer: KerasOptimizer, variables: Sequence[Any]) -> None:
        self._kind = type(optimizer)
        # Keras's own lists know the object that they are attributes of: it would travel along, with all its variables.
        self._config = {name: internals.untracked(value) for name, value in optimizer.get_config().items()}
        rate = internals.learning_rate(optimizer)
        # `get_config` gives it as a dictionary, which could be read back for Keras's own schedules alone.
        if callable(rate):  # a schedule, which may be the user's own
            self._config["learning_rate"] = rate
        # The worker clips, with all gradients at hand; clipped once more on a server, by part, they would change again.
        if clips_before(optimizer):
            self._config |= dict.fromkeys(_CLIPS)
        self._parameters = [Parameter.of(variable, optimizer) for variable in variables]

    def __reduce__(self) -> Any:
        # By a function that sets Keras's backend first: a server may not have imported Keras.
        return rebuilt, (cloudpickle.dumps((type(self), self.__dict__)),)

    @property
    def told_apart(self) -> list[str]:
        """The paths of the variables that must be known apart."""
        return [parameter.path for parameter in self._parameters if not parameter.plain]

    def init(self, params: Sequence[Any]) -> Any:
        """The first state: of each slot a list like that of the parameters, and what belongs to none of them.

        None stands for a parameter that another server has.
        """
        with _made_alone():
            optimizer, owners = self._built(params)
            return nested([variable.value for variable in optimizer.variables], owners)

    def update(self, grads: Sequence[Any], state: Nest, params: Sequence[Any] | None = None) -> tuple[list[Any], Any]:
        """The differences to the new parameters, and the new state."""
        params = list(params or ())
        with _made_alone():
            optimizer, owners = self._built(params)
            places = jax.tree.leaves(nested(range(len(owners)), owners))
            # A state lists slots parameter by parameter; Keras wants them in the order in which it made its variables.
            values: list[Any] = [None] * len(places)
            for place, leaf in zip(places, jax.tree.leaves(state), strict=True):
                values[place] = leaf
            new, values = optimizer.stateless_apply(values, *map(_present, (grads, params)))
        rest = iter(new)
        # Optax's rule is a difference. Computed from the new value, the sum gives that value but for rounding.
        changes = [None if old is None else jnp.asarray(next(rest)).astype(old.dtype) - old for old in params]
        return changes, nested(values, owners)

    def owners(self, params: Sequence[Any]) -> list[int | None]:
        """For each of the optimizer's variables the parameter that it belongs to and is shaped as, or None."""
        with _made_alone():
            return self._built(params)[1]

    def _built(self, params: Sequence[Any]) -> tuple[Any, list[int | None]]:
        """A copy of the optimizer for parameters of these shapes, and whom its variables belong to."""
        known = self._parameters if len(self._parameters) == len(params) else None
        with jax.ensure_compile_time_eval():
            optimizer = self._kind.from_config(dict(self._config))
            inner = innermost(optimizer)
            here = [i for i, param in enumerate(params) if param is not None]
            variables = [_stand_in(params[i], i, known[i] if known else None) for i in here]
            belonging = _watched(inner)
            if known:
                pairs = zip(variables, [known[i] for i in here], strict=True)
                internals.exclude_from_decay(inner, [variable for variable, parameter in pairs if not parameter.decays])
            optimizer.build(variables)
        index = {id(variable): i for i, variable in zip(here, variables, strict=True)}
        owners: list[int | None] = []
        for variable in optimizer.variables:
            owner = index.get(belonging.get(id(variable), 0))
            # A slot of another shape, such as Adafactor's rows and columns, cannot be cut as its parameter is.
            alike = owner is not None and tuple(variable.shape) == tuple(params[owner].shape)
            owners.append(owner if alike else None)
        return optimizer, owners


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def clips_before(optimizer: KerasOptimizer) -> bool:
    """True if gradients can be clipped where they are computed, as nothing happens to them between there and here."""
    plain = innermost(optimizer) is optimizer and not optimizer.gradient_accumulation_steps
    return plain and optimizer.loss_scale_factor is None and any(getattr(optimizer, clip, None) for clip in _CLIPS)


def innermost(optimizer: KerasOptimizer) -> Any:
    """The optimizer inside those that scale losses."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else innermost(inner)


def nested(values: Sequence[Any], owners: Sequence[int | None]) -> Any:
    """The values of an optimizer's variables as a state: `{"slots": [[...], ...], "shared": {...}}`."""
    slots: list[dict[int, Any]] = []
    shared: dict[str, Any] = {}
    seen: dict[int, int] = {}
    for value, owner in zip(values, owners, strict=True):
        if owner is None:
            shared[f"{len(shared):03}"] = value
            continue
        # A parameter's n-th slot goes into the n-th list, whatever order the optimizer made its variables in.
        depth = seen[owner] = seen.get(owner, -1) + 1
        if depth == len(slots):
            slots.append({})
        slots[depth][owner] = value
    # None stands for a parameter that lacks the slot.
    return {"shared": shared, "slots": [list(map(slot.get, range(max(slot) + 1))) for slot in slots]}


def _watched(optimizer: keras.optimizers.Optimizer) -> dict[int, int]:
    """Notes for each variable that an optimizer makes, by `id`, that of the variable that it is made beside."""
    belonging: dict[int, int] = {}
    original = optimizer.add_variable_from_reference

    def add_variable_from_reference(reference_variable: KerasVariable, *args: Leaf, **kwargs: Leaf) -> Any:
        made = original(reference_variable, *args, **kwargs)
        belonging[id(made)] = id(reference_variable)
        return made

    # Past Keras's own `__setattr__`, which looks at what becomes an attribute.
    object.__setattr__(optimizer, "add_variable_from_reference", add_variable_from_reference)
    return belonging


def _stand_in(param: Array, index: int, known: Parameter | None) -> Any:
    """A Keras variable of the same shape; its value does not matter."""
    path = known.path if known else f"parameter_{index}"
    *scopes, name = path.split("/")
    variable = keras.Variable(initializer="zeros", shape=param.shape, dtype=str(param.dtype), name=name)
    internals.set_path(variable, "/".join([*scopes, name]))
    if known is not None:
        variable.constraint = known.constraint
        variable.overwrite_with_gradient = known.overwritten
    return variable


@contextmanager
def _made_alone() -> Generator[None]:
    """Outside every scope of a strategy and of Keras's."""
    with Context.entered(Context.outside()):
        yield


_ATTRIBUTE = "_jaxtribute_on_servers"


@dataclass(frozen=True)
class Placed:
    """A Keras optimizer on the servers.

    Attributes:
      keys: the numbers of the variables that it updates.
      optimizer: applies gradients there.
    """

    keys: tuple[int, ...]
    optimizer: Optimizer


def placed(keras_optimizer: KerasOptimizer) -> Placed | str:
    """A Keras optimizer as it is on the servers, or why it is not there."""
    return keras_optimizer.__dict__.get(_ATTRIBUTE, "it was not there when the function was scheduled")


def place_optimizer(keras_optimizer: KerasOptimizer, variables: Sequence[Any] | str) -> bool:
    """Brings a Keras optimizer onto the servers of the variables that it updates; True if it was not there.

    Where that cannot be, the reason is kept, and told where gradients are applied: a function may only evaluate a
    model that has been compiled.

    Args:
      keras_optimizer: the optimizer.
      variables: the variables, or why they are not known.
    """
    before, reason = keras_optimizer.__dict__.get(_ATTRIBUTE), variables
    if not isinstance(variables, str):
        on_them = list(filter(is_on_servers, variables))
        if not on_them:
            return False
        try:
            # A function that is being traced would write the slots' first values in every step.
            with _made_alone(), jax.ensure_compile_time_eval():
                optimizer_on_servers(keras_optimizer, variables, on_them[0].strategy)
            return keras_optimizer.__dict__[_ATTRIBUTE] is not before
        except ArgumentError as error:
            reason = str(error)
    object.__setattr__(keras_optimizer, _ATTRIBUTE, reason)
    return reason != before


def keys_of(variables: Sequence[Any]) -> tuple[int, ...]:
    """The numbers by which the cluster knows variables on servers."""
    return tuple(variable.stored.description.key for variable in variables)


def optimizer_on_servers(keras_optimizer: KerasOptimizer, variables: Sequence[Any], strategy: Strategy) -> Optimizer:
    """Function that applies a Keras optimizer's gradients on the servers; it is built if it is not.

    The Keras optimizer's variables are what the servers keep from then on.

    Raises:
      ArgumentError: it asks more of variables than their values, and they are on several servers.
    """
    keys = keys_of(variables)
    known = placed(keras_optimizer)
    if isinstance(known, Placed) and known.keys == keys:
        return known.optimizer
    if not keras_optimizer.built:
        keras_optimizer.build(variables)
    transform = KerasTransform(keras_optimizer, variables)
    stored: list[ServerVariable] = [variable.stored for variable in variables]
    owners = transform.owners(stored)
    _check_alike(transform, stored, [variable.shape for variable in keras_optimizer.variables], owners)
    with strategy.scope():
        optimizer = Optimizer(transform, stored)  # pyright: ignore[reportArgumentType] (all that it asks for)
    places = jax.tree.leaves(nested(range(len(owners)), owners))
    for place, slot in zip(places, optimizer.variables, strict=True):
        variable = keras_optimizer.variables[place]
        value = np.asarray(variable.value)
        # Servers have made the slots as zeros; a value that is not zero comes from training before, or from a file.
        if owners[place] is None or np.any(value):
            slot.bind(jnp.asarray(value))
        keep_in(variable, slot, strategy)
    object.__setattr__(keras_optimizer, _ATTRIBUTE, Placed(keys, optimizer))
    return optimizer


def _on_one_server(variables: Sequence[ServerVariable]) -> bool:
    """True if a single server holds all variables, none of them split."""
    servers: set[int] = set()
    for variable in variables:
        if variable.layout.split:
            return False
        servers |= variable.layout.servers
    return len(servers) == 1


def _check_alike(transform: KerasTransform, stored: list[ServerVariable], shapes: list[Any], owners: list[Any]) -> None:
    # One server that holds all variables, each as a whole, can do whatever Keras can.
    if _on_one_server(stored):
        return
    odd = [shape for shape, owner in zip(shapes, owners, strict=True) if owner is None and len(shape)]
    if transform.told_apart or odd:
        what = ", ".join(transform.told_apart) or f"the whole variables, for slots of shapes {odd}"
        raise ArgumentError(
            f"the optimizer must know {what} apart, for a constraint, an exclusion from weight decay or a slot of "
            "another shape, and the model is on several parameter servers. HINT: use one server and no partitioner, "
            "or do without."
        )
