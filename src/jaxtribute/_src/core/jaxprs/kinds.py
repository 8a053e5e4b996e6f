"""Kinds of operations: a collective, an ordinary function of its operands, or something unknown.

The collectives are told by what they name: whatever names an axis of the mesh, and does not merely ask for the place
on it, may exchange values over it. So a collective of a later JAX, or of a user's own, is one without being listed.

An operation is *repeatable* if equal operands give equal results. What is known to be so are the operations that JAX
defines for arrays and random numbers, those of this library, and kernels that their author declares free of effects.
Everything else may give what it likes.
"""

from __future__ import annotations

import functools
import sys

from jaxtribute._src.core.jaxprs.core import Jaxpr, JaxprEqn, Primitive, aval, in_words, line_of_program, opened
from jaxtribute._src.core.jaxprs.making import Own
from jaxtribute._src.core.jaxprs.walking import STRUCTURES, UNKNOWN, any_in, operations_in, programs_in

_EQUALISING = frozenset("psum psum_invariant pmax pmin all_gather all_gather_invariant jd_whole jd_sum".split())
_ASKING = frozenset({"axis_index", "pvary"})
_RANDOM = frozenset({"rng_uniform"})
"""Random numbers from a state that each device keeps for itself."""
_MODULES = ("jax._src.lax.", "jax._src.random", "jax._src.prng", "jax._src.ad_util")
_PARALLEL = "jax._src.lax.parallel"
_ELSEWHERE = {
    _PARALLEL: "all_gather all_to_all axis_index pmax pmin ppermute psum ragged_all_to_all",
    "jax._src.ad_checkpoint": "name remat2",
    "jax._src.core": "call closed_call",
    "jax._src.custom_derivatives": "custom_jvp_call custom_vjp_call",
    "jax._src.dispatch": "device_put",
    "jax._src.interpreters.ad": "custom_lin",
    "jax._src.pjit": "jit reshard sharding_constraint",
    "jax._src.state.primitives": "get swap",
}
"""Further modules of JAX, and the names of primitives in them that `jax.extend.core.primitives` lists.

That module is not asked: importing it takes a fifth of the time of JAX itself.
"""
_KERNELS = ("ffi_call", "pallas_call", "dot_product_attention_", "scaled_matmul")
"""Calls of code that JAX cannot look into; it is declared to have effects, or to have none."""

ELEMENTWISE = frozenset(
    "abs acos acosh add and asin asinh atan atan2 atanh add_any bessel_i0e bessel_i1e cbrt ceil clamp conj "
    "convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt imag "
    "integer_pow is_finite le lgamma log log1p log2 logistic lt max min mul ne neg nextafter not one_minus_square or "
    "population_count pow real reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor optimization_barrier".split()
)
"""Names of the operations whose results have at each place what the operands of that shape have there."""

_MOVES = frozenset({"transpose", "reshape", "broadcast_in_dim", "squeeze", "neg", "copy", "copy_p"})
"""Operations of one array that give a sum of arrays the sum of what they give each."""


@functools.cache
def _ordinary() -> frozenset[Primitive]:
    """The primitives that JAX defines for arrays and random numbers, found where they are defined."""
    primitives: set[Primitive] = set()
    # A copy: another thread may be importing.
    for name, module in list(sys.modules.items()):
        if name not in _ELSEWHERE and not name.startswith(_MODULES):
            continue
        named = _ELSEWHERE.get(name, "").split()
        for value in vars(module).values():
            if not isinstance(value, Primitive) or (named and value.name not in named):
                continue
            # A callback runs Python, which gives what it likes.
            if value.name not in _RANDOM and "callback" not in value.name:
                primitives.add(value)
    return frozenset(primitives)


def names_axis(eqn: JaxprEqn, axis: str) -> bool:
    """True if an operation itself names an axis of the mesh, in its parameters or its effects."""
    # What only runs programs inside it names the axes that they name; those are asked for themselves.
    if eqn.primitive.name in STRUCTURES or not eqn.outvars:
        return False
    for key, value in eqn.params.items():
        # The name of the user's function, which may be the axis's by chance.
        if key == "name":
            continue
        axes = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
        if any(isinstance(name, str) and name == axis for name in axes):
            return True
    # An operation inherits the effects of the programs inside it; those are looked at one by one.
    if not eqn.effects or next(programs_in(eqn), None) is not None:
        return False
    return any(getattr(effect, "name", None) == axis for effect in eqn.effects)


def mentions(eqn: JaxprEqn, axis: str) -> bool:
    """True if an operation, or one inside it, names an axis of the mesh."""
    return any_in(eqn, lambda inner: names_axis(inner, axis))


def is_collective(eqn: JaxprEqn, axis: str) -> bool:
    """True if an operation itself exchanges values over an axis, or may do so."""
    return names_axis(eqn, axis) and eqn.primitive.name not in _ASKING


def equalises(eqn: JaxprEqn, axis: str) -> bool:
    """True if a collective gives all devices along the whole axis the same result."""
    # Within groups the results are equal in each group, and differ between them.
    if eqn.primitive.name not in _EQUALISING or eqn.params.get("axis_index_groups") is not None:
        return False
    return names_axis(eqn, axis)


def keeps_equality(eqn: JaxprEqn) -> bool:
    """True if a collective gives equal results where its operands are equal: over groups of devices, say."""
    return eqn.primitive.name in _EQUALISING or eqn.primitive.name == "pvary"


def is_known(primitive: Primitive) -> bool:
    """True if a primitive is an ordinary function of its operands, JAX's or this library's."""
    return isinstance(primitive, Own) or primitive in _ordinary()


def moves(eqn: JaxprEqn) -> bool:
    """True if an operation moves its operand; False if it does something else, such as to scale it."""
    # A scaling must stay before a sum: some products have a finite sum only when they are scaled first.
    if eqn.primitive.name not in _MOVES or len(eqn.outvars) != 1 or len(eqn.invars) != 1:
        return False
    # Repeated along an axis, or of a size that only the program knows, it is something else.
    return aval(eqn.invars[0]).size == aval(eqn.outvars[0]).size


def repeatable(eqn: JaxprEqn) -> bool:
    """True if an operation gives equal results for equal operands on one device, with all that is inside it."""
    primitive = eqn.primitive
    # Without results there is nothing that could differ.
    if not eqn.outvars:
        return True
    # Code that JAX cannot look into, of which only its author's word is known: also that it talks to other devices.
    if primitive.name.startswith(_KERNELS):
        return is_free(eqn) and getattr(eqn.params.get("compiler_params"), "collective_id", None) is None
    inner = list(operations_in(eqn))
    if inner or primitive.name in STRUCTURES:
        return (primitive.name in STRUCTURES or is_known(primitive)) and all(map(repeatable, inner))
    return is_known(primitive) and is_free(eqn)


def is_free(eqn: JaxprEqn) -> bool:
    """True if an operation has no effects other than that it names an axis."""
    return not eqn.effects or all(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects)


def list_collectives(jaxpr: Jaxpr, axis: str, caller: str = UNKNOWN) -> list[str]:
    """Lists the collectives of a program in order: kind, dtypes and shapes, and the line that calls each.

    Args:
      jaxpr: the program; those inside it (of `scan`, `cond`, `shard_map`, ...) count too.
      axis: the name of the axis over which they meet.
      caller: the line that calls the program, for what says none of its own, as inside a function with a custom
        gradient.
    """
    lines: list[str] = []
    for eqn in jaxpr.eqns:
        line = line_of_program(eqn) or caller
        if is_collective(eqn, axis):
            # Tokens, which order effects, are operands without a shape.
            shapes = [in_words(aval(var)) for var in eqn.invars if hasattr(var.aval, "shape")]
            lines.append(f"{eqn.primitive.name} of {', '.join(shapes)} at {line}")
        for inner in programs_in(eqn):
            lines += list_collectives(opened(inner), axis, line)
    return lines
