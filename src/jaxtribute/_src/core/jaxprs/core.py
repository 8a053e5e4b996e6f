"""The names of JAX's insides that the library uses, under one roof.

`tests/core/jaxprs/test_contract.py` states what holds of them.

A program is *closed* with the values of its constants. JAX 0.10 has a class of its own for that, `ClosedJaxpr`; JAX
0.12 has merged it into `Jaxpr`. `closed`, `opened` and `constants` are right on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

# `jax.extend.core` has most of these names, but to import it takes a fifth of the time of JAX itself: it loads Pallas.
from jax._src import core, source_info_util
from jax._src.config import explicit_device_put_scope
from jax._src.core import EvalTrace, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun
from jax._src.interpreters.partial_eval import DynamicJaxprTrace
from jax.core import ShapedArray, Tracer
from jax.interpreters import partial_eval
from jax.sharding import get_abstract_mesh, use_abstract_mesh
from jaxlib import _jax

if TYPE_CHECKING:
    from jax._src.core import Jaxpr as ClosedJaxpr
else:
    ClosedJaxpr = getattr(core, "ClosedJaxpr", Jaxpr)

__all__ = [
    "ArrayImpl",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "Var",
    "as_closed",
    "as_function",
    "aval",
    "batched_device_put",
    "bind",
    "closed",
    "constants",
    "current_trace",
    "derivative_rule",
    "explicit_device_put_scope",
    "in_words",
    "is_program",
    "is_ref",
    "is_traced",
    "kept_beyond",
    "made_by",
    "named_axis",
    "opened",
    "pruned",
    "recorded_in",
    "user_line",
    "without_mesh",
]

ArrayImpl: type = _jax.ArrayImpl
"""The class of arrays on devices."""
batched_device_put: Callable[..., Any] = _jax.batched_device_put
"""Puts pieces of an array on devices: `batched_device_put(aval, sharding, pieces, devices)`."""
as_function = jaxpr_as_fun
"""The Python function that a closed program is."""


def named_axis(name: str, size: int) -> AbstractContextManager[Any]:
    """Lets what is traced within use collectives over an axis, which whoever runs the program must give it."""
    return core.extend_axis_env_nd([(name, size)])


def is_program(value: object) -> bool:
    """True if `value` is a program, closed or not."""
    return isinstance(value, (Jaxpr, ClosedJaxpr))


def closed(jaxpr: Jaxpr, consts: Sequence[Any]) -> ClosedJaxpr:
    """The program with values for its constants."""
    # JAX 0.12, whose programs hold their constants themselves.
    if ClosedJaxpr is Jaxpr:
        return jaxpr.with_consts(consts)
    return ClosedJaxpr(jaxpr, list(consts))


def opened(program: Any) -> Jaxpr:
    """The program without the values of its constants.

    Args:
      program: a jaxpr, closed or not.
    """
    return getattr(program, "jaxpr", program)


def constants(program: Any) -> Sequence[Any]:
    """The values of a program's constants; none of one that is not closed."""
    return getattr(program, "consts", ())


def as_closed(program: Any) -> ClosedJaxpr:
    """A program inside an operation, which may have no constants, as a closed one."""
    # An open program inside an operation has no constants: all that it needs are operands.
    return program if hasattr(program, "consts") else closed(program, ())


def aval(atom: Any) -> ShapedArray:
    """Shape and dtype of a variable or literal of a program."""
    return atom.aval


def in_words(array: Any) -> str:
    """The dtype and shape of an array or of a value of a program, as in `float32[2, 3]`."""
    return f"{array.dtype}{list(array.shape)}"


def numbers_of(array: Any) -> Any:
    """The array of numbers that an array of random keys stands for; any other array as it is. Nothing is copied."""
    # Dtypes of JAX's own are those of random keys.
    is_key = isinstance(array, jax.Array) and not isinstance(array.dtype, np.dtype)
    return jax.random.key_data(array) if is_key else array


def bind(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Applies an operation to other operands, under the settings that it was traced with."""
    # Among them are the mesh in force and the way in which random bits are made.
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


def without_mesh(eqn: JaxprEqn) -> Any:
    """The settings that an operation was traced with; of the mesh those that are in force now."""
    now = use_abstract_mesh(get_abstract_mesh())
    made: Any = type(eqn.ctx)
    with eqn.ctx.manager, now:
        try:
            return made()
        except TypeError:  # JAX 0.10
            return made(eqn.ctx.compute_type, eqn.ctx.threefry_partitionable, eqn.ctx.xla_metadata)


def made_by(eqn: JaxprEqn) -> AbstractContextManager[Any]:
    """A context in which operations are recorded as made by the line, and under the names, of another."""
    names = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return source_info_util.user_context(eqn.source_info.traceback, name_stack=names)


def pruned(program: ClosedJaxpr, outputs: Sequence[Any]) -> tuple[ClosedJaxpr, list[bool]]:
    """Cuts a program down to what some of its values need.

    Args:
      program: the whole program.
      outputs: the variables (or literals) that the new one puts out.

    Returns:
      The new program, which takes only inputs that it uses; and for each input of the whole whether it does.
    """
    jaxpr = opened(program).replace(outvars=list(outputs))
    # Constants become inputs for a while: what is left of them differs between versions of JAX.
    free = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    small, used = partial_eval.dce_jaxpr(free, [True] * len(outputs))
    count = len(jaxpr.constvars)
    consts = [value for value, use in zip(constants(program), used[:count], strict=True) if use]
    split = len(consts)
    small = small.replace(constvars=small.invars[:split], invars=small.invars[split:])
    return closed(small, consts), list(used[count:])


def derivative_rule(eqn: JaxprEqn) -> Any:
    """The rule of a call of a `custom_jvp` function as a program, and which tangents are zero; None if it has none.

    Raises:
      Exception: whatever the user's rule raises.
    """
    rule = eqn.params.get("jvp_jaxpr_fun")
    if rule is None:
        return None
    # Constants of the function come first among the operands, and have no tangents.
    count = len(eqn.invars) - eqn.params["num_consts"]
    jaxpr, consts, zeros = rule.call_wrapped(*[False] * count)
    return closed(jaxpr, consts), tuple(zeros)


def is_ref(atom: Any) -> bool:
    """True if a variable is a mutable `jax.Ref`."""
    return type(atom.aval).__name__ == "AbstractRef"


def user_frames(eqn: JaxprEqn) -> Iterable[Any]:
    """The lines outside of JAX that made an operation, the innermost first: frames with file names and lines."""
    return source_info_util.user_frames(eqn.source_info.traceback)


def user_line(eqn: JaxprEqn, *but: str) -> str | None:
    """The innermost line of the user's that made an operation, as file:line; None if it is not known.

    Args:
      eqn: the operation.
      but: parts of the paths of files that are not the user's.
    """
    for frame in user_frames(eqn):
        if not any(part in frame.file_name for part in but):
            return f"{frame.file_name}:{frame.start_line}"
    return None


def line_of_program(eqn: JaxprEqn) -> str | None:
    """The innermost line of the user's that made an operation, or a library's if there is none."""
    return user_line(eqn, "/jaxtribute/", "-packages/") or user_line(eqn, "/jaxtribute/")


def current_trace() -> Any:
    """The JAX trace that operations of this thread are recorded in."""
    with core.take_current_trace() as trace:
        return trace


def recorded_in(trace: Any) -> AbstractContextManager[Any]:
    """A context in which operations are recorded in `trace`."""
    return core.set_current_trace(trace)


def is_traced() -> bool:
    """True if a JAX transformation is under way in this thread."""
    return type(current_trace()) is not EvalTrace


def kept_beyond(outer: object) -> bool:
    """True if what this thread computes becomes part of a function that JAX keeps, begun inside the trace `outer`."""
    trace = current_trace()
    while trace is not outer:
        if type(trace) is EvalTrace:
            return False
        if type(trace) is DynamicJaxprTrace or not hasattr(trace, "parent_trace"):
            return True  # what is unknown may be kept
        trace = trace.parent_trace
    return False
