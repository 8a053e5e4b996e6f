"""Tracing a whole function once: its program, the variables that it touches and the batches that it draws.

And what a program's results are: mirrored, if they depend only on mirrored inputs, constants and results of collectives
over all replicas. Everything that depends on the replica's own data or id *varies*, and so does what an operation gives
that the library does not know: a debug message names it.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.context import Context, entered
from jaxtribute._src.core.execution.containers import refuse_traced
from jaxtribute._src.core.execution.eager import Parting
from jaxtribute._src.core.execution.nests import is_array, is_number, map_leaves, reveal
from jaxtribute._src.core.execution.traced import TracedFunction, lift
from jaxtribute._src.core.jaxprs.axis_of_one import with_axis_of_one
from jaxtribute._src.core.jaxprs.core import ArrayImpl, ClosedJaxpr, Jaxpr, JaxprEqn, Tracer, aval
from jaxtribute._src.core.jaxprs.flow import Touched
from jaxtribute._src.core.jaxprs.kinds import equalises, is_collective, keeps_equality, mentions, names_axis, repeatable
from jaxtribute._src.core.jaxprs.making import equal_p
from jaxtribute._src.core.jaxprs.walking import any_in
from jaxtribute._src.core.types import Nest, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ContextError, VariableError


@jax.tree_util.register_pytree_node_class
class Constant:
    """A result that is not an array, such as a string: carried in the structure of the results."""

    def __init__(self, value: Numeric) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """No leaves: the value is part of the structure."""
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Numeric, _: Any) -> Constant:
        """The inverse of `tree_flatten`."""
        return cls(value)


class Capture(NamedTuple):
    """A traced function: its program over the dynamic arguments and the variables in `executor.inputs`."""

    closed: ClosedJaxpr
    executor: TracedFunction
    tree: Any
    constants: bool

    @classmethod
    def of(cls, call: Callable[[Sequence[Any]], Any], context: Context, leaves: Sequence[Any]) -> Capture:
        """Traces `call(leaves)` once in `context`; the variables themselves stay untouched.

        Args:
          call: the user's function of its dynamic arguments.
          context: the strategy and replica in force; its executor is replaced.
          leaves: arrays (or tracers) whose shapes and dtypes the program is for.
        """
        contexts.announce()
        seen: list[Any] = []

        def program(*traced: Any) -> list[Any]:
            executor = TracedFunction(context)
            executor.arguments = {
                id(stand_in): (place, leaf.sharding if isinstance(leaf, ArrayImpl) else None)
                for place, (stand_in, leaf) in enumerate(zip(traced, leaves, strict=True))
            }
            with entered(Context(context.strategy, context.replica, executor)):
                result = call(traced)
                reveal(result, (jax.Array, ReplicaValues))
                result = map_leaves(_laid_out, result)
            outputs, tree = jax.tree.flatten(result, is_leaf=is_constant)
            owned = set(map(id, executor.values.values()))
            for place, leaf in enumerate(outputs):
                if not (is_array(leaf) or is_number(leaf) or is_constant(leaf)):
                    refuse_traced(leaf)
                    outputs[place] = Constant(leaf)
                elif id(leaf) in owned:
                    # A result must not share its buffer with a variable, which a later step gives up.
                    outputs[place] = jnp.copy(leaf)
            arrays, tree = jax.tree.flatten(tree.unflatten(outputs))
            seen.extend((executor, tree, any(map(is_constant, outputs))))
            return [*arrays, *executor.new_values()]

        # The variables keep their values: what the function wrote is in the executor, and comes out as further outputs.
        closed = jax.make_jaxpr(program)(*leaves)
        return cls(with_axis_of_one(lift(closed), AXIS), *seen)

    def result(self, outputs: Sequence[Any]) -> Any:
        """The function's result, of the program's first outputs."""
        whole = self.tree.unflatten(outputs)
        return without_constants(whole) if self.constants else whole


def is_constant(value: Numeric) -> bool:
    """True if a result is carried in the structure of the results."""
    return isinstance(value, Constant)


def without_constants(nest: Nest) -> Any:
    """A nest with the values of its constants in their place."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Constant) else leaf, nest, is_leaf=is_constant)


def _laid_out(value: Numeric) -> Any:
    """A distributed result on its replicas' devices, wherever the compiler would leave it; of a variable its value."""
    if isinstance(value, Variable):
        with suppress(VariableError):  # what keeps a value for each replica may have no single one: it stays itself
            return value.read_value()
        return Constant(value)
    if not isinstance(value, (PerReplica, Mirrored)) or value.mesh.size == 1 or not isinstance(value.data, Tracer):
        return value
    sharding = value.mesh.replicated
    if isinstance(value, PerReplica):
        if not value.data.ndim or value.data.shape[0] % value.mesh.size:
            return value
        sharding = value.mesh.split
    return replace(value, data=lax.with_sharding_constraint(value.data, sharding))


_LOG = logging.getLogger(__name__)
_LARGE = 1 << 20
"""Bytes of an array that is worth a word."""
_EQUINOX = (
    "make it a jd.Model, jd.Model(module), in the strategy's scope, or pass the module as an argument; of a module "
    "that equinox.partition has divided, the half that is not trained is a second one: static = jd.Model(static), and "
    "equinox.combine(params.value, static.value) is the module"
)
_OWNERS = {
    "flax.nnx": ("Variable", "make it a jd.Model, jd.Model(module), in the strategy's scope, and use that"),
    "equinox": ("Module", _EQUINOX),
}
"""By library, the class whose objects hold what training changes, and what to do."""


def check_captured(program: Any, name: str) -> None:
    """Checks that a program's constants are not the state of a library's modules; names large ones in a debug log.

    Args:
      program: a traced function: its jaxpr, with constants.
      name: the function's name.

    Raises:
      VariableError: a module of Flax NNX or Equinox holds one, so that what training changes would not be seen.
    """
    arrays: list[jax.Array] = []
    for array in _constants(program):
        if not isinstance(array, jax.Array):
            continue
        arrays.append(array)
        if array.nbytes >= _LARGE:
            _LOG.debug(
                "%s takes an array of shape %s and dtype %s from around it (%.1f MB), as a constant of its program. "
                "HINT: pass it as an argument, or keep it in a jd.Variable.",
                name,
                array.shape,
                array.dtype,
                array.nbytes / 1e6,
            )
    for library, (kind, remedy) in _OWNERS.items():
        cls = getattr(sys.modules.get(library), kind, None)
        if cls is None:
            continue
        for owner, array in _held(arrays, cls):
            raise VariableError(
                f"{name} uses an array of shape {array.shape} and dtype {array.dtype} that a {type(owner).__name__} "
                f"of {library} holds, which it closes over: it would be a constant of the compiled program, and stay "
                f"as it is now. HINT: {remedy}."
            )


USE_MODEL = (
    "HINT: make it a jd.Model, jd.Model(module, transform), in the strategy's scope, and use that; or pass the module "
    "as an argument and return it."
)
"""The remedy for a module of Flax NNX that a replica function changes."""


def foreign_write(error: Exception, name: str) -> VariableError | None:
    """The error for one of Flax's about a module that a program changes from around it; None for any other.

    Args:
      error: what a traced function has raised.
      name: the function's name.
    """
    from_flax = type(error).__module__.partition(".")[0] == "flax" or isinstance(error, ValueError)
    if not from_flax or "different trace level" not in str(error):
        return None
    return VariableError(
        f"{name} changes a module of Flax NNX that it closes over, or differentiates by it, and a compiled program "
        f"cannot change what was made outside of it: {error}. {USE_MODEL}"
    )


def unbound_axis(error: NameError) -> ContextError | None:
    """The error for JAX's about a collective over an axis that is none of this code's; None for any other.

    Args:
      error: what a replica function has raised.
    """
    _, separator, axis = str(error).partition("unbound axis name: ")
    if not separator:
        return None
    return ContextError(
        f"a collective of JAX names the axis {axis.split('.')[0].split()[0]!r}, which this code does not have. HINT: "
        "in a compiled strategy.run the axis is jd.REPLICA_AXIS, but a step whose replicas have different numbers of "
        "rows may run uncompiled: batch with drop_remainder=True. Eagerly call "
        "jd.get_replica_context().all_reduce('MEAN', x) or all_gather, which work everywhere."
    )


def _constants(program: Any) -> Iterator[Any]:
    """The constants of a jaxpr and of those inside its equations."""
    yield from getattr(program, "consts", ())
    for equation in program.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _constants(inner)


def _held(arrays: Sequence[jax.Array], kind: type[Any]) -> Iterator[tuple[Any, jax.Array]]:
    """The objects of a class that hold one of the arrays as an attribute, with the array."""
    # Integers may well be what they are for good, such as positions or shapes.
    arrays = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact) or kind.__name__ == "Variable"]
    if not arrays:
        return
    # The program knows its constants and not where they came from; only the garbage collector knows who holds them.
    holders = gc.get_referrers(*arrays)
    # An object's attributes may lie in a dictionary, which the object refers to.
    holders += gc.get_referrers(*[holder for holder in holders if type(holder) is dict])
    for holder in holders:
        if not issubclass(type(holder), kind):
            continue
        attributes = [*gc.get_referents(holder), *getattr(holder, "__dict__", {}).values()]
        for array in arrays:
            # By identity: to compare arrays would compute.
            if any(map(is_, attributes, repeat(array))):
                yield holder, array
                break


def varying_outputs(jaxpr: Jaxpr, inputs: Sequence[bool], *, grouped: bool = False) -> list[bool]:
    """Tells for each output of `jaxpr` whether it may differ between replicas.

    Args:
      jaxpr: one replica's program.
      inputs: for each input whether it may differ; constants do not.
      grouped: whether a replica has several devices.
    """
    return (_VaryingInGroups if grouped else Varying)(False).outputs(jaxpr, inputs)


def varying_values(jaxpr: Jaxpr, inputs: Sequence[bool]) -> set[Any]:
    """The values of `jaxpr` that may differ between replicas; arguments as for `varying_outputs`."""
    return {var for var, varies in Varying(False).values(jaxpr, inputs).items() if varies}


class Varying(Touched):
    """True for what may differ between replicas. Collectives that not all of them may meet raise `Parting`."""

    def decides(self, by: bool, eqn: JaxprEqn) -> None:
        """Lets replicas go different ways in lockstep only, where conditions and loops run as Python."""
        if by and any_in(eqn, lambda inner: is_collective(inner, AXIS)):
            raise Parting(f"a collective inside {eqn.primitive.name}, on a condition that replicas do not share")

    def equation(self, eqn: JaxprEqn, given: list[bool]) -> list[bool]:
        """Results differ if operands do, unless replicas exchange them; and where they come from elsewhere."""
        from jaxtribute._src.core.values.slices import alike_p  # loaded with the first program

        count = len(eqn.outvars)
        # Reductions and gathers over all replicas give each of them the same, whatever they were given.
        if eqn.primitive is equal_p or equalises(eqn, AXIS):
            return [False] * count
        if eqn.primitive is alike_p:
            check_same(eqn.params["name"], given[0])
            return given
        # What is computed of values that differ may differ, even if it happens not to: the careful case.
        if any(given) or not count:
            return [any(given)] * count
        # Operands are the same, but the operation itself may tell replicas apart (`axis_index`).
        if names_axis(eqn, AXIS):
            return [not keeps_equality(eqn)] * count
        if repeatable(eqn):
            return [mentions(eqn, AXIS)] * count
        _LOG.debug(
            "%s is no operation that the library knows: its results are taken to vary over the replicas",
            eqn.primitive.name,
        )
        return [True] * count


class _VaryingInGroups(Varying):
    """The same if replicas have several devices: the compiler moves arrays between these wherever it likes.

    On CPUs all devices wait for such a move (`collective-permute`), also those of replicas that do not make it.
    """

    def decides(self, by: bool, eqn: JaxprEqn) -> None:
        super().decides(by, eqn)
        if by and any_in(eqn, lambda inner: any(aval(var).size > 1 for var in inner.outvars)):
            raise Parting(
                f"{eqn.primitive.name} of arrays, on a condition that replicas of several devices do not share"
            )


def check_same(name: str, varies: bool) -> None:
    """Refuses a new value of a variable that varies over the replicas, which take it as the same."""
    if varies:
        raise VariableError(
            f"{name} would get a different value on each replica. HINT: reduce the value before it is assigned "
            "(strategy.reduce, ctx.all_reduce), or create the variable with an aggregation."
        )
