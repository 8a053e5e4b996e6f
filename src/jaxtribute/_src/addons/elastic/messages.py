"""Messages between the state machines of islands, as bytes, and what an island says of its progress."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtribute._src.addons.elastic.journal import plain_view, view_of
from jaxtribute._src.addons.elastic.membership import Ballot, Island, Kind, Message


class Status(NamedTuple):
    """Progress of an island when it came into a view.

    Attributes:
      committed: the number of steps that it has committed.
      held: the view in which it holds the next one; -1 if it does not.
    """

    committed: int
    held: int = -1


def encoded(message: Message, status: Status | None) -> bytes:
    """A message as bytes, with the sender's progress if it is to be told."""
    view = message.view
    plain: list[Any] = [
        message.kind.value,
        message.number,
        message.ballot,
        message.earlier,
        None if view is None else plain_view(view),
        status,
    ]
    return json.dumps(plain).encode()


def decoded(data: bytearray) -> tuple[Message, Status | None]:
    """The inverse of `encoded`."""
    kind, number, ballot, earlier, view, status = json.loads(data)
    seen = None if view is None else view_of(view)
    message = Message(Kind(kind), number, _ballot(ballot), seen, _ballot(earlier))
    return message, None if status is None else Status(*status)


def _ballot(plain: Sequence[Any]) -> Ballot:
    return Ballot(plain[0], Island(*plain[1]))
