"""Proof that a transformation's update of some rows of an array is its update of the whole array, in those rows.

The update is traced, and followed: each value knows whether it has a row for each row of the table, and whether that
row is zero wherever a row's gradient is. Rows that no gradient touches are left as they are: the update is a lazy one.
A sum over all rows is known from the touched ones if the others are zero, as in a global norm of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import jax
import numpy as np
import optax

from jaxtribute import Variable
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Flow, JaxprEqn, Literal, Parameters, Programs, Slots, optax_rules

Update = Callable[..., list[Any]]
_KEEP_ZERO = frozenset(
    "neg abs sign sqrt square cbrt tanh sinh asinh sin tan atan erf real imag conj copy convert_element_type "
    "reduce_precision stop_gradient integer_pow optimization_barrier copy_p round floor ceil expm1 log1p".split()
)
"""Functions of one operand that give zero for zero; of `integer_pow` those with a positive exponent."""
_ALONG = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin")
_LATER = (optax.MultiStepsState, optax.ApplyEvery)
"""States of transformations that keep gradients for a later step, which touches other rows."""
_SIZES = (1009, 2003)
"""Numbers of rows that the update is traced with: primes that nothing else in a program is likely to be."""


class _Kind(IntEnum):
    """Knowledge of a value's rows."""

    NULL = -1
    """It is zero."""
    ALIKE = 0
    """There are none, or all are alike."""
    ZERO = 1
    """A row for each row of the table, zero where the gradient's is."""
    ROWS = 2
    """A row for each row of the table."""


class NotRowWise(Exception):  # noqa: N818
    """The update mixes rows of a table."""


def check_row_wise(
    transform: optax.GradientTransformation,
    update: Update,
    parameters: Parameters,
    slots: Slots,
    variables: Sequence[Variable],
    tables: Sequence[int],
) -> None:
    """Checks that tables can be updated by their rows.

    Args:
      transform: the transformation.
      update: its update, of flat lists.
      parameters: the nest of the variables.
      slots: its state.
      variables: the variables.
      tables: the places of the tables among them.

    Raises:
      ArgumentError: a row's update depends on other rows, or on how many there are, or comes in a later step.
    """
    names = ", ".join(variables[place].name for place in tables)
    with optax_rules():
        state = jax.eval_shape(transform.init, parameters.abstract)
    for one in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, _LATER)):
        if isinstance(one, _LATER):
            raise ArgumentError(
                f"an optimizer of tables, {names}, updates the rows of each call, and {type(one).__name__} keeps "
                "gradients for a later one. HINT: use larger batches, or make an optimizer of its own for the other "
                "variables."
            )
    try:
        programs = [_traced(transform, update, parameters, slots, variables, tables, size) for size in _SIZES]
        for (program, rows), size in zip(programs, _SIZES, strict=True):
            outs = _RowFlow(size).outputs(Programs.opened(program), rows)
            _check_places(outs, slots, variables, tables)
        # In words: a number that is not one equals itself then.
        first, second = (repr(list(_literals(Programs.opened(program).eqns))) for program, _ in programs)
        if first != second:
            raise NotRowWise("it computes with the number of the table's rows")
    except NotRowWise as error:
        raise ArgumentError(
            f"the transformation cannot update {names} by rows alone: {error}. HINT: use one whose update of a row "
            "depends on that row, such as optax.sgd, optax.adagrad or optax.adam, for the table; optax.partition gives "
            "each variable its own."
        ) from None


def _traced(
    transform: optax.GradientTransformation,
    update: Update,
    parameters: Parameters,
    slots: Slots,
    variables: Sequence[Variable],
    tables: Sequence[int],
    size: int,
) -> tuple[Any, list[_Kind]]:
    """The update's program for tables of `size` rows, and the kinds of its inputs."""
    shapes = [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
    for place in tables:
        shapes[place] = jax.ShapeDtypeStruct((size, *variables[place].shape[1:]), variables[place].dtype)

    def init(params: Sequence[Any]) -> list[Any]:
        with optax_rules():
            return Slots.arrays_of(transform.init(parameters.nest(params)))

    state = jax.eval_shape(init, shapes)
    kinds = [_Kind.ZERO if place in tables else _Kind.ALIKE for place in range(len(shapes))]
    for leaf, owner, slot in zip(state, slots.owners, slots.variables, strict=True):
        beside = owner in tables
        if beside:
            wanted = (size, *slot.shape[1:])
        else:
            wanted = slot.shape
        if leaf.shape != wanted:
            raise NotRowWise(f"its state {slot.name} of shape {slot.shape} has no row for each row of the table")
        kinds.append(_Kind.ROWS if beside else _Kind.ALIKE)
    kinds += [_Kind.ROWS if place in tables else _Kind.ALIKE for place in range(len(shapes))]
    # The loss scale's state comes behind the transformation's own, and is no part of its update here.
    program = jax.make_jaxpr(lambda grads, values, params: update(grads, values, params, {}))(shapes, state, shapes)
    return program, kinds


def _check_places(outs: Sequence[_Kind], slots: Slots, variables: Sequence[Variable], tables: Sequence[int]) -> None:
    owners = [*range(len(variables)), *slots.owners]
    names = [one.name for one in (*variables, *slots.variables)]
    for kind, owner, name in zip(outs, owners, names, strict=True):
        if kind > _Kind.ALIKE and owner not in tables:
            raise NotRowWise(f"{name} is computed from a row")


class _RowFlow(Flow[_Kind]):
    """Follows rows through an update.

    Args:
      size: how many there are.
    """

    def __init__(self, size: int) -> None:
        super().__init__(_Kind.ALIKE)
        self._size = size

    def merged(self, one: _Kind, other: _Kind) -> _Kind:
        """The less that is known of either."""
        return max(one, other)

    def row(self, whole: _Kind) -> _Kind:
        """A scan over rows mixes them."""
        if whole is not _Kind.ALIKE:
            raise NotRowWise("a scan goes over its rows")
        return whole

    def equation(self, eqn: JaxprEqn, given: list[_Kind]) -> list[_Kind]:
        """Elementwise operations keep rows; reductions within rows do; sums of rows are known where others are zero."""
        name = eqn.primitive.name
        given = [_Kind.NULL if _is_zero(atom) else kind for atom, kind in zip(eqn.invars, given, strict=True)]
        kind = max(given, default=_Kind.ALIKE)
        if kind is _Kind.NULL:
            zero = name in _KEEP_ZERO or name in _ALONG or name in ("add", "sub", "mul", "add_any", "reduce_sum")
            return [_Kind.NULL if zero and _positive(eqn) else _Kind.ALIKE] * len(eqn.outvars)
        if kind is _Kind.ALIKE:
            return [_Kind.ALIKE] * len(eqn.outvars)
        if name in Programs.ELEMENTWISE or name in _KEEP_ZERO:
            return [self._elementwise(eqn, given)] * len(eqn.outvars)
        shape, out = Programs.aval(eqn.invars[0]).shape, Programs.aval(eqn.outvars[0]).shape
        if name in _REDUCTIONS:
            if 0 not in eqn.params["axes"]:
                return [kind if name in ("reduce_sum", "reduce_or") else _Kind.ROWS]
            if name in ("reduce_sum", "reduce_or") and kind is _Kind.ZERO:
                return [_Kind.ALIKE]
            raise NotRowWise(f"{name} over its rows, of values that are not zero where the gradient is")
        first = eqn.params.get("broadcast_dimensions", (0,))[:1] in ((0,), ()) and out[:1] == shape[:1] == (self._size,)
        if name in _ALONG and first:
            return [kind]
        raise NotRowWise(f"{name} of its rows")

    def _elementwise(self, eqn: JaxprEqn, given: list[_Kind]) -> _Kind:
        name = eqn.primitive.name
        for atom, kind in zip(eqn.invars, given, strict=True):
            if kind > _Kind.ALIKE and Programs.aval(atom).shape[:1] != (self._size,):
                raise NotRowWise(f"{name} of its rows and another array")
        zeros = [kind in (_Kind.NULL, _Kind.ZERO) for kind in given]
        if name in ("mul", "and"):
            # A row of zeros times what is finite: infinite learning rates and slots are none.
            zero = any(zeros)
        elif name == "div":
            zero = zeros[0] and not zeros[1]
        elif name == "select_n":
            zero = all(zeros[1:])
        elif name in ("add", "sub", "add_any", "max", "min", "or", "ne", "lt", "gt"):
            zero = all(zeros)
        else:
            zero = name in _KEEP_ZERO and zeros[0] and _positive(eqn)
        return _Kind.ZERO if zero else _Kind.ROWS


def _positive(eqn: JaxprEqn) -> bool:
    """False for a power of which zero's is not zero."""
    return eqn.primitive.name != "integer_pow" or eqn.params["y"] > 0


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, Literal) and not np.any(np.asarray(atom.val))


def _literals(eqns: Iterable[JaxprEqn]) -> Iterator[tuple[str, list[Any]]]:
    """The numbers in a program, in order, with the operations that take them."""
    for eqn in eqns:
        yield eqn.primitive.name, [np.asarray(atom.val).tolist() for atom in eqn.invars if isinstance(atom, Literal)]
        yield from _literals(Programs.operations_in(eqn))
