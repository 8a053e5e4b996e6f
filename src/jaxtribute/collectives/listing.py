"""The collectives of a program, in words, so that workers can compare theirs."""

from __future__ import annotations

from typing import Any

from jax._src import source_info_util

COLLECTIVES = frozenset({"psum", "psum2", "psum_invariant", "all_gather", "all_to_all", "ppermute", "reduce_scatter"})


_UNKNOWN = "an unknown line"


def listed(jaxpr: Any, caller: str = _UNKNOWN) -> list[str]:
    """The collectives of a program in order: kind, dtypes and shapes, and the line that calls each.

    Args:
      jaxpr: the program; those inside it (of `scan`, `cond`, `shard_map`, ...) count too.
      caller: the line that calls the program, for what says none of its own, as inside a function with a custom
        gradient.
    """
    found: list[str] = []
    for eqn in jaxpr.eqns:
        line = _line(eqn) or caller
        if eqn.primitive.name in COLLECTIVES:
            arrays = [var.aval for var in eqn.invars if hasattr(var.aval, "shape")]
            shapes = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in arrays)
            found.append(f"{eqn.primitive.name} of {shapes} at {line}")
        for value in eqn.params.values():
            for one in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    found += listed(inner, line)
    return found


def _line(eqn: Any) -> str | None:
    """The innermost line of the user's."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if "/jaxtribute/" not in frame.file_name:
            return f"{frame.file_name}:{frame.start_line}"
    return None
