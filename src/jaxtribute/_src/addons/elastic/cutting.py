"""The parts of a program between its exchanges: as few as there are dependencies between these.

Exchanges that do not need each other's results are made together, wherever they stand in the program: a loss that is
summed after the update travels with the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtribute.extending import Programs


class Part(NamedTuple):
    """Operations of a program, and the exchanges that follow them.

    Attributes:
      eqns: the operations, in their order.
      exchanges: those that are made together behind them; none behind the last part.
    """

    eqns: list[Any]
    exchanges: list[Any]


def parts_of(eqns: Sequence[Any], is_exchange: Callable[[Any], bool], apart: bool = False) -> list[Part]:
    """The operations of a program in parts, between which its exchanges are made.

    Args:
      eqns: the operations, in their order.
      is_exchange: tells which are exchanges.
      apart: True if each exchange is to be made alone, in their order.
    """
    rounds = _rounds(eqns, is_exchange, apart)
    count = 1 + max((rounds[place] for place, eqn in enumerate(eqns) if is_exchange(eqn)), default=-1)
    places = _places(eqns, is_exchange, rounds, count)
    parts = [Part([], []) for _ in range(count + 1)]
    for place, eqn in enumerate(eqns):
        part = parts[places[place]]
        (part.exchanges if is_exchange(eqn) else part.eqns).append(eqn)
    return parts


def _rounds(eqns: Sequence[Any], is_exchange: Callable[[Any], bool], apart: bool) -> list[int]:
    """For each operation the number of exchanges that must be made one after the other before it."""
    made: dict[Any, int] = {}
    rounds: list[int] = []
    effect = passed = 0
    for eqn in eqns:
        number = max((made.get(var, 0) for var in Programs.used_by([eqn])), default=0)
        if is_exchange(eqn):
            if apart:
                number, passed = passed, passed + 1
        elif eqn.effects:  # after those before it
            number = effect = max(number, effect)
        rounds.append(number)
        made.update(dict.fromkeys(eqn.outvars, number + is_exchange(eqn)))
    return rounds


def _places(eqns: Sequence[Any], is_exchange: Callable[[Any], bool], rounds: list[int], count: int) -> list[int]:
    """For each operation the number of its part: where it stands, or before, if an exchange needs it there."""
    stands, passed = list(rounds), 0
    for place, eqn in enumerate(eqns):
        if is_exchange(eqn):
            passed = max(passed, rounds[place] + 1)
        else:
            # Not as soon as can be: what belongs to the update would become arrays that wait for it.
            stands[place] = passed
    latest: dict[Any, int] = {}
    effect = count
    for place in reversed(range(len(eqns))):
        eqn = eqns[place]
        if not is_exchange(eqn):
            stands[place] = min([stands[place], *(latest.get(var, count) for var in eqn.outvars)])
            if eqn.effects:  # these stay in their order
                effect = stands[place] = min(stands[place], effect)
        for var in Programs.used_by([eqn]):
            latest[var] = min(latest.get(var, count), stands[place])
    return stands
