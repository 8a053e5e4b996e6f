"""Tells a loss that reads nothing of what it is differentiated by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtribute import Variable
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.stage import Outcome


def unread(one: Outcome, state: Mapping[Variable, Any]) -> Place | None:
    """The line that differentiates a loss that reads no variable that is trained; None if there is none.

    Args:
      one: the run on one device, which has kept what it computed.
      state: what the variables held before.
    """
    tape = one.tapes[0]
    trained = [variable for variable in one.written if variable.trainable]
    held = {id(state[variable]) for variable in trained if variable in state}
    if not held or not any(record.derived for record in tape.records):
        return None
    after: set[int] = set()
    for number, record in enumerate(tape.records):
        makers = (maker for value in record.operands for maker in tape.makers.get(id(value), ()))
        if any(tape.is_of(value, held) for value in record.operands) or not after.isdisjoint(makers):
            if record.derived:
                return None
            after.add(number)
    lines = (*one.losses, *(one.lines.get(variable) for variable in trained))
    return next(filter(None, lines), None)
