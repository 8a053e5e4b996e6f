"""Exact updates of tables: what a dense update does to rows that steps leave alone is done when a row is next needed.

Momentum moves a row on after its gradient is gone. Each row has the number of the step up to which it is right; what
the transformation does with gradients of zero in the steps since then is done before the row is looked up, updated or
saved. Its moments die away, so that after some steps they change nothing but themselves, by constant factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute import Variable, VariableSynchronization
from jaxtribute.errors import ArgumentError, ContextError
from jaxtribute.extending import Overlay, Slots

Still = Callable[[Any, list[Any], list[Any]], tuple[Any, list[Any], list[Any]]]
"""Takes a row, its slots and the counts of steps; gives them after an update by a gradient of zero."""

_COUNTS = (0, 1, 10, 1_000, 100_000)
"""Numbers of steps at which a transformation is tried."""
_MORE_COUNTS = np.unique(np.concatenate([np.arange(1_024), 1.02 ** np.arange(350, 930)]).astype(np.int32))
"""Further ones, for learning rates that are 0 at all of these: each one at first, then 2 % more, to 98 million."""
_SCALES = (1.0, 1e-3, 1e-4)
"""Magnitudes of the first slot in trials; the others' are powers of it, as second moments are squares."""
_LEFT = 1e-10
"""The part of a moment's effect that may be missing."""
_SLOWEST = 0.995
"""The slowest decay of a moment's effect: beyond it, thousands of steps would have to be done again."""


class _Decay(NamedTuple):
    """The change of a row without a gradient.

    Attributes:
      factors: for each slot the factor of a step.
      steps: the number of steps after which moments change the row no more.
    """

    factors: list[float]
    steps: int


class CatchUp:
    """The steps that rows of a table have missed.

    Args:
      update: the optimizer's update, of flat lists.
      variables: the variables that it updates.
      slots: its state.
      place: the table's place among the variables.

    Raises:
      ArgumentError: the update without a gradient cannot be made up for.
    """

    def __init__(
        self, update: Callable[..., list[Any]], variables: Sequence[Variable], slots: Slots, place: int
    ) -> None:
        self._table: Variable = variables[place]
        shared = [one for one, owner in enumerate(slots.owners) if owner is None]
        own = [one for one, owner in enumerate(slots.owners) if owner == place]
        self._still = _stills(update, variables, slots, place)
        moved = _stills(update, variables, slots, place, gradient=1.0)
        self._decay = _decay(self._still, moved, self._table, [slots.variables[one] for one in shared], len(own))
        policy: Any = self._table.policy
        plain = self._table.distribute_strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
        named = partial(Variable.with_policy, strategy=self._table.distribute_strategy)
        stem = self._table.name.removesuffix(":0")
        self.last: Variable = named(np.zeros(self._table.shape[0], np.int32), policy, name=f"{stem}/last")
        """For each row the number of steps up to which it is right."""
        self.count: Variable = named(np.int32(0), plain.fitted((), np.dtype("int32")), name=f"{stem}/steps")
        """The number of steps."""
        self._own = [slots.variables[one] for one in own]
        self._shared = [slots.variables[one] for one in shared]
        self._settled = 0
        # Not one for all tables, which would keep them and their programs for ever.
        self._whole = jax.jit(partial(self._all_caught_up))

    @property
    def pending(self) -> bool:
        """True if a row that is left alone changes at all."""
        return self._decay.steps > 0 or any(factor != 1 for factor in self._decay.factors)

    def arrays(self, executor: Any) -> list[Any]:
        """The arrays that `rows` takes, as an executor sees them."""
        return [executor.get(one) for one in (self._table, *self._own, self.last, self.count, *self._shared)]

    def rows(self, arrays: Sequence[Any], places: Any) -> list[Any]:
        """The rows at places of a part, and beside them their slots, as a dense update would have left them."""
        beside = 2 + len(self._own)
        *found, last = (array.at[places].get(mode="fill", fill_value=0) for array in arrays[:beside])
        return self._caught_up(found, last, arrays[beside], arrays[beside + 1 :])

    def counted(self, places: Any, executor: Any) -> None:
        """Notes that a step has updated the rows at places, and is over."""
        count, last = executor.get(self.count) + np.int32(1), executor.get(self.last)
        executor.set(self.last, last.at[places].set(count, mode="drop", indices_are_sorted=True))
        executor.set(self.count, count)

    def settle(self, executor: Any) -> None:
        """Brings all rows up to the present step, in code of all replicas.

        Raises:
          ContextError: the table is read as a whole while a function of it is differentiated.
        """
        if isinstance(executor, Overlay):
            raise ContextError(
                f"{self._table.name} is read as a whole while it is differentiated. HINT: use jd.nn.embedding_lookup."
            )
        if executor.local:
            return
        if not executor.traced:
            count = int(np.asarray(executor.get(self.count)))
            if count == self._settled:
                return
            self._settled = count
        new = self._whole(self.arrays(executor))
        for variable, array in zip((self._table, *self._own, self.last), new, strict=True):
            executor.set(variable, array)

    def _all_caught_up(self, arrays: Sequence[Any]) -> list[Any]:
        beside = 2 + len(self._own)
        *found, last = arrays[:beside]
        new = self._caught_up(found, last, arrays[beside], arrays[beside + 1 :])
        return [*new, jnp.full_like(last, arrays[beside])]

    def _caught_up(self, found: Sequence[Any], last: Any, count: Any, shared: Sequence[Any]) -> list[Any]:
        factors, steps = self._decay
        behind = count - last
        moving = [slot for slot, factor in zip(found[1:], factors, strict=True) if factor != 1]
        # Most rows were never looked up: nothing moves them.
        moves = jnp.zeros(last.shape, bool)
        for slot in moving:
            moves |= (slot != 0).any(axis=-1)
        near = jnp.minimum(jnp.where(moves, behind, np.int32(0)), np.int32(steps))

        def step(number: Any, rows: list[Any]) -> list[Any]:
            counts = [leaf - behind + number for leaf in shared]
            row, beside, _ = jax.vmap(self._still)(rows[0], rows[1:], counts)
            live = (number < near)[:, None]
            return [jnp.where(live, new, old) for new, old in zip((row, *beside), rows, strict=True)]

        row, *slots = lax.fori_loop(np.int32(0), jnp.max(near), step, list(found))
        further = jnp.maximum(behind - np.int32(steps), np.int32(0))
        for place, factor in enumerate(factors):
            if factor != 1:
                power = jnp.power(jnp.asarray(factor, slots[place].dtype), further.astype(slots[place].dtype))
                slots[place] = slots[place] * power[:, None]
        return [row, *slots]


def _stills(
    update: Callable[..., list[Any]], variables: Sequence[Variable], slots: Slots, place: int, gradient: float = 0.0
) -> Still:
    """The update of one row of a table by a gradient, which is zero if not said, at a step's counts."""

    def still(row: Any, beside: list[Any], counts: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        params = [jnp.zeros(one.shape, one.dtype) for one in variables]
        grads = list(params)
        params[place], grads[place] = row[None], jnp.full_like(row, gradient)[None]
        own, shared, state = iter(beside), iter(counts), list[Any]()
        for slot, owner in zip(slots.variables, slots.owners, strict=True):
            if owner is None:
                state.append(next(shared))
            else:
                # Another table or variable: one row of it is as good as all.
                state.append(next(own)[None] if owner == place else jnp.zeros(slot.shape, slot.dtype))
        new = update(grads, state, params, {})
        after = list(zip(new[len(params) :], slots.owners, strict=True))
        of_row = [slot[0] for slot, owner in after if owner == place]
        return new[place][0], of_row, [leaf for leaf, owner in after if owner is None]

    return still


class _Trials:
    """Updates of one row by a gradient of zero, to find out what they do.

    Args:
      still: the update.
      moved: the same by a gradient that is not zero.
      table: the table.
      shared: the state that belongs to no variable.
      slots: the number of the row's slots.

    Raises:
      ArgumentError: there is state other than counts of steps.
    """

    def __init__(self, still: Still, moved: Still, table: Variable, shared: Sequence[Variable], slots: int) -> None:
        self._moved = moved
        self._still, self.table, self._shared = jax.jit(still), table, shared
        for leaf in shared:
            if leaf.shape or not jnp.issubdtype(leaf.dtype, jnp.integer):
                raise _refused(table, f"its state {leaf.name} of shape {leaf.shape} and dtype {leaf.dtype} is no count")
        self.ones, self.zeros = np.ones(table.shape[1]), np.zeros(table.shape[1])
        random = np.random.default_rng(0)
        self.draws = [
            [scale ** (1 + place) * random.uniform(0.5, 1.5, table.shape[1]) for place in range(slots)]
            for scale in _SCALES
        ]
        self.factors = [float(one[0]) for one in self.after(self.zeros, [self.ones] * slots, 1_000)[1]]

    def after(self, row: Any, beside: Sequence[Any], count: int) -> tuple[Any, list[Any]]:
        """A row and its slots after the update number `count`."""
        dtype = self.table.dtype
        counts = [jnp.asarray(count, leaf.dtype) for leaf in self._shared]
        new, slots, counted = self._still(jnp.asarray(row, dtype), [jnp.asarray(one, dtype) for one in beside], counts)
        if any(leaf != count + 1 for leaf in counted):
            raise _refused(self.table, "its state other than moments does not count steps")
        return np.asarray(new, np.float64), [np.asarray(one, np.float64) for one in slots]

    def check(self, count: int) -> None:
        """Checks that a row without moments stays as it is, and that moments decay."""
        for row in (self.ones, -1e3 * self.ones):
            if (self.after(row, [self.zeros] * len(self.factors), count)[0] != row).any():
                raise _refused(self.table, "it changes a row that has no moments, as weight decay does")
        for draw in self.draws:
            change, new = self.after(self.zeros, draw, count)
            for factor, old, one in zip(self.factors, draw, new, strict=True):
                if not np.allclose(one, factor * old, rtol=1e-5, atol=0):
                    raise _refused(self.table, "its moments do not decay by constant factors")
            if not np.allclose(self.after(self.ones, draw, count)[0] - 1, change, rtol=1e-5, atol=1e-6):
                raise _refused(self.table, "a row's change depends on the row")

    def live(self) -> list[int]:
        """Some counts at which a gradient changes a row, so that a trial tells something: the learning rate is not 0.

        Raises:
          ArgumentError: there are none.
        """
        zeros, dtype = jnp.zeros(self.table.shape[1]), self.table.dtype

        def moves(count: Any) -> Any:
            counts = [jnp.asarray(count, leaf.dtype) for leaf in self._shared]
            new, *_ = self._moved(zeros.astype(dtype), [zeros.astype(dtype)] * len(self.factors), counts)
            return (new != 0).any()

        counts = _MORE_COUNTS[np.asarray(jax.jit(jax.vmap(moves))(_MORE_COUNTS))]
        if not counts.size:
            raise _refused(self.table, "its gradients change nothing at any step, so that nothing is known of moments")
        return [int(counts[0]), int(counts[counts.size // 2])]

    def slowest(self, count: int) -> float:
        """The largest factor by which what moments do to a row becomes less in a step; 0 if they do nothing."""
        found = 0.0
        for draw in self.draws:
            change, _ = self.after(self.zeros, draw, count)
            later, _ = self.after(self.zeros, [f * one for f, one in zip(self.factors, draw, strict=True)], count)
            here = change != 0
            found = max(found, float(np.max(np.abs(later[here] / change[here]), initial=0.0)))
        return found


def _decay(still: Still, moved: Still, table: Variable, shared: Sequence[Variable], slots: int) -> _Decay:
    """Finds out what becomes of a row without a gradient.

    Raises:
      ArgumentError: it cannot be made up for.
    """
    trials, counts = _Trials(still, moved, table, shared, slots), list(_COUNTS)
    if not max(map(trials.slowest, counts)):
        counts += trials.live()
    for count in counts:
        trials.check(count)
    slowest = max(map(trials.slowest, counts))
    if not slowest:
        return _Decay(trials.factors, 0)
    if not slowest < _SLOWEST:
        raise _refused(table, f"what its moments do to a row falls by {slowest:.4g} a step, too slowly")
    return _Decay(trials.factors, math.ceil(math.log(_LEFT) / math.log(max(slowest, 1e-3))))


def _refused(table: Variable, why: str) -> ArgumentError:
    return ArgumentError(
        f"the transformation cannot update {table.name} exactly: {why}. HINT: use optax.sgd, with momentum or without, "
        "optax.adam, optax.adagrad or optax.rmsprop; or make the table with updates='lazy'."
    )
