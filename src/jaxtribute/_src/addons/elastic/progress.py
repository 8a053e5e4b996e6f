"""`Progress`: news of their steps that islands tell when they come into a view."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.messages import Status

_NOTHING: Mapping[Island, Status] = MappingProxyType({})


class Progress:
    """News that the members of each view have told, this island among them.

    Args:
      me: this island.
      first: the view that it begins in; None for one that joins.
    """

    def __init__(self, me: Island, first: View | None) -> None:
        self._me = me
        self.entered = first
        """The view that this island has come into last."""
        self.fed: View | None = None
        """The view whose newcomers have what they need of this island."""
        self._own = Status(0)
        self._told: dict[int, dict[Island, Status]] = {} if first is None else {first.number: {me: self._own}}

    def enter(self, view: View, own: Status) -> None:
        """Takes note that this island comes into a view."""
        self.entered, self._own = view, own
        self._told = {number: told for number, told in self._told.items() if number >= view.number}
        self.hear(view.number, self._me, own)

    def hear(self, number: int, island: Island, status: Status) -> None:
        """Takes note of what an island tells."""
        self._told.setdefault(number, {})[island] = status

    def of(self, view: View) -> Mapping[Island, Status]:
        """The news of the members of a view."""
        return self._told.get(view.number, _NOTHING)

    def is_known(self, view: View) -> bool:
        """True if all members of a view have told."""
        return set(view.members) <= self.of(view).keys()

    def own(self, number: int) -> Status | None:
        """The news that this island has to tell in a view; None if it is in another one."""
        return self._own if self.entered is not None and number == self.entered.number else None
