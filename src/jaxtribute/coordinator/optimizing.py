"""`jd.Optimizer` whose variables are on parameter servers: gradients travel, slots stay beside the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxtribute import context as contexts
from jaxtribute.coordinator.access import summed_rows
from jaxtribute.coordinator.client import Exchange
from jaxtribute.coordinator.layout import Shard
from jaxtribute.coordinator.operations import OptimizerOperation, record
from jaxtribute.errors import ArgumentError
from jaxtribute.execution.frames import OverlayFrame, TracedFrame, check_untraced
from jaxtribute.optimizer.slots import Slots, optax_rules, owner_of_leaves
from jaxtribute.values.scatter import IndexedSlices

if TYPE_CHECKING:
    from jaxtribute.coordinator.variable import ServerVariable


@dataclass(frozen=True, slots=True)
class ServerPart:
    """What one server updates.

    Attributes:
      server: which one.
      shards: the index of the variable and the shard, in the order in which the server knows them.
      slots: for each leaf of its state the leaf of the whole state that it is (a part of), and the index in `shards`
        of the shard that it belongs to, or None.
      shapes: the leaves' shapes.
    """

    server: int
    shards: tuple[tuple[int, Shard], ...]
    slots: tuple[tuple[int, int | None], ...]
    shapes: tuple[tuple[int, ...], ...]


def plan_parts(transform: Any, variables: Sequence[ServerVariable]) -> list[ServerPart]:
    """How an optimizer's work is split over the servers.

    Raises:
      ArgumentError: the transformation mixes what is on several servers.
    """
    whole = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    with optax_rules():
        state = jax.eval_shape(transform.init, whole)
    places = {_path(path): leaf for leaf, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(state))}
    if any(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise ArgumentError("the transformation keeps random keys, which parameter servers do not. HINT: leave it out.")
    owned: dict[int, list[tuple[int, Shard]]] = {}
    for i, variable in enumerate(variables):
        for shard in variable.layout.shards:
            owned.setdefault(shard.server, []).append((i, shard))
    if len(owned) > 1 or any(v.layout.split for v in variables):
        check_separable(transform, state, variables)
    parts: list[ServerPart] = []
    for server, shards in sorted(owned.items()):
        local = [jax.ShapeDtypeStruct(shard.shape, variables[i].dtype) for i, shard in shards]
        with optax_rules():
            here = jax.eval_shape(transform.init, local)
        slots: list[tuple[int, int | None]] = []
        leaves = jax.tree_util.tree_leaves_with_path(here)
        for (path, _), owner in zip(leaves, owner_of_leaves(here, cast("Any", local)), strict=True):
            known = _path(path) if owner is None else _path((*path[:-1], jax.tree_util.SequenceKey(shards[owner][0])))
            if known not in places:
                raise ArgumentError(
                    f"the transformation's state {known} cannot be split over {len(owned)} parameter servers. "
                    "HINT: use one server, or another transformation."
                )
            slots.append((places[known], owner))
        parts.append(ServerPart(server, tuple(shards), tuple(slots), tuple(tuple(leaf.shape) for _, leaf in leaves)))
    return parts


def check_separable(transform: Any, state: Any, variables: Sequence[ServerVariable]) -> None:
    """Checks that each variable's update needs nothing of the others, and of a split one nothing of other rows.

    Raises:
      ArgumentError: it does, as `optax.clip_by_global_norm` or a norm of each layer do.
    """
    params = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    with optax_rules():
        closed = jax.make_jaxpr(lambda g, s, p: transform.update(g, s, p)[0])(params, state, params)
    count, leaves = len(variables), len(jax.tree.leaves(state))
    owners: list[int | None] = [*range(count), *owner_of_leaves(state, variables), *range(count)]
    assert len(owners) == 2 * count + leaves
    taints = [frozenset() if owner is None else frozenset({owner}) for owner in owners]
    split = frozenset(i for i, v in enumerate(variables) if v.layout.split)
    for i, taint in enumerate(_flow(closed.jaxpr, taints, split)):
        if taint - {i}:
            others = [variables[j].name if j >= 0 else "its own other rows" for j in sorted(taint - {i})]
            raise ArgumentError(
                f"the update of {variables[i].name} needs {', '.join(others)}, which other parameter servers may hold. "
                "HINT: clip or normalise the gradients in the step, before apply_gradients, or use one server."
            )


_MIXING = ("reduce_", "dot_general", "cum", "sort", "argm", "conv_", "transpose", "rev", "concatenate", "gather")


def _flow(jaxpr: Any, taints: Sequence[frozenset[int]], split: frozenset[int]) -> list[frozenset[int]]:
    """For each output the variables that it depends on; -1 if it mixes the rows of a split one."""
    known: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, taints, strict=True))

    def of(atom: Any) -> frozenset[int]:
        return frozenset() if hasattr(atom, "val") else known.get(atom, frozenset())

    for eqn in jaxpr.eqns:
        given = [of(atom) for atom in eqn.invars]
        inner = next((eqn.params[k] for k in ("jaxpr", "call_jaxpr") if k in eqn.params), None)
        inner = getattr(inner, "jaxpr", inner)
        if inner is not None and len(inner.invars) == len(given) and len(inner.outvars) == len(eqn.outvars):
            found = _flow(inner, given, split)
        else:
            union = frozenset[int]().union(*given)
            if union & split and eqn.primitive.name.startswith(_MIXING):
                union |= {-1}
            found = [union] * len(eqn.outvars)
        known.update(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


class RemoteOptimizer:
    """One optimizer's work on servers.

    Args:
      key: what the servers know it by.
      variables: the variables that it updates.
      parts: what each server does.
      slots: the variables of its state.
    """

    def __init__(
        self, key: int, variables: Sequence[ServerVariable], parts: Sequence[ServerPart], slots: Slots
    ) -> None:
        self.key, self.variables, self._parts, self.slots = key, tuple(variables), tuple(parts), slots

    def apply(self, grads: Sequence[Any], context: contexts.Context) -> None:
        """Sends the gradients, now or at the end of the step that is being traced."""
        frame = context.frame
        if isinstance(frame, OverlayFrame):
            raise ArgumentError("apply_gradients inside a function that jd.grad differentiates. HINT: call it outside.")
        forms = [2 if isinstance(grad, IndexedSlices) else 1 for grad in grads]
        values: list[Any] = []
        for grad, variable in zip(grads, self.variables, strict=True):
            if isinstance(grad, IndexedSlices):
                values.extend((grad.indices, grad.values))
            else:
                values.append(jax.numpy.asarray(grad).astype(variable.dtype))
        if isinstance(frame, TracedFrame):
            record(frame, OptimizerOperation(self, forms), values, self.variables[0])
            return
        check_untraced(self.variables[0])
        access = self.variables[0].policy.access
        with access.client.lock:
            exchange = Exchange(access.client)
            self.add_to(exchange, forms, values)
            access.run(exchange)

    def add_to(self, exchange: Exchange, forms: Sequence[int], values: Sequence[Any]) -> None:
        """Puts a step into a request: to each server the gradients of its shards."""
        given = iter(values)
        grads: list[Any] = [
            np.asarray(next(given)) if form == 1 else summed_rows(next(given), next(given)) for form in forms
        ]
        for part in self._parts:
            arrays: list[Any] = []
            for i, shard in part.shards:
                split = self.variables[i].layout.split
                if forms[i] == 1:
                    arrays.append(grads[i][shard.start : shard.stop] if split else grads[i])
                    continue
                ids, rows = grads[i]
                start = shard.start if split else 0
                mask = (ids >= start) & (ids < start + shard.shape[0])
                arrays.extend((ids[mask] - start, rows[mask]))
            local = [forms[i] for i, _ in part.shards]
            exchange.operation(part.server, ["optimizer", self.key, len(arrays), local], arrays)


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path)
