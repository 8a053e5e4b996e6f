"""Programs freed of the placements of arrays that they capture.

To JAX the mesh that an array lies on is part of its type, and of the types of all that is computed from it. A replica's
program is for one replica: an array from around the function, wherever it lies, is a value to it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxtribute._src.core.jaxprs.core import (
    ClosedJaxpr,
    Jaxpr,
    Literal,
    ShapedArray,
    Tracer,
    Var,
    closed,
    constants,
    is_program,
    opened,
    without_mesh,
)
from jaxtribute._src.core.jaxprs.walking import programs_in
from jaxtribute._src.core.types import Numeric

Known = dict[int, tuple[Any, Any]]
"""By the id of a captured array, the array and its copy that is bound to no device."""


def unplaced(program: ClosedJaxpr, known: Known) -> ClosedJaxpr:
    """Frees a program of the meshes of the arrays that it captures.

    Args:
      program: the program; it is returned as it is if it captures no array that lies on a mesh.
      known: the copies that other programs have already, so that equal constants stay one object; grows.
    """
    if not _captures_placed(program):
        return program
    return _freed(program, known)


def _captures_placed(program: Any) -> bool:
    jaxpr = opened(program)
    # JAX keeps captured scalars within the operations that use them.
    atoms = chain.from_iterable(eqn.invars for eqn in jaxpr.eqns)
    literals = (atom for atom in chain(atoms, jaxpr.outvars) if isinstance(atom, Literal))
    if any(_has_mesh(atom.aval) for atom in chain(jaxpr.constvars, literals)):
        return True
    return any(map(_captures_placed, chain.from_iterable(map(programs_in, jaxpr.eqns))))


def _has_mesh(aval: Any) -> bool:
    """True if the type names a mesh whose axes the compiler deals with."""
    return _of_compiler(getattr(aval, "sharding", None))


def _of_compiler(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and _is_compilers(sharding.mesh)


def _is_compilers(mesh: Any) -> bool:
    return not mesh.empty and mesh.are_all_axes_auto


def _freed(program: Any, known: Known) -> Any:
    """A copy of a program and of all programs in it, every type without its mesh."""
    jaxpr = opened(program)
    new: dict[Any, Any] = {}

    def var(old: Numeric) -> Any:
        if old not in new:
            new[old] = Var(_type(old.aval))
        return new[old]

    def atom(old: Numeric) -> Any:
        if not isinstance(old, Literal):
            return new[old]
        if not _has_mesh(old.aval):
            return old
        # JAX's own arrays on the host hold a type, too; a view has none yet.
        value = old.val.view() if isinstance(old.val, np.ndarray) else _known(old.val, known)
        return Literal(value, _type(old.aval))

    constvars, invars = list(map(var, jaxpr.constvars)), list(map(var, jaxpr.invars))
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "reshard" and _has_mesh(eqn.outvars[0].aval):
            new[eqn.outvars[0]] = atom(eqn.invars[0])  # from one mesh to another: here neither is left
            continue
        taken = list(map(atom, eqn.invars))
        params = {name: _parameter(value, known) for name, value in eqn.params.items()}
        # Operations that are applied again make what they need, such as zeros, for the mesh that they were traced with.
        ctx = without_mesh(eqn) if _is_compilers(eqn.ctx.cur_abstract_mesh) else eqn.ctx
        eqns.append(eqn.replace(invars=taken, outvars=list(map(var, eqn.outvars)), params=params, ctx=ctx))
    outvars = list(map(atom, jaxpr.outvars))
    freed = jaxpr.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)
    if isinstance(program, Jaxpr) and not constants(program):
        return freed
    return closed(freed, [_known(value, known) for value in constants(program)])


def _known(value: Numeric, known: Known) -> Any:
    if id(value) not in known:
        # The array itself is kept beside its copy: else it might be freed, and its id be another's.
        known[id(value)] = value, _loose(value)
    return known[id(value)][1]


def _parameter(value: Numeric, known: Known) -> Any:
    if is_program(value):
        return _freed(value, known)
    # Branches of a condition, and whatever else holds several programs.
    if isinstance(value, (tuple, list)) and any(is_program(part) for part in value):
        return type(value)(_freed(part, known) if is_program(part) else part for part in value)
    return None if _of_compiler(value) else value


def _type(aval: Any) -> Any:
    if isinstance(aval, ShapedArray) and _has_mesh(aval):
        # Weak types stay weak: they decide what later operations give.
        return ShapedArray(aval.shape, aval.dtype, aval.weak_type)
    return aval


def _loose(value: Numeric) -> Any:
    """An array as JAX may move it, bound to no device."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or not value.committed:
        return value
    if not value.is_fully_addressable:
        # Some of its rows are in other processes: here it cannot be made a value.
        if not value.is_fully_replicated:
            return value
        value = value.addressable_data(0)
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        # Keys have no form in NumPy; the numbers that they consist of do.
        return jax.random.wrap_key_data(_loose(jax.random.key_data(value)), impl=jax.random.key_impl(value))
    with jax.ensure_compile_time_eval():  # a constant, whatever is traced around
        return jnp.asarray(np.asarray(value))
