"""Lookups within JAX transformations of a function that is differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtribute.errors import TraceError
from jaxtribute.extending import Overlay, Tracer


def check_outside(executor: Overlay, name: str, given: Sequence[Any]) -> None:
    """Checks that ids, and which of them count, are known outside of JAX transformations in a differentiated function.

    Args:
      executor: the executor of the function.
      name: the table's.
      given: ids and masks.

    Raises:
      TraceError: they are not.
    """
    around: list[Any] = []
    trace: Any = executor.trace
    while trace is not None:
        around.append(trace)
        trace = getattr(trace, "parent_trace", None)
    for one in given:
        own = getattr(one, "_trace", None) if isinstance(one, Tracer) else None
        if own is not None and all(own is not trace for trace in around):
            raise TraceError(
                f"rows of {name} are looked up within jd.grad by ids of a JAX transformation in it (jax.vmap, "
                "jax.checkpoint, jax.jit, or the values that lax.scan goes over). HINT: look all rows up before it, "
                "rows = jd.nn.embedding_lookup(table, ids), and pass it the rows: jax.vmap(one)(rows)."
            )
