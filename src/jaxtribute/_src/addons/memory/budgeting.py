"""Registers what keeps a loss within a budget: it is traced, a plan is chosen, and the loss runs by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxtribute._src.addons.memory.amounts import AUTO, available, checked, placed
from jaxtribute._src.addons.memory.chains import Chain, nbytes
from jaxtribute._src.addons.memory.choosing import Plan, Search
from jaxtribute._src.addons.memory.running import run
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Callers, Kinds, points
from jaxtribute.typing import Function, Nest


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice for a loss, in bytes on each replica.

    Attributes:
      asked: the budget as it was asked for.
      budget: the same in bytes; None where the device does not say what it has.
      everything: what the backward pass would keep without a budget.
      kept: what it keeps.
      recomputed: what it computes again rather than keep.
      work: the largest part of that which is in memory at a time.
      peak: the most bytes at a time: by the time that an early piece is computed again, what later ones kept has gone.
      pieces: how many parts of the loss are computed again; the turns of a loop count once.
      single: operations that would be too, but meet other replicas, or have effects.
    """

    asked: int | str
    budget: int | None
    everything: int
    kept: int
    recomputed: int
    work: int
    peak: int
    pieces: int
    single: int

    def __str__(self) -> str:
        bound = "no bound known" if self.budget is None else f"a budget of {mib(self.budget)}"
        text = f"Memory of the backward pass, {bound}: {mib(self.kept)} kept, {mib(self.recomputed)} recomputed in "
        text += (
            f"{self.pieces} piece(s), {mib(self.work)} at a time, none moved; {mib(self.everything)} without a budget."
        )
        if self.single:
            text += f" {self.single} operation(s) meet other replicas or have effects, and are not computed again."
        return text


class Budgets:
    """The entry of `points.BUDGETS`."""

    def checked(self, memory: int | str) -> int | str:
        """A budget that is one; see `amounts.checked`."""
        return checked(memory)

    def within(self, loss: Function, memory: int | str, *, gathers: bool) -> Function:
        """The loss, traced once and run by a plan that fits.

        Args:
          loss: a function of a nest of arrays that returns a nest of arrays.
          memory: the budget.
          gathers: True if gathered variables are gathered again.
        """

        def bounded(values: Nest) -> Any:
            program, shapes = jax.make_jaxpr(loss, return_shape=True)(values)
            leaves = jax.tree.leaves(values)
            cpu = placed().platform == "cpu"
            chain = Chain(program, [True] * len(leaves), gathers=gathers, cpu=cpu)
            plan = _chosen(chain, memory, leaves)
            return jax.tree.unflatten(jax.tree.structure(shapes), run(chain, plan, leaves))

        return bounded


def _chosen(chain: Chain, memory: int | str, leaves: Sequence[Any]) -> Plan:
    """The plan for a budget; observers are told of it."""
    trained = sum(map(nbytes, leaves))
    budget = available(trained) if memory == AUTO else int(memory)
    search = Search(chain)
    whole = search.everything()
    with Kinds.BUDGET.during(chain, "loss", memory) as event:
        plan = whole if budget is None else search.best(budget)
        single = sum(operation.once for operation in chain.operations)
        again = max(whole.kept - plan.kept, 0)
        event.result = Choice(memory, budget, whole.kept, plan.kept, again, plan.work, plan.peak, _pieces(plan), single)
    if budget is not None and plan.peak > budget:
        _say_that_it_does_not_fit(chain, plan, whole, memory, budget)
    return plan


def _pieces(plan: Plan) -> int:
    count = 0
    for piece in plan.pieces:
        count += piece.recomputed + (0 if piece.body is None else _pieces(piece.body))
    return count


def _say_that_it_does_not_fit(chain: Chain, plan: Plan, whole: Plan, memory: int | str, budget: int) -> None:
    """Refuses a budget that cannot be held; warns of one that was concluded from the device.

    Raises:
      ArgumentError: a budget in bytes.
    """
    stuck = {operation.eqn.primitive.name for operation in chain.operations if operation.once}
    reason = f" {', '.join(sorted(stuck)[:5])} cannot be computed again." if stuck else ""
    text = (
        f"the backward pass needs {mib(plan.peak)} on each replica even if all that can be is computed again "
        f"({mib(plan.kept)} kept, {mib(plan.work)} at a time), and memory={memory!r} allows {mib(budget)}; without a "
        f"budget it keeps {mib(whole.kept)}.{reason} HINT: use fewer examples on each replica, 16-bit numbers, "
        "jax.lax.scan over equal layers, or a larger budget."
    )
    if memory != AUTO:
        raise ArgumentError(text)
    Callers.warn(text)


def mib(count: float) -> str:
    """Bytes as KiB, MiB or GiB, of powers of 1,024, as budgets are written."""
    if count < 1 << 20:
        return f"{count / (1 << 10):,.1f} KiB"
    if count < 1 << 30:
        return f"{count / (1 << 20):,.1f} MiB"
    return f"{count / (1 << 30):,.2f} GiB"


points.BUDGETS.register(Budgets())
