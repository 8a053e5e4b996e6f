"""Hints at what to write instead, for errors of JAX that users' functions meet because of distributed values."""

from __future__ import annotations

from jaxtribute.errors import JaxtributeError

_ELSEWHERE = (
    "HINT: pass arrays that lie elsewhere, or on the devices of all replicas, to strategy.run as arguments, in place "
    "of reading them from around the function: a replica gets them on its own device."
)
_ROWS = (
    "HINT: a replica has a part of the batch's rows, or none: take x.shape[0] for their number, jax.vmap(jnp.ravel)(x) "
    "for reshape's -1; give jnp.max an initial value, divide by what all replicas have, or drop the remainder."
)
_HINTS = {
    "Triggering __jax_array__": (
        "HINT: functions of jax.lax take arrays alone: give them jnp.asarray(value), or variable.read_value(), in "
        "place of a variable or a distributed value from around the function."
    ),
    **dict.fromkeys(("should match the mesh", "incompatible devices", "DeviceAssignmentMismatch"), _ELSEWHERE),
}
_FORWARD = (
    "HINT: forward-mode derivatives that go through a collective (jax.jvp, jacfwd, hessian) are for compiled steps: "
    "call strategy.run within a jd.function."
)
_NO_ROWS = (
    "by zero;zero-size;empty sequence;cannot reshape;shapes for broadcasting;with size 0;empty axis;must be non-empty;"
    "unless no samples;must be within [0, 0;with shape=[0"
)
_IN_REPLICAS = dict.fromkeys(_NO_ROWS.split(";"), _ROWS) | {"forward-mode autodiff": _FORWARD}


def add_hint(error: Exception, *, in_replica: bool = False, empty: bool = False) -> None:
    """Adds to an error, or to a failure of JAX at its words, what to write instead, once, if that is known.

    Args:
      error: the error.
      in_replica: True if a replica's function has raised it, which is given a part of a batch.
      empty: True if the part has no rows: words of others, which are not known, may be of that.
    """
    hints = _HINTS | _IN_REPLICAS if in_replica else _HINTS
    for part, hint in (hints | {"": _ROWS} if empty and not isinstance(error, JaxtributeError) else hints).items():
        if part in f"{error}{error.__context__!r}" and hint not in getattr(error, "__notes__", ()):
            error.add_note(hint)
