"""`jd.Optimizer` whose variables are on parameter servers: gradients travel, slots stay beside the shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax.tree_util import keystr

from jaxtribute import IndexedSlices
from jaxtribute._src.addons.parameter_servers.server.client import Exchange
from jaxtribute._src.addons.parameter_servers.server.layout import Shard
from jaxtribute._src.addons.parameter_servers.server.staleness import OPTIMIZER
from jaxtribute._src.addons.parameter_servers.variables.access import summed_rows
from jaxtribute._src.addons.parameter_servers.variables.operations import OptimizerOperation
from jaxtribute._src.addons.tables.proof import check_row_wise
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import (
    Context,
    Flow,
    JaxprEqn,
    Overlay,
    Parameters,
    Programs,
    Slots,
    TracedProgram,
    check_untraced,
    optax_rules,
)
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable


@dataclass(frozen=True, slots=True)
class ServerPart:
    """One server's part of an optimizer's work.

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


def plan_parts(
    transform: optax.GradientTransformation, variables: Sequence[ServerVariable], parameters: Parameters
) -> tuple[Any, list[Any], list[ServerPart]]:
    """Division of an optimizer's work over the servers.

    Args:
      transform: the transformation.
      variables: the variables.
      parameters: their nest.

    Returns:
      The shapes of the whole state, whom its leaves belong to, and what each server does.

    Raises:
      ArgumentError: the transformation mixes what is on several servers.
    """
    with optax_rules():
        state = jax.eval_shape(transform.init, parameters.abstract)
    places = {keystr(path): leaf for leaf, (path, _) in enumerate(jax.tree.leaves_with_path(state))}
    if any(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise ArgumentError("the transformation keeps random keys, which parameter servers do not. HINT: leave it out.")
    with optax_rules():
        belongings = parameters.belongings(state, transform.init)
    owned: dict[int, list[tuple[int, Shard]]] = {}
    for i, variable in enumerate(variables):
        for shard in variable.layout.shards:
            owned.setdefault(shard.server, []).append((i, shard))
    if len(owned) > 1 or any(v.layout.split for v in variables):
        check_separable(transform, state, variables, parameters, belongings)
    parts: list[ServerPart] = []
    for server, shards in sorted(owned.items()):
        slots: list[tuple[int, int | None]] = []
        shapes: list[tuple[int, ...]] = []
        for path, owner, leaf in _state_of(transform, shards, variables, parameters):
            if path not in places:
                raise ArgumentError(
                    f"the transformation's state {path} cannot be split over {len(owned)} parameter servers. "
                    "HINT: use one server, or another transformation."
                )
            # A slot lies beside each shard of its variable.
            beside = [place for place, (i, _) in enumerate(shards) if i == owner]
            slots.extend((places[path], place) for place in beside or [None])
            shapes.extend([shards[place][1].shape for place in beside] or [tuple(leaf.shape)])
        parts.append(ServerPart(server, tuple(shards), tuple(slots), tuple(shapes)))
    return state, belongings, parts


def _state_of(
    transform: optax.GradientTransformation,
    shards: Sequence[tuple[int, Shard]],
    variables: Sequence[ServerVariable],
    parameters: Parameters,
) -> Iterator[tuple[str, int | None, Any]]:
    """Path, owner and shape of each leaf of the state that a server makes of its shards."""
    rows: dict[int, list[Shard]] = {}
    for i, shard in shards:
        rows.setdefault(i, []).append(shard)
    local: list[Any] = [None] * len(variables)
    for i, several in rows.items():
        shape = several[0].shape
        # Several shards of a variable are one array of their rows there.
        shape = (sum(shard.shape[0] for shard in several), *shape[1:]) if len(several) > 1 else shape
        local[i] = jax.ShapeDtypeStruct(shape, variables[i].dtype)
    nest = parameters.nest(local)
    numbers = [i for i, one in enumerate(local) if one is not None]
    own = Parameters.of([local[i] for i in numbers], jax.tree.structure(nest))
    with optax_rules():
        state = jax.eval_shape(transform.init, nest)
        belongings = own.belongings(state, transform.init)
    for (path, leaf), one in zip(jax.tree.leaves_with_path(state), belongings, strict=True):
        yield keystr(path), None if one.owner is None else numbers[one.owner], leaf


def check_separable(
    transform: optax.GradientTransformation,
    state: Nest,
    variables: Sequence[ServerVariable],
    parameters: Parameters,
    belongings: Sequence[Any],
) -> None:
    """Checks that each variable's update needs nothing of the others, and of a split one nothing of other rows.

    Raises:
      ArgumentError: it does, as `optax.clip_by_global_norm` or a norm of each layer do.
    """
    params = parameters.abstract
    with optax_rules():
        closed = jax.make_jaxpr(lambda g, s, p: transform.update(g, s, p)[0])(params, state, params)
    count, leaves = len(variables), len(jax.tree.leaves(state))
    # In the order of the inputs: gradients, state, parameters.
    owners: list[int | None] = [*range(count), *(one.owner for one in belongings), *range(count)]
    assert len(owners) == 2 * count + leaves
    taints = [frozenset() if owner is None else frozenset({owner}) for owner in owners]
    split = frozenset(i for i, v in enumerate(variables) if v.layout.split)
    for i, taint in enumerate(_Needed(split).outputs(Programs.opened(closed), taints)):
        if taint - {i}:
            others = [variables[j].name if j >= 0 else "its own other rows" for j in sorted(taint - {i})]
            raise ArgumentError(
                f"the update of {variables[i].name} needs {', '.join(others)}, which other parameter servers may hold. "
                "HINT: clip or normalise the gradients in the step, before apply_gradients, or use one server."
            )


_ROWS_KEPT = Programs.ELEMENTWISE | {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy_p"}


class _Needed(Flow[frozenset[int]]):
    """The variables that a value depends on; -1 among them if it may mix the rows of one of `split`."""

    def __init__(self, split: frozenset[int]) -> None:
        super().__init__(frozenset())
        self._split = split

    def merged(self, one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
        """Union of the dependencies of both operands."""
        return one | other

    def row(self, whole: frozenset[int]) -> frozenset[int]:
        """A loop over rows may carry something from one to the next."""
        return whole | {-1} if whole & self._split else whole

    def equation(self, eqn: JaxprEqn, given: list[frozenset[int]]) -> list[frozenset[int]]:
        """Dependencies of the operands; rows are mixed by all that is not known to keep them apart."""
        union = frozenset[int]().union(*given)
        # Unknown operations count as mixing rows: refused wrongly is better than a norm over one shard, taken for all
        # rows.
        if union & self._split and eqn.primitive.name not in _ROWS_KEPT:
            union |= {-1}
        return [union] * len(eqn.outvars)


class RemoteOptimizer:
    """One optimizer's work on servers.

    Args:
      key: what the servers know it by.
      variables: the variables that it updates.
      parts: what each server does.
      slots: the variables of its state.
      transform: the transformation.
      nest: the nest of the variables, with their numbers as leaves.
    """

    key: int
    variables: tuple[ServerVariable, ...]
    slots: Slots

    def __init__(
        self,
        key: int,
        variables: Sequence[ServerVariable],
        parts: Sequence[ServerPart],
        slots: Slots,
        transform: optax.GradientTransformation,
        nest: Nest,
    ) -> None:
        self.key, self.variables, self._parts, self.slots = key, tuple(variables), tuple(parts), slots
        self._transform: optax.GradientTransformation = transform
        self._nest = nest
        self._by_rows: set[int] = set()
        """The variables, by their places, that are known to be updated by their rows."""

    def apply(self, grads: Sequence[Any], context: Context) -> None:
        """Sends the gradients, now or at the end of the step that is being traced."""
        executor = context.executor
        if isinstance(executor, Overlay):
            raise ArgumentError("apply_gradients inside a function that jd.grad differentiates. HINT: call it outside.")
        forms: list[int] = []
        values: list[Any] = []
        self._check_rows({i for i, grad in enumerate(grads) if isinstance(grad, IndexedSlices)})
        for grad, variable in zip(grads, self.variables, strict=True):
            if isinstance(grad, IndexedSlices):
                forms.append(2)
                values.extend((grad.indices, grad.values))
            else:
                forms.append(1)
                values.append(jax.numpy.asarray(grad).astype(variable.dtype))
        if isinstance(executor, TracedProgram):
            executor.record(OptimizerOperation(self, forms), values, self.variables[0])
            return
        check_untraced(self.variables[0])
        access = self.variables[0].policy.access
        with access.client.lock:
            exchange = Exchange(access.client)
            self.add_to(exchange, forms, values)
            access.run(exchange)

    def _check_rows(self, places: set[int]) -> None:
        """Checks that a server can update some variables by the rows of their gradients alone.

        Raises:
          ArgumentError: a row's update depends on other rows, or on how many there are, or comes in a later step.
        """
        if places <= self._by_rows:
            return
        parameters = Parameters.of(self.variables, jax.tree.structure(self._nest))

        def update(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any], _: Any) -> list[Any]:
            nest, state = parameters.nest(params), self.slots.tree.unflatten(values)
            with optax_rules():
                updates, fresh = self._transform.update(parameters.nest(grads), state, nest)
                return [*jax.tree.leaves(optax.apply_updates(nest, updates)), *Slots.arrays_of(fresh)]

        try:
            check_row_wise(self._transform, update, parameters, self.slots, self.variables, sorted(places))
        except ArgumentError as error:
            raise ArgumentError(
                f"{error} Or look the rows up as variable.read_value()[ids], whose gradient is of the whole variable."
            ) from None
        self._by_rows |= places

    def add_to(self, exchange: Exchange, forms: Sequence[int], values: Sequence[Any]) -> None:
        """Puts a step into a request: to each server the gradients of its shards."""
        given = iter(values)
        grads: list[Any] = []
        for form in forms:
            if form == 1:
                grads.append(np.asarray(next(given)))
            else:  # the rows of one id are added up, as a server reads and writes each of its rows once in a step
                grads.append(summed_rows(next(given), next(given)))
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
                # Cut to 32 bits only here: a longer id would be that of another row.
                arrays.extend(((ids[mask] - start).astype(np.int32), rows[mask]))
            local = [forms[i] for i, _ in part.shards]
            exchange.operation(part.server, [OPTIMIZER, self.key, len(arrays), local], arrays)
