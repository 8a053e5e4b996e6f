"""A step that is only looked at: the program of a replica with some number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import ReplicaContext
from jaxtribute._src.addons.keras.forms import batch_of
from jaxtribute._src.addons.keras.meeting import share_of
from jaxtribute._src.addons.keras.share import Share
from jaxtribute.extending import Context, ReplicaMesh, TracedReplica, Tracer
from jaxtribute.typing import Nest


def traced_step(
    share: Share,
    batch: Nest,
    rows: int,
    step: Callable[[Share, Nest, TracedReplica], list[Any]],
    *,
    weighs_later: bool = False,
) -> Any:
    """Traces a step of a replica that has so many rows, as all others have.

    Args:
      share: that of a replica which runs the step.
      batch: its batch, of which forms and dtypes count.
      rows: the number of rows.
      step: takes the share, the batch and the executor, and gives what the program returns.
      weighs_later: see `InStep`.

    Returns:
      The program, a `ClosedJaxpr` whose inputs are the leaves of the batch.
    """
    strategy, outer = share.context.strategy, Context.current().executor
    mesh: ReplicaMesh = strategy.extended.mesh

    def program(batch: Nest) -> list[Any]:
        context = ReplicaContext(strategy, lax.axis_index(AXIS))
        part = share_of(context, rows, rows * mesh.size, share.metrics, weighs_later)
        replica = TracedReplica(mesh, (), outer, [], None, uneven=True)
        with Context.entered(Context(strategy, context, replica)):
            values = step(part, batch, replica)
        return [value if isinstance(value, Tracer) else jnp.asarray(value) for value in values]

    with mesh.within():
        return jax.make_jaxpr(program, axis_env=[(AXIS, mesh.size)])(batch_of(rows, batch))
