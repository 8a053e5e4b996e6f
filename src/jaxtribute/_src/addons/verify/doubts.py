"""The doubts that a verdict leaves, in words: all that may hide a mistake, and is reported as NOT VERIFIED."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtribute._src.addons.verify.verdict import Verdict

WRONG, OPEN, HIDDEN = 1, 2, 3
"""Exit statuses: a step differs; one could not be verified; what was compared does not tell what the program trains."""
NOTHING = "nothing of it was compared with one device"
_NAMES = 4


def doubts(verdict: Verdict) -> Iterator[tuple[int, str]]:
    """Gives each doubt, with the exit status of the command; the most serious come first."""
    if not verdict.compared:
        yield OPEN, NOTHING
    if not verdict.asynchronous:
        yield from ((OPEN, what) for what in _open(verdict))
    yield from ((HIDDEN, what) for what in _hidden(verdict))


def _open(verdict: Verdict) -> Iterator[str]:
    if verdict.pending:
        names = ", ".join(verdict.pending[:_NAMES]) + (" ..." if len(verdict.pending) > _NAMES else "")
        yield (
            f"{names}: another value on each replica, which nothing reduces. A mistake if the next call is given it as "
            "its state"
        )
    for branch in verdict.parted:
        yield (
            f"a branch that is not taken, by what each replica has of its own: {branch}: {branch.text}. A mistake if "
            "one replica takes it and another does not. HINT: decide by what is reduced over the replicas"
        )
    yield from verdict.missing
    yield from verdict.stored
    uneven = [reason for arrangement, reason in verdict.refused if arrangement.kind == "does not divide"]
    if verdict.tried and verdict.uneven and uneven and all(one.kind != "does not divide" for one in verdict.tried):
        yield f"batches that the replicas do not share evenly, which the program has: {uneven[0]}"


def _hidden(verdict: Verdict) -> Iterator[str]:
    if verdict.still and verdict.unread is not None:
        yield (
            f"{verdict.unread}: {verdict.unread.text}: the loss reads none of the variables that it is differentiated "
            "by: its gradient is 0, and nothing is trained. HINT: read them in the loss; what was read of them before "
            "the step, as in params = model.value, is a constant"
        )
    elif verdict.still:
        yield (
            "no step changes what is trained, or by rounding alone (a learning rate of 0, a condition that does not "
            "hold, or first weights that leave nothing to learn?), so that a wrong gradient is not seen"
        )
    if verdict.blank:
        yield f"{', '.join(verdict.blank[:_NAMES])}: NaN on one device, as on replicas, so that no difference is seen"
    if verdict.unsure is not None and verdict.idle:
        yield verdict.unsure


def kept_for_good(name: str) -> str:
    """Says that a number of replicas is kept where it cannot be that of one device."""
    return (
        f"{name} keeps the number of replicas where nothing can change it, so that one device is given it as well. "
        "HINT: read strategy.num_replicas_in_sync in the replica function"
    )
