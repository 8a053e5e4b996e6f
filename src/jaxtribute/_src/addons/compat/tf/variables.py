"""`tf.Variable`, made with TensorFlow's arguments and types for numbers, and `tf.Module`, which collects variables."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from jaxtribute import Variable as JdVariable
from jaxtribute import VariableAggregation, VariableSynchronization
from jaxtribute._src.addons.compat.tf.conversion import ShapeLike, TensorLike, as_typed_tensor
from jaxtribute._src.addons.compat.tf.naming import created, name_scope, scoped
from jaxtribute._src.addons.compat.tf.specs import TensorShape
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import ArrayOperators
from jaxtribute.typing import DType, Leaf


class _IsJaxtributes(type):
    """Metaclass by which the library's variables count as instances of `tf.Variable`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, JdVariable)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, JdVariable)

    def __getattr__(cls, name: str) -> Any:
        return getattr(JdVariable, name)


class Variable(metaclass=_IsJaxtributes):
    """Makes a `jd.Variable`; Python floats make a float32 variable, ints an int32 one.

    Args:
      initial_value: as for `jd.Variable`.
      trainable: whether optimizers should update it.
      validate_shape: only True is possible: a variable keeps its shape.
      caching_device: accepted for compatibility.
      name: a name for messages and checkpoints.
      variable_def: not supported.
      dtype: the element type.
      import_scope: accepted for compatibility.
      constraint: not supported.
      synchronization: as for `jd.Variable`.
      aggregation: as for `jd.Variable`.
      shape: the shape, if it is to be checked; it may not be open.

    Raises:
      ArgumentError: an argument asks for what is not supported, or `shape` is not that of the initial value.

    Source: `tf.Variable`.
    """

    def __new__(
        cls,
        initial_value: TensorLike = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: DType = None,
        import_scope: str | None = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: ShapeLike = None,
        experimental_enable_variable_lifting: bool = True,
    ) -> JdVariable:
        """Makes the variable."""
        return created(
            _make,
            {
                "initial_value": initial_value,
                "trainable": trainable,
                "validate_shape": validate_shape,
                "caching_device": caching_device,
                "name": name,
                "variable_def": variable_def,
                "dtype": dtype,
                "import_scope": import_scope,
                "constraint": constraint,
                "synchronization": synchronization,
                "aggregation": aggregation,
                "shape": shape,
                "experimental_enable_variable_lifting": experimental_enable_variable_lifting,
            },
        )


def _make(
    *,
    initial_value: TensorLike,
    trainable: bool | None,
    validate_shape: bool,
    name: str | None,
    variable_def: object,
    dtype: DType,
    constraint: Callable[[Any], Any] | None,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    shape: ShapeLike,
    **_: object,
) -> JdVariable:
    for argument, given in (
        ("validate_shape=False", not validate_shape),
        ("variable_def", variable_def is not None),
        ("constraint", constraint is not None),
        ("initial_value=None", initial_value is None),
    ):
        if given:
            raise ArgumentError(
                f"tf.Variable({name or 'Variable'!r}): {argument} is not supported. "
                "HINT: give an initial value of the final shape, and apply constraints after each update."
            )
    variable = JdVariable(
        # A function: the strategy calls it where the value is to be, and once.
        lambda: _value(initial_value, dtype),
        trainable,
        scoped(name),
        # None, since the value has its type already.
        dtype=None,
        synchronization=synchronization,
        aggregation=aggregation,
    )
    # In its dictionary, which `copy.deepcopy` copies: it is no other class, so that JAX and strategies know it.
    vars(variable)[_MADE_HERE] = True
    if shape is not None and TensorShape(shape) != variable.shape:
        raise ArgumentError(
            f"{variable.name} has shape {variable.shape}, but shape={shape} was asked for. "
            "HINT: leave shape out; a variable keeps the shape of its initial value."
        )
    return variable


_MADE_HERE = "_made_by_compat_tf"
"""Attribute of variables that `tf.Variable` has made."""

_IN_PLACE = {"add": ("+", "assign_add(x)"), "sub": ("-", "assign_sub(x)")} | {
    name: (sign, f"assign(variable {sign} x)") for name, sign in (("mul", "*"), ("truediv", "/"), ("pow", "**"))
}
"""Operators whose form with `=` TensorFlow's variables refuse: their signs, and what to write for it."""


def _refused(sign: str, instead: str) -> Callable[[JdVariable, Any], Any]:
    """`variable += x`, which would give the name of a variable to an array, and leave the variable as it is."""

    def in_place(self: JdVariable, other: Any) -> Any:
        if _MADE_HERE not in vars(self):
            return NotImplemented  # of `jd.Variable` Python goes on with the operator itself
        raise RuntimeError(
            f"`variable {sign}= x` does not change {self.name}, a tf.Variable: the name would stand for an array. "
            f"HINT: write variable.{instead}; for a new value of that name write variable = variable {sign} x."
        )

    return in_place


for _name, (_sign, _instead) in _IN_PLACE.items():
    setattr(JdVariable, f"__i{_name}__", _refused(_sign, _instead))


def _value(initial_value: TensorLike, dtype: DType) -> Any:
    if callable(initial_value) and not isinstance(initial_value, ArrayOperators):
        initial_value = initial_value()
    return as_typed_tensor(initial_value, dtype)


M = TypeVar("M", bound="Module")
P = ParamSpec("P")
R = TypeVar("R")
_WORDS = re.compile("((?<=[a-z0-9])[A-Z]|(?!^)[A-Z](?=[a-z]))")
"""The first letters of the words of a class's name, but for the first."""


class Module:
    """Collects the variables and modules that its attributes hold, at any depth of lists, tuples and dictionaries.

    Args:
      name: a Python identifier; by default made of the class's name, `my_layer` of `MyLayer`.

    Raises:
      ArgumentError: the name is no identifier.

    Source: `tf.Module`.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or _WORDS.sub(r"_\1", type(self).__name__).lower()
        if not self._name.isidentifier():
            raise ArgumentError(f"{self._name!r} is no name of a module. HINT: take letters, digits and _ alone.")
        self._scope = f"{scoped(self._name)}/"

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def name_scope(self) -> name_scope:
        """A block in which variables are named as the module's, whatever scopes are around it."""
        return name_scope(self._scope)

    @classmethod
    def with_name_scope(cls, method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
        """Makes a method run in the module's `name_scope`."""

        @functools.wraps(method)
        def named(self: M, *args: P.args, **kwargs: P.kwargs) -> R:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return named

    @property
    def variables(self) -> tuple[JdVariable, ...]:
        """The variables: those of the module by attribute name, then those of the modules in it."""
        found = self._own_variables()
        for module in self.submodules:
            found += module._own_variables()
        # Each once: attributes of several modules may hold the same.
        return tuple(dict.fromkeys(found))

    @property
    def trainable_variables(self) -> tuple[JdVariable, ...]:
        """The variables that optimizers should update."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[JdVariable, ...]:
        """The others."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules in it, at any depth, nearest first."""
        found: dict[Module, None] = {}
        waiting: list[Module] = [self]
        while waiting:
            below = [leaf for leaf in _leaves(waiting.pop(0)) if isinstance(leaf, Module)]
            new = [module for module in dict.fromkeys(below) if module not in found and module is not self]
            found.update(dict.fromkeys(new))
            waiting += new
        return tuple(found)

    def _own_variables(self) -> list[JdVariable]:
        return [leaf for leaf in _leaves(self) if isinstance(leaf, JdVariable)]


def _leaves(module: Module) -> Iterator[Any]:
    # Sorted, as TensorFlow sorts: the order of a module's variables is part of what programs rely on.
    for _, value in sorted(vars(module).items()):
        yield from _inside(value)


def _inside(value: Leaf) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _inside(part)
    elif isinstance(value, dict):
        for _, part in sorted(value.items(), key=lambda item: str(item[0])):
            yield from _inside(part)
    else:
        yield value
